"""Queries with passages in files that were made for something else: SQuAD's questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertender.tasks.choice_files import Question
from bertender.tasks.docs import draw
from bertender.tasks.rows import decoded_bytes

CANDIDATES = 10
"""Paragraphs of a question, at most."""


def squad_passages(path: Path) -> Iterator[Question]:
    """Read a file of SQuAD: a question's passages are the paragraph that it stands under, which is
    the relevant one, and others of the same document, in their order there.

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
    """Return the paragraph of a question and others, in the order of the document."""
    others = [context for context in dict.fromkeys(contexts) if context != contexts[own]]
    drawn = sorted(others, key=lambda context: draw(question, context))[: CANDIDATES - 1]
    chosen = {contexts[own], *drawn}
    return [context for context in dict.fromkeys(contexts) if context in chosen]
