"""No document repeats a measured number by hand: such numbers stand in blocks made from results."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from benchmarks.documents.block import ROOT
from benchmarks.documents.blocks import BLOCKS

DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)

NOT_PROSE = re.compile(
    r"<!-- begin ([\w-]+) -->.*?<!-- end \1 -->"  # made from results
    r"|^```.*?^```$"  # commands
    r"|`[^`\n]*`"  # settings and names
    r"|arXiv \d{4}\.\d{5}"
    r"|\]\([^)]*\)",  # where a link leads
    re.S | re.M,
)
PART = r"(?:half|thirds?|quarters?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?)"
MEASURED = re.compile(
    r"[+-]?\d+(?:,\d{3})+"  # 67,349
    r"|[+-]?\d+\.\d+(?: ?%|x)?"  # 0.882, 1.5x
    r"|\d+(?: ?%|x\b)"  # 12 %, 3x
    r"|\d+(?: to \d+)? (?:points?|ms|MB|GB|GiB|seconds|minutes|times)\b"
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten) (?:points?|times)\b"
    r"|\btwice as \w+"
    rf"|\b{PART} (?:of )?(?:a|the) (?:points?|time|bytes|speed|score)\b"
    rf"|\b{PART} (?:more|less|fewer|faster|slower|smaller|larger)\b"
)
"""What looks like a result."""

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "README.md": {
        "Python 3.11 or 3.12": "versions that run it",
        "carry 95 % intervals": "the confidence that is computed",
        "Apache-2.0": "a licence",
    },
    "benchmarks/README.md": {
        "on the 100 MB of": "the size of the corpus",
        "more than 5 % of": "bertender.measure.load.BUSY_SHARE, a limit",
    },
    "CHANGELOG.md": {"0.1.0 The first": "a version"},
    "docs/comparing.md": {
        "a 95 % interval": "the confidence that is computed",
        "more than 5 % of": "bertender.measure.load.BUSY_SHARE, a limit",
    },
    "docs/gate.md": {"the 95 % interval": "the confidence that is computed"},
    "docs/install.md": {"Python 3.11 or 3.12": "versions that run it"},
    "docs/tutorial.md": {
        "Python 3.11 or 3.12": "versions that run it",
        "with 95 % intervals": "the confidence that is computed",
    },
    "docs/export.md": {
        "no file of 2 GiB": "protobuf's limit",
        "in half the bytes": "two bytes a number in place of four",
        "ONNX Runtime 1.31": "a version",
    },
    "docs/methods.md": {
        "4,928 tokens": "a default, the paper's size",
        ", 4,928), 192 wide": "a default, the paper's size",
        "with probability 0.4": "a default, the paper's",
        "SST-2 67,349, MRPC 3,668, CoLA 8,551": "published sizes of the training files",
        "Brackets are 95 % intervals": "the confidence that is computed",
    },
    "docs/pretraining.md": {
        "section 4.2": "of a paper",
        "the 100,000 commonest": "a limit",
    },
    "docs/pruning.md": {},
    "docs/serving.md": {"the 95 % interval of its ratio": "the confidence that is computed"},
    "docs/quantization.md": {
        "no more than half a point of the score": "what --max-drop 0.5 means",
        "the gain (1.1 where": "an example of a definition",
        "a histogram of 2,048 bins": "a setting",
        "change it by 1 % at most": "a stopping rule",
        "no more than 0.1 points are lost": "a setting of the benchmark's row",
    },
}
"""Document -> a phrase with numbers that were not measured here -> what they are instead."""


def prose(text: str) -> str:
    """A document without what is no prose, a space in its place."""
    return NOT_PROSE.sub(" ", text)


def typed_numbers(text: str, allowed: Mapping[str, str]) -> list[str]:
    """What looks measured in a document's prose, with words around it, but for what is allowed."""
    words = " ".join(prose(text).split())
    for phrase in allowed:
        words = words.replace(phrase, " ")
    return [words[max(0, hit.start() - 30) : hit.end() + 20] for hit in MEASURED.finditer(words)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_measured_numbers_are_not_typed(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert typed_numbers(text, ALLOWED.get(document, {})) == [], (
        "make it a row of benchmarks/documents/blocks.py"
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_allowed_is_there(document: str) -> None:
    words = " ".join(prose((ROOT / document).read_text(encoding="utf-8")).split())
    assert [phrase for phrase in ALLOWED.get(document, {}) if phrase not in words] == []


def test_every_document_with_results_is_looked_at() -> None:
    assert {block.document for block in BLOCKS.values()} <= set(DOCUMENTS)


@pytest.mark.parametrize(
    "typed",
    [
        "it scores 0.882 there",
        "with 99.7 % of the score",
        "3x as fast",
        "within 2 points",
        "twice as fast",
        "half a point more",
        "a tenth slower",
        "at 18 MB",
        "of 67,349 texts",
        "3 to 9 % faster",
        "three quarters of the bytes",
        "five times",
    ],
)
def test_what_looks_measured_is_found(typed: str) -> None:
    assert typed_numbers(f"In this table {typed}.", {})


@pytest.mark.parametrize(
    "text",
    [
        "`--max-drop 0.5`",
        "arXiv 1909.11942",
        "[a](b-1.5.md)",
        "<!-- begin a -->\n9.1\n<!-- end a -->",
    ],
)
def test_what_is_not_prose_is_passed_over(text: str) -> None:
    assert typed_numbers(text, {}) == []
