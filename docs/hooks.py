"""What mkdocs adds: files outside docs/ that pages link, the reference of commands, examples.

The reference is made here, since mkdocs-typer2 fails on the options of Typer 0.29 and knows no
groups. Options that several commands share are shown once, in reference/options.md.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from bertender.cli.main import COMMANDS, build_app

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")
PICTURE = re.compile(r"(?:src|srcset)=\"([^\"]+)\"")
EXAMPLE = re.compile(r"^Example:\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.M)
SHARED_BY = 4
"""An option is shared where at least so many commands have it, in the same words."""


class Examples(griffe.Extension):
    """Make the examples of docstrings blocks of Python."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(self._fenced, obj.docstring.value)

    @staticmethod
    def _fenced(example: re.Match[str]) -> str:
        return f"Example:\n    ```python\n{example[1].rstrip()}\n    ```"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link outside of docs/: reports, and the files of deploy/."""
    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        source = _path_of(todo.pop())
        for link in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            target = PurePosixPath(normpath(source.parent / link))
            uri = _uri_of(target)
            if target.is_relative_to("docs") or files.get_file_from_path(uri):
                continue
            if not (ROOT / target).is_file():
                raise PluginError(f"{source} links {link}: there is no such file")
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
            if uri.endswith(".md"):
                todo.append(uri)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links as they are in the site, and the tables of options."""
    source = _path_of(page.file.src_uri)
    for picture in PICTURE.findall(markdown):
        if not (ROOT / source.parent / picture).is_file():
            raise PluginError(f"{source} shows {picture}: there is no such file")

    def in_site(link: re.Match[str]) -> str:
        target = PurePosixPath(normpath(source.parent / link[1]))
        return relpath(_uri_of(target), PurePosixPath(page.file.src_uri).parent)

    markdown = LINK.sub(in_site, markdown)
    if page.file.src_uri == "reference/commands.md":
        return f"{markdown}\n\n" + "\n\n".join(
            map(_group, dict.fromkeys(command.group for command in COMMANDS.values()))
        )
    if page.file.src_uri == "reference/options.md":
        return markdown.replace("<!-- shared options -->", _in_panels(list(_shared().values())))
    return markdown


def _path_of(uri: str) -> PurePosixPath:
    """The path in the repository of a page of the site."""
    own = PurePosixPath("docs", uri)
    return own if (ROOT / own).is_file() else PurePosixPath(uri.removeprefix("repository/"))


def _uri_of(path: PurePosixPath) -> str:
    """The address in the site of a file of the repository."""
    inside = path.is_relative_to("docs")
    return str(path.relative_to("docs") if inside else PurePosixPath("repository", path))


@cache
def _parameters() -> dict[str, list[Any]]:
    """Command -> its arguments and options."""
    groups = {name: typer.main.get_command(build_app(name)) for name in COMMANDS}
    return {
        name: [each for each in group.commands[name].params if not each.hidden]  # type: ignore[attr-defined]
        for name, group in groups.items()
    }


@cache
def _shared() -> dict[tuple[str, str], Any]:
    """(flags, help) -> the option, of those that several commands have."""
    options = [each for own in _parameters().values() for each in own if _is_option(each)]
    counts = Counter(map(_key, options))
    return {key: each for each in options if counts[key := _key(each)] >= SHARED_BY}


def _is_option(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and parameter.name != "help"


def _key(option: Any) -> tuple[str, str]:
    flags = (*option.opts, *option.secondary_opts)
    return ", ".join(f"`{flag}`" for flag in flags), " ".join((option.help or "").split())


def _panel(option: Any) -> str:
    return getattr(option, "rich_help_panel", None) or "Options"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    nothing = option.default in (None, "") or option.default is False or callable(option.default)
    return "-" if nothing else f"`{option.default}`"


def _table(options: list[Any]) -> str:
    rows = [
        f"| {flags} | {_default(option)} | {text.replace('|', chr(92) + '|')} |"
        for option in options
        for flags, text in (_key(option),)
    ]
    return "\n".join(["| Option | Default | What it sets |", "| --- | --- | --- |", *rows])


def _in_panels(options: list[Any]) -> str:
    """A table for each group of options that `--help` shows."""
    panels = dict.fromkeys(map(_panel, options))
    return "\n\n".join(
        f"**{panel}**\n\n{_table([each for each in options if _panel(each) == panel])}"
        for panel in panels
    )


def _group(title: str) -> str:
    """The commands of a group of `bertender --help`."""
    names = [name for name, command in COMMANDS.items() if command.group == title]
    return "\n\n".join([f"## {title}", *map(_section, names)])


def _section(name: str) -> str:
    arguments = [each for each in _parameters()[name] if each.param_type_name == "argument"]
    options = [each for each in _parameters()[name] if _is_option(each)]
    shared = [each for each in options if _key(each) in _shared()]
    usage = " ".join(["bertender", name, *map(_argument, arguments), "[OPTIONS]"])
    parts = [f"### {name}", COMMANDS[name].summary, f"`{usage}`"]
    parts.append(_in_panels([each for each in options if each not in shared]))
    if shared:
        names = ", ".join(map(_with_own_default, shared))
        parts.append(f"[Shared with other commands](options.md#shared-options): {names}.")
    return "\n\n".join(filter(None, parts))


def _with_own_default(option: Any) -> str:
    flags, own = _key(option)[0], _default(option)
    return flags if own == _default(_shared()[_key(option)]) else f"{flags} ({own})"


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    shown = name if argument.required else f"[{name}]"
    return f"{shown}..." if argument.nargs == -1 else shown
