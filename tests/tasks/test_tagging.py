"""Tagged sentences: what is read from two files a split, and which mistakes in them are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bertender.core.errors import DataError
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig

WORDS = "play jazz by miles davis\nlouder\n"
TAGS = "O B-genre O B-artist I-artist\nO\n"
LABELS = ("O", "B-artist", "I-artist", "B-genre", "I-genre")
SENTENCES = {"train": 13084, "valid": 700, "test": 700}


def write(folder: Path, split: str, words: str = WORDS, tags: str = TAGS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.seq.in").write_text(words, encoding="utf-8")
    (folder / f"{split}.seq.out").write_text(tags, encoding="utf-8")
    return folder


def load_tagging(folder: Path, held_out: str = "valid") -> Task:
    files = {"train": folder / "train.seq.in", "dev": folder / f"{held_out}.seq.in"}
    return load_task(TaskConfig(**files, task=folder.name, select=0.0))


@pytest.mark.parametrize("held_out", ["valid", "test"])
def test_words_tags_and_labels(held_out: str, tmp_path: Path) -> None:
    folder = write(
        write(tmp_path / "toy", "train"), held_out, "MILES  sings \r\n", "B-artist O\r\n"
    )
    task = load_tagging(folder, held_out=held_out)
    assert (task.name, task.labels) == ("toy", LABELS)
    assert task.train.examples == (("play", "jazz", "by", "miles", "davis"), ("louder",))
    assert task.train.label_ids == ((0, 3, 0, 1, 2), (0,))
    assert (task.dev.examples, task.dev.label_ids) == ((("MILES", "sings"),), ((1, 0),))
    assert len(task.train.first(1)) == 1 and task.train.first(None) == task.train


def test_the_record_says_what_the_model_answers(tmp_path: Path) -> None:
    task = load_tagging(write(write(tmp_path / "toy", "train"), "valid"))
    record = task.record()
    assert (record.problem_type, record.labels) == ("token_classification", LABELS)
    assert record.metric == "entity_f1"


def test_plain_tags_are_scored_by_words(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    for split in ("train", "valid"):
        write(folder, split, "the cat sat\n", "DET NOUN VERB\n")
    task = load_tagging(folder)
    assert (task.metric, task.labels) == ("tag_accuracy", ("O", "DET", "NOUN", "VERB"))


def test_the_fingerprint_changes_with_any_word_or_tag(tmp_path: Path) -> None:
    task = load_tagging(write(write(tmp_path / "toy", "train"), "valid"))
    other_words = replace(task.train, examples=(("play",), ("louder",)))
    other_tags = replace(task.train, label_ids=((0,) * 5, (0,)))
    tasks = (task, *(replace(task, train=train) for train in (other_words, other_tags)))
    assert len({each.fingerprint() for each in tasks}) == 3
    assert task.fingerprint() == replace(task).fingerprint()


def test_labels_do_not_depend_on_which_tags_occur() -> None:
    assert TOKEN_CLASSIFICATION.label_names([("I-b", "O"), ("B-a",)]) == (
        "O",
        "B-a",
        "I-a",
        "B-b",
        "I-b",
    )


WRONG: dict[str, tuple[str, str, str]] = {
    "a sentence without tags": ("a\nb\n", "O\n", r"\.seq\.out: 1 lines of tags for the 2 sent"),
    "a word without a tag": ("a\nb c\n", "O\nO\n", r"line 2, column 'tags': 1 tags for 2 words"),
    "an empty line": ("a\n\nb\n", "O\n\nO\n", r"\.seq\.in, line 2, column 'words': no words"),
    "no prefix": (
        "a b c",
        "O artist B-x",
        r"column 'tags': word 2: 'artist' is not a BIO tag\. Allowed: O",
    ),
    "no type": ("a", "B-", "column 'tags': word 1: 'B-' is not a BIO tag"),
    "inside after nothing": (
        "a b\nc",
        "O B-x\nI-x",
        r"line 2, .*word 1: 'I-x' follows 'O'.*'B-x'",
    ),
    "an end of nothing": ("a b", "S-x E-x", "word 2: 'E-x' follows 'S-x'"),
    "inside after another": ("a b", "B-y I-x", "word 2: 'I-x' follows 'B-y'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_refused(case: str, tmp_path: Path) -> None:
    words, tags, message = WRONG[case]
    folder = write(tmp_path / "toy", "train", words, tags)
    with pytest.raises(DataError, match=message):
        load_tagging(write(folder, "valid"))


def test_a_type_that_was_never_trained_is_refused(tmp_path: Path) -> None:
    folder = write(write(tmp_path / "toy", "train"), "valid", "hi\nomaha", "O\nB-city")
    with pytest.raises(DataError, match=r"seq\.in, line 2, .*'B-city' is not one of the labels"):
        load_tagging(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"valid\.seq\.in: cannot be read"):
        load_tagging(write(tmp_path / "toy", "train"))


@pytest.mark.slow
@pytest.mark.data
def test_snips(data_directory: Path) -> None:
    folder = data_directory / "SNIPS-slots"
    task = load_tagging(folder)
    test = load_tagging(folder, held_out="test")
    sizes = {"train": len(task.train), "valid": len(task.dev), "test": len(test.dev)}
    assert sizes == SENTENCES
    assert task.labels == test.labels and len(task.labels) == 1 + 2 * 39
    used = {tag for tags in task.train.label_ids for tag in tags}
    assert len(used) == 72, "some types have entities of one word alone"


SENTENCE = (["play", "jazz"], ["O", "B-genre"])
COLUMNS: dict[str, tuple[tuple[str, ...], dict[str, str], tuple[str, str]]] = {
    "the usual ones": (("words", "tags"), {}, ("words", "tags")),
    "those of texts": (("text", "label"), {}, ("text", "label")),
    "one of each": (("text", "tags"), {}, ("text", "tags")),
    "the usual ones of several": (("text", "words", "tags"), {}, ("words", "tags")),
    "explicit at the default": (
        ("words", "text", "tags", "label"),
        {"text_column": "text", "label_column": "label"},
        ("text", "label"),
    ),
    "explicit": (
        ("tokens", "ner"),
        {"text_column": "tokens", "label_column": "ner"},
        ("tokens", "ner"),
    ),
}
"""Columns of a JSONL file, settings, and the columns that are read."""


def jsonl(folder: Path, columns: tuple[str, ...], read: tuple[str, str]) -> dict[str, Path]:
    words, tags = SENTENCE
    cells = {**dict.fromkeys(columns, "not read"), read[0]: words, read[1]: tags}
    paths = {name: folder / f"{name}.jsonl" for name in ("train", "dev")}
    for path in paths.values():
        path.write_text(json.dumps(cells) + "\n", encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", COLUMNS)
def test_the_columns_of_lists(name: str, tmp_path: Path) -> None:
    columns, settings, read = COLUMNS[name]
    config = {**jsonl(tmp_path, columns, read), **settings, "select": 0.0}
    task = load_task(TaskConfig.parse({**config, "problem_type": "token_classification"}))
    assert task.train.examples == (("play", "jazz"),)
    assert (task.text_columns[0], task.source["label_column"]) == read
    assert load_task(TaskConfig.parse(task.source)).train == task.train, "as the card records it"


def test_columns_that_are_not_there_are_named_with_those_that_are(tmp_path: Path) -> None:
    files = jsonl(tmp_path, ("tokens", "ner"), ("tokens", "ner"))
    config = TaskConfig(**files, problem_type="token_classification")
    with pytest.raises(DataError, match=r"no column 'words'.*Columns: 'tokens', 'ner'"):
        load_task(config)
