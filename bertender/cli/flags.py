"""Command-line flags made from configs: a flag, a recipe key and a field share one name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from bertender.core.config import Config

WIDEST_METAVAR = 16
PLAIN_TYPES = (int, float, bool, str, Path)

CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
EXPLICIT = ("COMMANDLINE", "ENVIRONMENT", "PROMPT")
"""Typer's names for the sources of explicit values."""

OUTPUT = "Output"
"""Title above the options for written and printed output."""
ForceFlag = Annotated[
    bool,
    typer.Option(
        "--force",
        help="replace a finished artifact that is there already",
        rich_help_panel=OUTPUT,
    ),
]
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="print one line of JSON at the end", rich_help_panel=OUTPUT),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="write the result to this JSON file")
]


def command_with_flags(
    function: Callable[..., None],
    configs: Sequence[type[Config]],
    *,
    optional: Sequence[type[Config]] = (),
) -> Callable[..., None]:
    """Return `function` with a flag for each field of the configs, grouped by their titles.

    Args:
        function: its last parameter, `values`, receives the flags' values by field name; None for
            flags that were not given, since a config may have defaults that depend on other
            settings.
        configs: configs whose defaults are shown as the flags' own; of equal names, the first wins.
        optional: configs whose settings are read from an artifact if no flag is given.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "values"]
    wants_context = any(p.name == CONTEXT.name for p in own)
    flags: dict[str, inspect.Parameter] = {}
    # settings known from the artifact come last
    for config in sorted(configs, key=lambda config: config in optional):
        for name, title in config.titles().items():
            if name in config.without_flag:
                continue
            flags.setdefault(name, _flag(name, config, title, forget=config in optional))

    def command(**arguments: Any) -> None:
        context = arguments[CONTEXT.name] if wants_context else arguments.pop(CONTEXT.name)
        values = {}
        for name in flags:
            source, value = context.get_parameter_source(name), arguments.pop(name)
            values[name] = value if source is not None and source.name in EXPLICIT else None
        function(**arguments, values=values)

    parameters = [*([] if wants_context else [CONTEXT]), *own, *flags.values()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def settings_of(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the explicit values for a config; 0, False and empty text are values."""
    return {
        name: value
        for name, value in values.items()
        if name in config.model_fields and value is not None
    }


def _flag(name: str, config: type[Config], title: str | None, *, forget: bool) -> inspect.Parameter:
    """Return the flag of a field; without its default if that would come from the artifact."""
    field = config.model_fields[name]
    kind = _plain_type(field.annotation)
    default = field.get_default(call_default_factory=True)
    if kind is str and default is not None and not isinstance(default, str):
        # as on the command line; an empty value is None
        as_text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        default = as_text if default else None
    shown: bool | str = config.shown_defaults.get(name, True)
    if forget and (default is not None or isinstance(shown, str)):
        shown = "the artifact's"
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    metavar, text = "|".join(choices), field.description
    if len(metavar) > WIDEST_METAVAR:  # the names of options need the space of a narrow terminal
        metavar, text = "", f"{', '.join(choices)}: {text}"
    option = f"--{name.replace('_', '-')}"
    # a flag that is off by default needs no second name to turn it off
    names = (f"{option}/--no-{option[2:]}",) if default is True else (option,)
    option_type: Any = kind | None
    annotation: Any = Annotated[
        option_type,
        typer.Option(
            *names,
            help=text,
            metavar=metavar or None,
            show_default=shown,
            rich_help_panel=title,
        ),
    ]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if forget else default,
        annotation=annotation,
    )


def _plain_type(annotation: Any) -> type:
    """Return the type that the command line parses; structured values are text, parsed by the
    config."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return _plain_type(kinds[0])
    return annotation if annotation in PLAIN_TYPES else str
