"""Files whose labels are not read: the columns and the examples of a model in each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.tasks.text_files import read_unlabelled
from bertender.text.batch import Example
from tests.toy_kinds import TASKS

UNLABELLED = [
    ("token_classification", "a.conll", "big\tX\napple\tX\n\nsaw\tX\n",
     [("big", "apple"), ("saw",)]),
    ("token_classification", "a.jsonl", '{"words": ["big", "apple"]}\n', [("big", "apple")]),
    ("token_classification", "a.txt", "big apple\n\nsaw\n", [("big", "apple"), ("saw",)]),
    ("multiple_choice", "a.jsonl", '{"question": "q", "choices": ["x", "y", "z"]}\n',
     [("q", "x", "y", "z")]),
    ("question_answering", "a.csv", "question,context\nwho?,me\n", [("who?", "me")]),
    ("sentence_embedding", "a.csv", "sentence1,sentence2\nbig,apple\n", [("big",)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "text", "expected"), UNLABELLED)
def test_unlabelled_texts_are_read_in_the_formats_of_labelled_ones(
    kind: str, name: str, text: str, expected: list[Example], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read_unlabelled(path, TASKS[kind]) == tuple(expected)
