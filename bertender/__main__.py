"""`python -m bertender`, which `accelerate launch -m bertender` needs."""

import sys
from importlib.util import find_spec
from pathlib import Path

from bertender.cli.main import main

if not sys.flags.safe_path and (spec := find_spec("bertender")) and spec.origin:
    # -m puts the current folder first, where a serve.py or export.py of a user's would be taken
    # for the packages of these names; a clone that is run from its own folder needs it
    here = Path.cwd()
    if sys.path[:1] == [str(here)] and here != Path(spec.origin).resolve().parents[1]:
        del sys.path[0]


main()
