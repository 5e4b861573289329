"""Writes the tables of the documents, and the words under them, from the raw results.

    python -m benchmarks.readme [--check]

`--check` writes nothing and fails where a block differs from its files.
"""

from __future__ import annotations

import re
import sys

from benchmarks.common.saving import check_noisy_files
from benchmarks.documents.block import ROOT
from benchmarks.documents.blocks import BLOCKS, PICTURES
from benchmarks.pruning.curve import pruning_svg
from benchmarks.pruning.measuring import PruningBenchmark

__all__ = ["drawn", "rewritten"]


def rewritten(document: str, text: str) -> str:
    """Return a document's text with each of its marked blocks made anew from its file.

    Raises:
        MachineBusyError: a file holds figures of a busy machine.
    """
    for name, block in BLOCKS.items():
        if block.document == document:
            pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
            files = {file: ROOT / file for file in block.files}
            check_noisy_files(files.values())
            made = block.write(files)
            text = pattern.sub(rf"\g<1>{_literal(made)}\g<2>", text)
    return text


def _literal(text: str) -> str:
    """Return text escaped so that `re.sub` inserts it unchanged."""
    return text.replace("\\", r"\\")


def drawn(picture: str) -> str:
    """Return a picture's SVG."""
    text = (ROOT / PICTURES[picture]).read_text(encoding="utf-8")
    return pruning_svg(PruningBenchmark.model_validate_json(text))


def main() -> None:
    for picture in PICTURES:
        _write(picture, drawn(picture))
    for document in sorted({block.document for block in BLOCKS.values()}):
        _write(document, rewritten(document, (ROOT / document).read_text(encoding="utf-8")))


def _write(name: str, text: str) -> None:
    """Write a document or picture; with --check, fail where it is not what it should be."""
    path = ROOT / name
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    if "--check" in sys.argv and before != text:
        raise SystemExit(f"{name} is not what benchmarks/readme.py writes: run it")
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
