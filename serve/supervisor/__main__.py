"""The supervisor as a program; see the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # `-I` leaves it out

from serve.supervisor.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
