"""Command-line flags made from configs: a flag, a recipe key and a field share one name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from bertender.core.config import Config

WIDEST_METAVAR = 16
PLAIN_TYPES = (int, float, bool, str, Path)

CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
EXPLICIT = ("COMMANDLINE", "ENVIRONMENT", "PROMPT")
"""Typer's names of where a value comes from that is not a default."""

ForceFlag = Annotated[
    bool, typer.Option("--force", help="replace a finished artifact that is there already")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="print one line of JSON at the end")]


def command_with_flags(
    function: Callable[..., None],
    configs: Sequence[type[Config]],
    *,
    optional: Sequence[type[Config]] = (),
) -> Callable[..., None]:
    """Return `function` with a flag for each field of the configs.

    Args:
        function: its last parameter, `values`, receives the flags' values by field name; None for
            what the user did not give, since a config may have defaults that depend on the rest.
        configs: their defaults are shown as the flags' own; the first that has a name wins.
        optional: configs whose settings are read from an artifact where no flag gives them.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "values"]
    wants_context = any(p.name == CONTEXT.name for p in own)
    flags: dict[str, inspect.Parameter] = {}
    for config in configs:
        for name, field in config.model_fields.items():
            shown = config.shown_defaults.get(name, True)
            flags.setdefault(name, _flag(name, field, shown, forget=config in optional))

    def command(**arguments: Any) -> None:
        context = arguments[CONTEXT.name] if wants_context else arguments.pop(CONTEXT.name)
        values = {name: _if_explicit(context, name, arguments.pop(name)) for name in flags}
        function(**arguments, values=values)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    parameters = [*([] if wants_context else [CONTEXT]), *own, *flags.values()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _if_explicit(context: typer.Context, name: str, value: Any) -> Any:
    source = context.get_parameter_source(name)
    return value if source is not None and source.name in EXPLICIT else None


def settings_of(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config that the user gave; 0, False and empty text are values."""
    return {
        name: value
        for name, value in values.items()
        if name in config.model_fields and value is not None
    }


def _flag(name: str, field: FieldInfo, shown: bool | str, *, forget: bool) -> inspect.Parameter:
    option = f"--{name.replace('_', '-')}"
    kind = _plain_type(field.annotation)
    default = _default(field, kind)
    # what is off need not be turned off, and a long second name takes the room of the others
    names = (f"{option}/--no-{option[2:]}",) if default is True else (option,)
    has_default = default is not None or isinstance(shown, str)
    recorded = "the artifact's" if forget and has_default else shown
    option_type: Any = kind | None
    annotation: Any = Annotated[
        option_type,
        typer.Option(
            *names,
            help=_help(field),
            metavar=_metavar(field),
            show_default=recorded,
        ),
    ]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if forget else default,
        annotation=annotation,
    )


def _default(field: FieldInfo, kind: type) -> Any:
    """Return the default as the command line shows and parses it; None for none or empty."""
    default = field.get_default(call_default_factory=True)
    if kind is str and default is not None and not isinstance(default, str):
        if isinstance(default, tuple):
            return ",".join(map(str, default)) or None
        return None if default == {} else str(default)
    return default


def _metavar(field: FieldInfo) -> str | None:
    """Return the choices, where they leave room for the names of options in a narrow terminal."""
    listed = "|".join(_choices(field.annotation))
    return listed if 0 < len(listed) <= WIDEST_METAVAR else None


def _help(field: FieldInfo) -> str | None:
    """Return the description, with the choices where the line next to it is too short for them."""
    choices = _choices(field.annotation)
    if not choices or _metavar(field):
        return field.description
    return f"{', '.join(choices)}: {field.description}"


def _choices(annotation: Any) -> tuple[str, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _plain_type(annotation: Any) -> type:
    """Return what the command line parses; anything structured is text that the config reads."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return _plain_type(kinds[0])
    return annotation if annotation in PLAIN_TYPES else str
