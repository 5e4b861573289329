"""A Python process that is asked in lines: each is followed by one line of its results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from bertender.core.errors import ModelError

__all__ = ["LineProcess", "line_process"]

ROOT = Path(__file__).resolve().parents[2]
"""Folder of this package, where a fresh process must find it."""


class LineProcess:
    """A process that runs.

    Args:
        process: reads lines and writes a line for each.
        errors: what it prints besides.
        purpose: what it is, for messages: "a process that timed 3 rows".
        hint: the next step when it ends, for messages.
    """

    def __init__(
        self, process: subprocess.Popen[str], errors: IO[bytes], purpose: str, hint: str
    ) -> None:
        self.process = process
        self.errors = errors
        self.purpose = purpose
        self.hint = hint

    def ask(self, line: str) -> str:
        """Return the line that follows one.

        Raises:
            ModelError: the process has ended.
        """
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):  # it has ended: no line follows
            print(line, file=self.process.stdin, flush=True)
        if result := self.process.stdout.readline():
            return result
        status = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelError(
            f"{self.purpose} ended with status {status}: {last or 'it printed nothing'}"
            f"{'.' if self.hint else ''}{self.hint}"
        )


@contextmanager
def line_process(
    module: str,
    purpose: str,
    *,
    hint: str = "",
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Iterator[LineProcess]:
    """Start a module in a fresh process, which ends with the block.

    Args:
        module: of this project; its results are the lines of its standard output.
        purpose: what the process is, for messages.
        hint: a sentence for messages: what to do when it ends.
        python: the interpreter, which may be of another environment.
        variables: of the environment, added to those of this process.
    """
    # packages of this process are none of another environment's
    own = [os.environ.get("PYTHONPATH")] if python == sys.executable else []
    places = [str(ROOT), *filter(None, own)]
    with (
        TemporaryFile() as errors,
        # -P: no file of the folder that this runs in stands before a library of the same name
        subprocess.Popen(
            [python, "-P", "-m", module],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places), **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield LineProcess(process, errors, purpose, hint)
        finally:
            process.kill()  # it has no more to do, and nothing to save
            if process.stdin:
                with suppress(BrokenPipeError):  # a line that it did not read
                    process.stdin.close()
