"""`bertender` in a distributed run: RECORD WORDS...; RECORD-RANK.json gets the losses of steps."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from bertender.cli.main import main
from tests.listening import listed_steps

if __name__ == "__main__":
    record, *words = sys.argv[1:]
    sys.argv[1:] = words
    torch.set_num_threads(1)
    with listed_steps() as steps:
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, ended.code
    losses = [{name: float(loss) for name, loss in step.losses.items()} for step in steps]
    Path(f"{record}-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(losses))
