"""Texts without labels that come with a task: all of a file of the data folder, shuffled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import DataError
from bertender.tasks.named import TASKS
from bertender.text.batch import Example
from tests.tasks.writers import write_film_sentences

SENTENCES = [f"film {number} was long." for number in range(50)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    return tmp_path


def film_sentences() -> tuple[Example, ...]:
    return TASKS["sst2"].unlabelled()


def test_a_missing_file_has_no_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert film_sentences() == ()
    write_film_sentences(folder, SENTENCES)
    monkeypatch.delenv("BERTENDER_DATA")
    assert film_sentences() == ()


def test_texts_come_in_a_random_order_that_stays(folder: Path) -> None:
    write_film_sentences(folder, [*SENTENCES, "  ", SENTENCES[3]])
    texts = film_sentences()
    assert texts == film_sentences() and len(texts) == len(SENTENCES)
    assert {text for (text,) in texts} == set(SENTENCES)
    assert [text for (text,) in texts] != SENTENCES, "neighbours would be of one review"
    write_film_sentences(folder, [*SENTENCES, "one more."])
    assert [text for text in film_sentences() if text != ("one more.",)] == list(texts)


def test_a_damaged_file(folder: Path) -> None:
    path = write_film_sentences(folder, SENTENCES)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"movie-sentences\.txt\.xz: damaged or unreadable"):
        film_sentences()


def test_a_table_of_pairs(folder: Path) -> None:
    (folder / "pairs.csv").write_text("left,right\na,b\n", encoding="utf-8")
    columns = ("left", "right")
    row: Any = replace(TASKS["sst2"], unlabelled_file="pairs.csv", text_columns=columns)
    assert row.unlabelled() == (("a", "b"),)
