"""One fresh process of a timing: `python -m bertender.measure.timing_process OUT < REQUEST`."""

from __future__ import annotations

import sys
from pathlib import Path

from bertender.measure.fresh import TimingRequest

__all__ = ["main"]


def main() -> None:
    """Run the request of standard input, and write the report to the file that is named."""
    request = TimingRequest.model_validate_json(sys.stdin.buffer.read())
    Path(sys.argv[1]).write_text(request.run().model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
