"""One fresh process of a timing: `python -m bertender.comparison.timing_process`."""

from __future__ import annotations

import io
import json
import os
import sys

from bertender.comparison.latency import TimingRequest, quiet, threads_of


def main() -> None:
    """Open the rows of a request, and time the turns that are asked for until the input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as results:
        os.dup2(2, 1)  # what libraries print is not a result
        assert isinstance(sys.stdin, io.TextIOWrapper)
        sys.stdin.reconfigure(encoding="utf-8")  # whatever the locale is
        request = TimingRequest.model_validate_json(sys.stdin.readline())
        turns = request.opened()
        with quiet(threads_of(request.config)):
            print(file=results)
            for line in sys.stdin:
                row, number = map(int, line.split())
                print(json.dumps(turns.take(row, number)), file=results)


if __name__ == "__main__":
    main()
