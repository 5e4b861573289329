"""Sections of a docstring: which lines describe a parameter, a return value, and so on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

SUMMARY, PARAMETER, RETURN = "summary", "parameter", "return value"
EXCEPTION, NOTE = "exception", "note"
SECTIONS = (SUMMARY, PARAMETER, RETURN, EXCEPTION, NOTE)

HEADINGS: Mapping[str, str] = {
    "parameters": PARAMETER,
    "other parameters": PARAMETER,
    "params": PARAMETER,
    "args": PARAMETER,
    "arguments": PARAMETER,
    "keyword args": PARAMETER,
    "keyword arguments": PARAMETER,
    "returns": RETURN,
    "return": RETURN,
    "raises": EXCEPTION,
    "raise": EXCEPTION,
    "note": NOTE,
    "notes": NOTE,
}
"""Headings in lower case; the text below any other one is not a section's."""

FIELDS: Mapping[str, str] = {
    "param": PARAMETER,
    "parameter": PARAMETER,
    "arg": PARAMETER,
    "argument": PARAMETER,
    "keyword": PARAMETER,
    "return": RETURN,
    "returns": RETURN,
    "raise": EXCEPTION,
    "raises": EXCEPTION,
    "except": EXCEPTION,
}
"""Sphinx's fields; of any other one (`:type x:`) the text is left out."""

DIRECTIVES: Mapping[str, str] = {"note": NOTE}

UNDERLINE = re.compile(r"[-=~]{3,}")
GOOGLE = re.compile(r"([A-Z][A-Za-z]+(?: [A-Za-z]+)?) ?::?")
FIELD = re.compile(r":(\w+)(?: [^:]*)?:(?:\s+(.*))?$")
DIRECTIVE = re.compile(r"\.\.(?: ([\w-]+)::)?(?:\s+(.*))?$")
ITEM = re.compile(r"(?:[-*+•]|\(?\d+[.)])\s+")
NAME_AND_TYPE = re.compile(
    r"""[-*+]?\s*                        # of a list
    [*`]*\*{0,2}[\w./\\]+[*`]*           # name
    (?:\s*,\s*[*`]*[\w./\\]+[*`]*)*      # more names
    (?:\s*\((?:[^()]|\([^()]*\))*\))?    # (type)
    \s*(?::|--|\u2013)(?:\s+|$)""",
    re.VERBOSE,
)
"""The text before the description of a parameter or an exception, in Google's layout."""
TYPE = re.compile(r"(?:[^\s:]+|:\w+:`[^`]*`|`[^`]*`|\S*\((?:[^()]|\([^()]*\))*\)):(?:\s+|$)")
"""The text before the description of a return value, in Google's layout."""

Block = list[str]


def read_sections(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph of a known section, as its section and its text on one line."""
    first, rest = _first_paragraph(_without_code(docstring.expandtabs().splitlines()))
    yield SUMMARY, first
    for section, block, layout in _blocks(rest):
        for paragraph in _paragraphs(LAYOUTS[layout](section, block)):
            yield section, paragraph


def _without_code(lines: Sequence[str]) -> Block:
    """Return the lines with empty ones instead of doctests, their output and fenced code."""
    remaining = []
    fenced = in_doctest = False
    for line in lines:
        stripped = line.strip()
        in_doctest = stripped.startswith((">>>", "In [")) or (in_doctest and stripped != "")
        fence = stripped.startswith("```")
        remaining.append("" if fence or fenced or in_doctest else line.rstrip())
        fenced ^= fence
    return remaining


def _first_paragraph(lines: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the summary, which ends at an empty line or where a section begins, and the rest."""
    start = next((number for number, line in enumerate(lines) if line), len(lines))
    for end in range(start, len(lines) + 1):
        if end == len(lines) or not lines[end] or _opening(lines, end):
            return " ".join(map(str.strip, lines[start:end])), lines[end:]
    raise AssertionError("unreachable: the last pass returns")


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, Block, str]]:
    """Yield the blocks of known sections: the section, its lines without heading, the layout."""
    position = 0
    while position < len(lines):
        opening = _opening(lines, position)
        if opening is None:
            position += 1
            continue
        section, layout, block, position = opening
        if section is not None:
            yield section, block, layout


