"""The command line: finds the command, shows progress, turns errors into messages.

Only the module of the command that was asked for is imported: the libraries behind the stages
take seconds to load, and `bertender --help` should not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.markup import escape

from bertender.core.progress import SafeConsole
from bertender.recipes.stages import STAGES

logger = logging.getLogger(__name__)

CLI = "bertender.cli"

INTERRUPTED = 130
"""The exit status of a shell for a command that Ctrl-C ended."""


@dataclass(frozen=True)
class Command:
    """A command: its help, and the function that builds it."""

    summary: str
    module: str
    builder: str
    arguments: tuple[str, ...] = ()
    extra: str = "train"
    """The extra with the packages that it needs."""


def _stage(name: str) -> Command:
    summary = STAGES.places[name].summary
    return Command(summary, "bertender.cli.stage_commands", "stage_command", (name,))


def _command(module: str, name: str, summary: str, extra: str = "train") -> Command:
    return Command(summary, module, f"{name}_command", extra=extra)


WITHOUT_COMMAND = ("endpoint",)
"""Stages that are steps of recipes alone."""

COMMANDS: Mapping[str, Command] = {
    "run": _command(
        f"{CLI}.recipe_commands", "run", "Run a recipe: named steps; what is built is reused."
    ),
    "import": _command(
        f"{CLI}.stage_commands",
        "import",
        "Write a finished model from elsewhere as an artifact.",
    ),
    "compress": _command(
        f"{CLI}.compress_command",
        "compress",
        "Make the best model that holds constraints on size, time and score.",
    ),
    "verify": _command(f"{CLI}.measure_commands", "verify", STAGES.places["verify"].summary),
    "compare": _command(f"{CLI}.measure_commands", "compare", STAGES.places["compare"].summary),
    "serve": _command(
        "serve.commands", "serve", "Serve a model through Triton Inference Server.", "serve"
    ),
    "deploy": _command(
        "serve.commands",
        "deploy",
        "Replace a served model by a new version that proves itself first.",
        "serve",
    ),
    "lint-repository": Command(
        "Check a Triton model repository offline, against the graphs in it.",
        "serve.commands",
        "lint_repository_command",
        extra="serve",
    ),
    "classify": _command("serve.asking_commands", "classify", "Ask a served model about texts."),
    "loadtest": _command(
        "serve.asking_commands", "loadtest", "Measure an endpoint under load, and find its limit."
    ),
    "tune": _command(
        "serve.commands",
        "tune",
        "Find the settings of `serve` that are the fastest on this machine.",
        "serve",
    ),
    "tasks": _command(f"{CLI}.list_commands", "tasks", "List the tasks that are known by name."),
    "methods": _command("distill.commands", "methods", "List the distillation methods."),
    "schemes": _command(
        "quantize.commands", "schemes", "List the ways to quantize, and for which machines."
    ),
    "recipes": _command(f"{CLI}.list_commands", "recipes", "List the recipes."),
    "show": _command(f"{CLI}.list_commands", "show", "Show an artifact and what it was made from."),
    "doctor": _command(
        f"{CLI}.list_commands", "doctor", "Show what this machine has, and what that means."
    ),
}
"""Those with a module of their own; the others are made from the rows of STAGES."""


def commands() -> dict[str, Command]:
    """Return all commands, in the order in which they are shown."""
    made = {
        name: _stage(name)
        for name in STAGES
        if name not in COMMANDS and name not in WITHOUT_COMMAND
    }
    return {"run": COMMANDS["run"], **made, **COMMANDS}


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
    """Run the command line; exit with 0, 1 (an error), 2 (wrong usage) or 130 (interrupted)."""
    known = commands()
    requested = next((word for word in sys.argv[1:] if word in known), None)
    try:
        build_app(requested)()
    except KeyboardInterrupt:  # while the libraries of a command are loaded, which takes seconds
        _complain("interrupted")
        sys.exit(INTERRUPTED)


def build_app(requested: str | None) -> typer.Typer:
    """Return the application; only the requested command has its options and can run."""
    app = typer.Typer(
        help="Turn a BERT-style encoder into a small, fast, proven endpoint.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_prepare)
    for name, command in commands().items():
        build = _real if name == requested else _placeholder
        app.command(name, help=command.summary)(build(command))
    return app


def _prepare(
    verbose: VerboseOption = False, quiet: QuietOption = False, version: VersionOption = False
) -> None:
    from bertender.core.progress import show_progress

    show_progress(not quiet)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=SafeConsole(stderr=True), show_path=False)],
    )


def _placeholder(command: Command) -> Any:
    def unused() -> None: ...

    return unused


def _real(command: Command) -> Any:
    """Import and build a command; errors that bertender raises on purpose become messages."""
    _calm_libraries()
    from bertender.core.errors import BertenderError

    with _packages_explained(command):
        module = importlib.import_module(command.module)
        function = getattr(module, command.builder)(*command.arguments)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            with _packages_explained(command):
                function(*args, **kwargs)
        except BertenderError as error:
            _complain(str(error))
            raise typer.Exit(1) from None
        except BrokenPipeError:  # typer ends quietly when the reader of our output has closed it
            raise
        except OSError as error:  # a full disk, a directory that may not be written
            logger.info("where it happened", exc_info=True)
            _complain(f"{error}; put that right and run the same command again")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _complain("interrupted; run the same command again to continue from here")
            raise typer.Exit(INTERRUPTED) from None

    return guarded


@contextmanager
def _packages_explained(command: Command) -> Iterator[None]:
    """Turn a package that is not installed into the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if importlib.util.find_spec(name or "bertender") is not None:
            raise  # an error of ours, or a broken package
        _complain(
            f"this command needs the package {name!r}, which is not installed. Install it with "
            f"what belongs to it: pip install 'bertender[{command.extra}]'"
        )
        sys.exit(1)


def _calm_libraries() -> None:
    """Keep libraries from printing advice, which is not for users, and from calling home."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime reads it when it is loaded
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _complain(message: str) -> None:
    SafeConsole(stderr=True).print(f"[bold red]error:[/bold red] {escape(message)}", soft_wrap=True)


if __name__ == "__main__":
    main()
