"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from bertender.cli.main import build_app, commands
from bertender.report.cells import DASH, Cell, markdown_rows

__all__ = ["commands_block", "parameters_of"]

HEADINGS: tuple[Cell, ...] = (("Option",), ("Default",), ("What it sets",))


def parameters_of(name: str, kind: str) -> list[Any]:
    """Return a command's parameters of one kind, `option` or `argument`."""
    group: Any = typer.main.get_command(build_app(name))
    parameters = group.commands[name].params
    return [each for each in parameters if each.param_type_name == kind and not each.hidden]


def commands_block(files: Mapping[str, Path]) -> str:
    """Return a section for each command: what it does, its arguments and its options."""
    return "\n".join(_section(name) for name in commands())


def _section(name: str) -> str:
    arguments = [_argument(each) for each in parameters_of(name, "argument")]
    usage = " ".join(["bertender", name, *arguments, "[OPTIONS]"])
    rows = [_row(option) for option in parameters_of(name, "option")]
    lines = markdown_rows(HEADINGS, rows, [False] * len(HEADINGS))
    return "\n".join(
        [f"### {name}", "", commands()[name].summary, "", f"`{usage}`", "", *lines, ""]
    )


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    shown = name if argument.required else f"[{name}]"
    return f"{shown}..." if argument.nargs == -1 else shown


def _row(option: Any) -> tuple[Cell, ...]:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return (flags,), (_default(option),), (" ".join((option.help or "").split()),)


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    nothing = option.default in (None, "") or option.default is False or callable(option.default)
    return DASH if nothing else f"`{option.default}`"
