"""The command line: finds the command, shows progress, turns errors into messages.

Only the module of the requested command is imported: the libraries of the stages take seconds to
load, which `bertender --help` should not.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer
from rich.logging import RichHandler
from rich.markup import escape

from bertender.core.errors import BertenderError
from bertender.core.progress import SafeConsole, show_progress
from bertender.recipes.stages import STAGES

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of a shell for a command interrupted by Ctrl-C."""

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that would end Python at once, and leave its temporary files: copies of models."""

OF_THE_SYSTEM = re.compile(r"\(os error \d+\)")
"""End of the system's errors in safetensors and tokenizers, whose exceptions are no OSError."""

HOME = re.compile("^(--[a-z-]+=)~(?=/)")
"""Start of an option whose home folder no shell has put in: it would be a folder named `~`."""

MAKE, MEASURE, SERVE, LOOK_UP = "Make", "Measure", "Serve", "Look up"


class Command(NamedTuple):
    """A command's entry in `bertender --help`."""

    group: str
    summary: str
    extra: str = "train"
    """The extra with the packages that the command needs."""


COMMANDS: Mapping[str, Command] = {
    "run": Command(MAKE, "Run a recipe: named steps; what is built is reused."),
    "sweep": Command(MAKE, "Try several settings of a recipe; validation texts choose the best."),
    **{name: Command(MAKE, stage.summary) for name, stage in STAGES.items() if not stage.suffix},
    "import": Command(MAKE, "Write a finished model from elsewhere as an artifact."),
    "compress": Command(
        MAKE, "Make the best model that holds constraints on size, time and score."
    ),
    "verify": Command(MEASURE, STAGES["verify"].summary),
    "compare": Command(MEASURE, STAGES["compare"].summary),
    "report": Command(MEASURE, "Write one HTML page: which model to deploy, and why.", "report"),
    "analyse": Command(MEASURE, "Analyse the layers and heads of a PyTorch model.", "report"),
    "diff": Command(MEASURE, "Show the texts on which two models differ, worst first."),
    "drift": Command(MEASURE, "Compare recent texts with those that a model was trained for."),
    "loadtest": Command(MEASURE, "Measure an endpoint under load, and find its limit."),
    "serve": Command(SERVE, "Serve a model over HTTP and gRPC, by Triton or without it.", "serve"),
    "classify": Command(SERVE, "Ask a served model about texts."),
    "score": Command(SERVE, "Write the predictions for any number of texts, without a server."),
    "deploy": Command(
        SERVE, "Replace a served model by a new version that proves itself first.", "serve"
    ),
    "tune": Command(
        SERVE, "Find the settings of `serve` that are the fastest on this machine.", "serve"
    ),
    "api-key": Command(SERVE, "Make an API key for a server, and its row.", "serve"),
    "install-server": Command(SERVE, "Install Triton beside this environment's packages.", "serve"),
    "push": Command(SERVE, "Put an artifact, with a model card, on a hub."),
    "tasks": Command(LOOK_UP, "List the tasks that are known by name."),
    "methods": Command(LOOK_UP, "List the distillation methods."),
    "schemes": Command(LOOK_UP, "List the ways to quantize, and for which machines."),
    "recipes": Command(LOOK_UP, "List the recipes."),
    "show": Command(LOOK_UP, "Show an artifact and what it was made from."),
    "card": Command(LOOK_UP, "Write the model card of an artifact."),
    "doctor": Command(LOOK_UP, "Show what this machine has, and what that means."),
}
"""All commands, in the order of the help."""

VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="log what is being done")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="show no progress bars")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(metadata.version("bertender"))
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="show the version"),
]


def main() -> None:
    """Run the command line; exit with 0, 1 (a check said no), 2 (it could not be done), 130
    (interrupted), or 128 and the number of a signal that stopped it."""
    # nohup ignores one
    ours = [each for each in STOPPING if signal.getsignal(each) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _stop)
    home = os.path.expanduser("~")  # noqa: PTH111 - without one, `~` stays
    sys.argv[1:] = [HOME.sub(lambda found: found[1] + home, word, count=1) for word in sys.argv[1:]]
    requested = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    try:
        build_app(requested)()
    except KeyboardInterrupt:  # while loading libraries, which takes seconds
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except Exception:  # a bug, or no memory: Python would exit with 1, as where a check said no
        traceback.print_exc()
        sys.exit(BertenderError.exit_code)
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    # `timeout`, shells and service managers may send two: the second would end the removal of files
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def build_app(requested: str | None) -> typer.Typer:
    """Return the application; only the requested command has its options and can run."""
    app = typer.Typer(
        help="Turn a BERT-style encoder into a small, fast, proven endpoint.\n\n"
        "Start here: bertender run quickstart",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def prepare(
        verbose: VerboseOption = False, quiet: QuietOption = False, version: VersionOption = False
    ) -> None:
        show_progress(not quiet)
        logging.basicConfig(
            level=logging.INFO if verbose else logging.WARNING,
            format="%(message)s",
            handlers=[RichHandler(console=SafeConsole(stderr=True), show_path=False)],
        )

    for name, command in COMMANDS.items():
        function = _guarded(name) if name == requested else lambda: None
        app.command(name, help=command.summary, rich_help_panel=command.group)(function)
    return app


def _guarded(name: str) -> Callable[..., None]:
    """Return a command with bertender's own errors turned into messages."""
    _calm_libraries()
    with _packages_explained(name):
        function = command_of(name)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            with _packages_explained(name):
                function(*args, **kwargs)
        except BertenderError as error:
            _complain(str(error))
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # typer ends quietly when the reader of our output closes it
            raise
        except Exception as error:  # a full disk, or an unwritable directory
            if not isinstance(error, OSError) and not OF_THE_SYSTEM.search(str(error)):
                raise
            logger.info("where it happened", exc_info=True)
            _complain(f"{error}; put that right and run the same command again")
            raise typer.Exit(BertenderError.exit_code) from None
        except KeyboardInterrupt:
            anew = ", without --fresh," if kwargs.get("fresh") else ""
            _complain(f"interrupted; run the same command again{anew} to continue from here")
            raise typer.Exit(INTERRUPTED) from None

    return guarded


def command_of(name: str) -> Callable[..., None]:
    """Import the module of a command and build the command."""
    if name in ("classify", "loadtest"):  # without the server's packages
        from bertender.cli.asking import build
    elif name in ("card", "push"):
        from bertender.cli.publishing import build
    elif name == "score":  # likewise
        from bertender.cli.scoring import build
    elif COMMANDS[name].group == MAKE:
        from bertender.cli.making import build
    elif COMMANDS[name].group == MEASURE:
        from bertender.cli.measuring import build
    elif COMMANDS[name].group == SERVE:
        from bertender.cli.serving import build
    else:
        from bertender.cli.looking_up import build
    return build(name)


@contextmanager
def _packages_explained(name: str) -> Iterator[None]:
    """Turn the error of a missing package into the name of the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if importlib.util.find_spec(package or "bertender") is not None:
            raise  # one of our modules, or a broken package
        _complain(
            f"this command needs the package {package!r}, which is not installed. Install it with "
            f"what belongs to it: pip install 'bertender[{COMMANDS[name].extra}]'"
        )
        sys.exit(BertenderError.exit_code)


def _calm_libraries() -> None:
    """Keep libraries from printing advice, which is not for users, and from telemetry."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when ONNX Runtime is loaded
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _complain(message: str) -> None:
    SafeConsole(stderr=True).print(f"[bold red]error:[/bold red] {escape(message)}", soft_wrap=True)


if __name__ == "__main__":
    main()
