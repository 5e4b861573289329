"""Processes that start in milliseconds: forked from one that has loaded the libraries once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["command", "signalled", "start"]

ENDINGS = (".out", ".err")
"""Of the files for standard output (descriptor 1) and standard error (2)."""

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["pytest", "tests.forked_libraries"])


def start(function: Callable[..., Any], *arguments: Any, said: Path) -> BaseProcess:
    """Call a function in a new process; what it prints goes to the files `said`.out and .err."""
    for ending in ENDINGS:
        said.with_suffix(ending).touch()
    process = FORKED.Process(target=_redirected, args=(said, function, arguments), daemon=False)
    process.start()
    return process


def command(*words: str | Path) -> None:
    """Run `bertender WORDS...` as the installed script does."""
    from bertender.cli.main import main

    # a shell starts background jobs, such as a whole test run, with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["bertender", *map(str, words)]
    main()


def signalled(folder: Path, number: signal.Signals) -> None:
    """Run a command that gets a signal while it has temporary files in `folder`, and the signal
    again while it removes them."""
    from bertender.cli import main

    def halfway() -> None:
        with TemporaryDirectory(dir=folder):
            os.kill(os.getpid(), number)
            time.sleep(60)

    def remove(*given: Any, **settings: Any) -> None:
        os.kill(os.getpid(), number)
        rmtree(*given, **settings)

    rmtree, shutil.rmtree = shutil.rmtree, remove

    signal.signal(number, signal.SIG_DFL)  # `nohup` starts a test run with SIGHUP ignored
    main.command_of = lambda name: halfway
    command("doctor")


def _redirected(said: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for descriptor, ending in enumerate(ENDINGS, start=1):
        with said.with_suffix(ending).open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    function(*arguments)
