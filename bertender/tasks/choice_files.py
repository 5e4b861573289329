"""Official files of questions with several texts: choices of COPA, CommonsenseQA, HellaSwag and
RACE, and the paragraphs of SQuAD's documents for ranking.

COPA: Roemmele et al. 2011, and Balanced COPA, Kavumba et al. 2019 (arXiv 1911.00225), which adds a
mirrored question with the same choices to each question. CommonsenseQA: Talmor et al. 2019 (arXiv
1811.00937). HellaSwag: Zellers et al. 2019 (arXiv 1905.07830). RACE: Lai et al. 2017 (arXiv
1704.04683).
"""

from __future__ import annotations

import bz2
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from bertender.core.errors import DataError
from bertender.problems.multiple_choice import LETTERS
from bertender.tasks.docs import draw
from bertender.tasks.rows import bytes_of, decoded_bytes, lines_of, split_lines
from bertender.text.batch import Example

ASKED: Mapping[str, str] = {
    "cause": "What was the cause?",
    "effect": "What happened as a result?",
}
CANDIDATES = 10
"""Most paragraphs of a question."""
HELLASWAG_LINES = 6
"""Context, number of the correct ending, four endings."""


class Question(NamedTuple):
    """A question of a file."""

    example: Example
    target: Any
    """Number of the correct choice, from 0; or another target of the kind of problem."""
    group: str
    """Questions of a group are all in the training split, or all held out."""


def copa(path: Path) -> Iterator[Question]:
    """Read the XML of COPA, or of Balanced COPA; a question and its mirror are a group."""
    root = ElementTree.fromstring(bytes_of(path))  # noqa: S314 - a file of the user's
    for item in root.iter("item"):
        premise, *choices = (str(item.findtext(tag)).strip() for tag in ("p", "a1", "a2"))
        question = f"{premise} {ASKED[item.attrib['asks-for']]}"
        right = int(item.attrib["most-plausible-alternative"]) - 1
        yield Question((question, *choices), right, " ".join(sorted(choices)))


def commonsense_qa(path: Path) -> Iterator[Question]:
    """Read a JSONL file, the official one or the hub's copy."""
    for _, line in lines_of(path):
        row = json.loads(line)
        own = row["question"]
        if isinstance(own, dict):  # the official file
            text, choices = own["stem"], [each["text"] for each in own["choices"]]
        else:
            text, choices = own, row["choices"]["text"]
        yield Question((text, *choices), LETTERS.index(row["answerKey"]), text)


def hellaswag(path: Path) -> Iterator[Question]:
    """Read the official JSONL file, or plain text with six lines per question; grouped by
    activity."""
    if ".jsonl" in path.name:
        for _, line in lines_of(path):
            row = json.loads(line)
            activity = row["activity_label"]
            texts = (f"{activity}: {row['ctx']}", *row["endings"])
            yield Question(tuple(each.strip() for each in texts), int(row["label"]), activity)
        return
    lines = split_lines(bz2.decompress(path.read_bytes()).decode())
    for start in range(0, len(lines), HELLASWAG_LINES):
        context, right, *endings = lines[start : start + HELLASWAG_LINES]
        activity = context.partition(":")[0]
        yield Question((context, *endings), int(right), activity)


def race(folder: Path) -> Iterator[Question]:
    """Read a folder of RACE: one JSON object per file, an article with several questions.

    A question precedes its article, whose end is truncated if both are too long.
    """
    for path in sorted(folder.glob("*/*.txt")):
        row = json.loads(path.read_text(encoding="utf-8"))
        article = " ".join(row["article"].split())
        parts = zip(row["questions"], row["options"], row["answers"], strict=True)
        for question, options, answer in parts:
            texts = (f"{question.strip()} {article}", *(each.strip() for each in options))
            yield Question(texts, LETTERS.index(answer), article)


def questions_of(path: Path, read: Callable[[Path], Iterator[Question]]) -> list[Question]:
    """Return the questions of a file or folder.

    Raises:
        DataError: the format is wrong.
    """
    try:
        return list(read(path))
    except (ElementTree.ParseError, EOFError, LookupError, OSError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not the official file: {type(error).__name__}: {error}. Download it again."
        ) from None


def squad_passages(path: Path) -> Iterator[Question]:
    """Read a file of SQuAD: a question's passages are its own paragraph, the relevant one, and
    others of the same document, in order.

    A hash of the texts draws the others. Questions without an answer in their paragraph, and
    documents of one paragraph, are left out. A document is a group.
    """
    for document in json.loads(decoded_bytes(path))["data"]:
        contexts = [each["context"].strip() for each in document["paragraphs"]]
        if len(set(contexts)) < 2:
            continue
        for place, paragraph in enumerate(document["paragraphs"]):
            for each in paragraph["qas"]:
                if each.get("is_impossible"):
                    continue
                question = each["question"].strip()
                passages = _candidates(question, contexts, place)
                target = tuple(float(passage == contexts[place]) for passage in passages)
                yield Question((question, *passages), target, document["title"])


def _candidates(question: str, contexts: Sequence[str], own: int) -> list[str]:
    """Return the paragraph of a question and other paragraphs, in the order of the document."""
    others = [context for context in dict.fromkeys(contexts) if context != contexts[own]]
    drawn = sorted(others, key=lambda context: draw(question, context))[: CANDIDATES - 1]
    chosen = {contexts[own], *drawn}
    return [context for context in dict.fromkeys(contexts) if context in chosen]
