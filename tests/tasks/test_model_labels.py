"""Which label of the data is which of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.errors import ConfigError, DataError
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig, with_model_labels


def task_of(*labels: str) -> Task:
    """A task with one example of each label."""
    split = Split(tuple((label,) for label in labels), tuple(range(len(labels))))
    return Task("t", labels, "accuracy", ("text",), split, split, selection=split)


@pytest.mark.parametrize(
    ("own", "model", "label_map", "expected"),
    [
        (("a", "b"), ("a", "b"), None, (0, 1)),
        (("a", "b"), ("b", "c", "a"), None, (2, 0)),  # fewer, in another order
        (("good", "bad"), ("Bad", "GOOD"), None, (1, 0)),
        (("caf\u00e9", "th\u00e9"), ("the\u0301", "cafe\u0301"), None, (1, 0)),
        (("0", "1"), ("NEGATIVE", "POSITIVE"), None, (0, 1)),
        (("0",), ("NEGATIVE", "POSITIVE"), None, (0,)),  # a file of one class
        (("good",), ("sad", "glad"), "bad=sad,good=glad", (1,)),  # a map for more of them
        (("bad", "good"), ("LABEL_0", "LABEL_1"), None, (0, 1)),
        (("bad", "good"), ("LABEL_0", "LABEL_1"), "bad=LABEL_1,good=LABEL_0", (1, 0)),
        (("bad", "good"), ("pos", "bad"), "good = pos", (1, 0)),
        (("a,b", "c=d"), ("x", "y"), '{"a,b": "y", "c=d": "x"}', (1, 0)),
    ],
)
def test_labels_are_numbered_as_the_model_has_them(
    own: tuple[str, ...],
    model: tuple[str, ...],
    label_map: str | None,
    expected: tuple[int, ...],
) -> None:
    task = with_model_labels(task_of(*own), model, label_map, "model")
    assert task.labels == model
    assert task.train.label_ids == task.dev.label_ids == task.selection.label_ids == expected


def test_a_tagger_may_lack_tags_that_no_word_has(caplog: pytest.LogCaptureFixture) -> None:
    """Such as O where each word has a part of speech, or the I of a type of single words."""
    split = Split((("a", "b"),), ((1, 2),))
    labels = ("O", "DET", "NOUN")
    task = Task(
        "t", labels, "entity_f1", ("words",), split, split, problem_type="token_classification"
    )
    assert with_model_labels(task, ("NOUN", "DET"), None, "model").dev.label_ids == ((1, 0),)
    assert not caplog.text
    with pytest.raises(ConfigError, match=r"'O', 'DET', 'NOUN', and model has 'NOUN', 'VERB'"):
        with_model_labels(task, ("NOUN", "VERB"), None, "model")


def test_a_guess_is_said_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """What is made of it finds its data again by the record, without a second guess."""
    task = with_model_labels(task_of("bad", "good"), ("LABEL_0", "LABEL_1"), None, "theirs")
    assert "bad=LABEL_0, good=LABEL_1" in caplog.text
    caplog.clear()
    again = with_model_labels(task_of("bad", "good"), task.labels, task.source["label_map"], "it")
    assert again.dev == task.dev
    assert not caplog.text


def test_columns_of_labels_are_matched_in_the_order_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by alphabet; a column without a row has its position too."""
    data = tmp_path / "dev.csv"
    data.write_text("text,z,a,m\n" + "one,1,0,0\ntwo,0,0,1\n" * 5)
    config = TaskConfig.parse(
        {
            "dev": data,
            "label_column": "z, a,m",
            "problem_type": "multi_label_classification",
            "select": 0,
        }
    )
    unnamed = ("LABEL_0", "LABEL_1", "LABEL_2")
    task = with_model_labels(load_task(config, has_model=True), unnamed, None, "theirs")
    assert task.dev.label_ids[:2] == ((0,), (2,))
    assert "z=LABEL_0, a=LABEL_1, m=LABEL_2" in caplog.text
    again = with_model_labels(
        load_task(config, has_model=True), unnamed, task.source["label_map"], "it"
    )
    assert again.dev == task.dev


def test_each_file_may_lack_a_label_of_the_model(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\n" + "one,a\ntwo,b\n" * 5)
    dev.write_text("text,label\n" + "three,b\nfour,c\n" * 5)
    config = TaskConfig.parse({"train": train, "dev": dev, "select": 0})
    task = with_model_labels(load_task(config, has_model=True), ("a", "b", "c"), None, "theirs")
    assert task.dev.label_ids[:2] == (1, 2)
    with pytest.raises(DataError, match="label 'c' is not one of the labels"):
        load_task(config)


def test_equal_names_say_and_record_nothing(caplog: pytest.LogCaptureFixture) -> None:
    task = with_model_labels(task_of("a", "b"), ("b", "a"), None, "model")
    assert not caplog.text
    assert "label_map" not in task.source


@pytest.mark.parametrize(
    ("own", "model", "label_map", "message"),
    [
        (("bad", "good"), ("sad", "glad"), None, "--label-map bad=sad"),
        (("bad", "good"), ("LABEL_0", "LABEL_1", "LABEL_2"), None, "--label-map"),
        (("0", "5"), ("a", "b"), None, "--label-map"),
        (("1", "2"), ("a", "b", "c", "d"), None, "--label-map"),  # from 0 on, or from 1?
        (("bad", "good"), ("sad", "glad"), "goood=glad,bad=sad", "Did you mean 'good'"),
        (("bad", "good"), ("sad", "glad"), "good=gladd,bad=sad", "Did you mean 'glad'"),
        (("bad", "good"), ("sad", "glad"), "good=glad", "lacks 'bad'"),
    ],
)
def test_labels_that_fit_no_model_are_refused(
    own: tuple[str, ...], model: tuple[str, ...], label_map: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        with_model_labels(task_of(*own), model, label_map, "model")


@pytest.mark.parametrize("label_map", ["good", "good=", "=glad", '{"good": 1}', "{good"])
def test_a_map_that_cannot_be_read_is_a_wrong_setting(label_map: str) -> None:
    with pytest.raises(ConfigError, match="label_map="):
        TaskConfig.parse({"label_map": label_map})
