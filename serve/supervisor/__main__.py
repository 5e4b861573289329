"""The supervisor as a program; see the package."""

import sys
from pathlib import Path

from serve.supervisor.run import main

sys.path.append(str(Path(__file__).parents[2]))  # `-I` leaves it out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