Opening = tuple[str | None, str, Block, int]
"""Its section (None: unknown), its layout, its lines, and where the next one begins."""


def _opening(lines: Sequence[str], position: int) -> Opening | None:
    """Return the section that begins at a line, if one does."""
    for read in (_numpydoc, _google, _field, _directive):
        if opening := read(lines, position):
            return opening
    return None


def _numpydoc(lines: Sequence[str], position: int) -> Opening | None:
    if not _is_underlined(lines, position):
        return None
    start = end = position + 2
    while end < len(lines) and not _is_underlined(lines, end):
        end += 1
    section = HEADINGS.get(lines[position].strip().rstrip(":").lower())
    return section, "numpydoc", list(lines[start:end]), end


def _is_underlined(lines: Sequence[str], position: int) -> bool:
    below = lines[position + 1].strip() if position + 1 < len(lines) else ""
    return bool(lines[position].strip() and UNDERLINE.fullmatch(below))


def _google(lines: Sequence[str], position: int) -> Opening | None:
    match = GOOGLE.fullmatch(lines[position].strip())
    if match is None:
        return None
    end = _end_of_indented(lines, position)
    if end == position + 1:
        return None
    section = HEADINGS.get(match[1].lower())
    return section, "google", list(lines[position + 1 : end]), end


def _field(lines: Sequence[str], position: int) -> Opening | None:
    match = FIELD.fullmatch(lines[position].strip())
    if match is None:
        return None
    end = _end_of_indented(lines, position, over_empty=False)
    return FIELDS.get(match[1]), "plain", [match[2] or "", *lines[position + 1 : end]], end


def _directive(lines: Sequence[str], position: int) -> Opening | None:
    match = DIRECTIVE.fullmatch(lines[position].strip())
    if match is None:
        return None
    end = _end_of_indented(lines, position)
    section = DIRECTIVES.get(match[1] or "")
    return section, "plain", [match[2] or "", *lines[position + 1 : end]], end


def _end_of_indented(lines: Sequence[str], position: int, *, over_empty: bool = True) -> int:
    """Return where the lines end that are indented more than the one at `position`."""
    base = _indent(lines[position])
    end = last = position + 1
    while end < len(lines) and (_indent(lines[end]) > base if lines[end] else over_empty):
        end += 1
        last = end if lines[end - 1] else last
    return last


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented_only(section: str, block: Block) -> Block:
    """Return the descriptions below lines of names and types; of notes, all lines."""
    if section == NOTE:
        return _plain(section, block)
    base = _base(block)
    return ["" if _indent(line) == base else line for line in block]


def _after_heads(section: str, block: Block) -> Block:
    """Return the descriptions after names and types, whether on the same line or below."""
    if section == NOTE:
        return _plain(section, block)
    base = _base(block)
    lines: Block = []
    for line in block:
        if line and _indent(line) == base:
            lines += ["", _without_head(section, line.strip())]
        else:
            lines.append(line)
    return lines


def _without_head(section: str, line: str) -> str:
    if section == RETURN:
        return TYPE.sub("", line, count=1) if TYPE.match(line) else line
    head = NAME_AND_TYPE.match(line)
    return line[head.end() :] if head else ""


def _plain(section: str, block: Block) -> Block:
    """Return the lines outside the directives in a block (of code, formulas, versions)."""
    lines: Block = []
    position = 0
    while position < len(block):
        if DIRECTIVE.fullmatch(block[position].strip()):
            position = _end_of_indented(block, position)
            lines.append("")
        else:
            lines.append(block[position])
            position += 1
    return lines


LAYOUTS: Mapping[str, Callable[[str, Block], Block]] = {
    "numpydoc": _indented_only,
    "google": _after_heads,
    "plain": _plain,
}


def _base(block: Block) -> int:
    return min((_indent(line) for line in block if line), default=0)


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield runs of lines as one; an empty line or the next item of a list ends a run."""
    words: list[str] = []
    for line in (*map(str.strip, lines), ""):
        item = ITEM.match(line)
        if not line or item:
            if words:
                yield " ".join(words)
            words = []
        if line:
            words.append(line[item.end() :] if item else line)
