"""Validation texts: the same ones at every stage, and nothing learns from them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertender.core.errors import ConfigError
from bertender.tasks.loading import load_task
from bertender.tasks.task import (
    DEFAULT_SHARES,
    LEAST_TEXTS,
    Split,
    Task,
    TaskConfig,
    is_selected,
    part,
)
from bertender.text.batch import Example
from tests.tasks.writers import WRITERS

SHARES = st.floats(0, 0.5)
EXAMPLES = st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=40)


def numbered(count: int, labels: int = 2) -> Split:
    return Split(
        tuple((f"text {row}",) for row in range(count)), tuple(r % labels for r in range(count))
    )


@given(examples=EXAMPLES, more=EXAMPLES, share=SHARES)
def test_a_text_is_on_one_side_whatever_stands_beside_it(
    examples: list[Example], more: list[Example], share: float
) -> None:
    sides = {example: is_selected(example, share) for example in examples}
    for example in reversed([*more, *examples]):
        assert is_selected(example, share) is sides.setdefault(example, is_selected(example, share))


@given(example=st.tuples(st.text(), st.text()), shares=st.tuples(SHARES, SHARES))
def test_a_smaller_share_is_a_part_of_a_larger_one(
    example: Example, shares: tuple[float, float]
) -> None:
    small, large = sorted(shares)
    assert is_selected(example, large) or not is_selected(example, small)
    assert not is_selected(example, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_share_is_about_what_was_asked_for(share: float) -> None:
    count = sum(is_selected(example, share) for example in numbered(4000).examples)
    assert count == pytest.approx(4000 * share, abs=4 * (4000 * share * (1 - share)) ** 0.5)


def test_pairs_are_known_by_both_texts() -> None:
    """Half of the pairs change sides with their second text alone."""
    pairs = [[(f"one {row}", f"two {other}") for other in range(2)] for row in range(400)]
    changed = sum(is_selected(a, 0.5) != is_selected(b, 0.5) for a, b in pairs)
    assert 140 < changed < 260
    joined = [((f"one {row}", "two"), (f"one {row}two", "")) for row in range(400)]
    changed = sum(is_selected(a, 0.5) != is_selected(b, 0.5) for a, b in joined)
    assert 140 < changed < 260, "and by where the one ends"


@pytest.mark.parametrize("share", [None, 0.1, 0.5])
def test_both_parts_are_the_file(share: float | None) -> None:
    train = numbered(1000)
    parts = part(train, share, "mine")
    assert parts.share == (share or DEFAULT_SHARES["training"])
    both = [*parts.train.examples, *parts.selection.examples]
    assert Counter(both) == Counter(train.examples)
    assert not set(parts.train.examples) & set(parts.selection.examples)
    labels = dict(zip(train.examples, train.label_ids, strict=True))
    for split in (parts.train, parts.selection):
        assert split.label_ids == tuple(labels[example] for example in split.examples)


def test_too_few_are_refused_with_share_and_count_or_left_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train = numbered(300)
    count = sum(is_selected(example, 0.1) for example in train.examples)
    with pytest.raises(
        ConfigError, match=rf"select=0\.1: {count} of 300 .*{LEAST_TEXTS}.*select=0"
    ):
        part(train, 0.1, "mine")
    with caplog.at_level(logging.WARNING):
        parts = part(train, None, "mine")
    assert (parts.train, len(parts.selection), parts.share) == (train, 0, 0.0)
    assert f"{count} of 300 training texts" in caplog.text and "score" in caplog.text
    caplog.clear()
    assert part(train, 0.0, "mine").share == 0.0 and not caplog.text, "it was asked for"


def test_a_label_keeps_texts_to_learn_from() -> None:
    """Label 1 has one text alone, on whichever side its hash puts it."""
    for row in range(20):
        train = Split((*numbered(400).examples, (f"rare {row}",)), (0,) * 400 + (1,))
        assert 1 in part(train, 0.5, "mine").train.label_ids


def written(folder: Path, rows: list[int], **settings: object) -> Task:
    """A task of so numbered texts, in that order."""
    for name, numbers in (("train", rows), ("dev", range(20))):
        table = [{"text": f"{name} {row}", "label": row % 2} for row in numbers]
        WRITERS[".jsonl"](folder / f"{name}.jsonl", table)
    paths = {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}
    return load_task(TaskConfig.parse({"task": "mine", **paths, **settings}))


def test_every_order_and_length_sets_apart_the_same_texts(tmp_path: Path) -> None:
    rows = list(range(1000))
    first = written(tmp_path, rows)
    again = written(tmp_path, [*reversed(rows)])
    shorter = written(tmp_path, rows[:700], max_train=40)
    apart = set(first.selection.examples)
    assert len(apart) >= LEAST_TEXTS and first.chosen_on == "selection"
    assert apart == set(again.selection.examples)
    assert set(shorter.selection.examples) == {(f"train {row}",) for row in rows[:700]} & apart
    assert len(shorter.train) == 40 and not set(shorter.train.examples) & apart
    assert first.choices is first.selection


def test_a_text_that_is_there_twice_is_on_one_side(tmp_path: Path) -> None:
    task = written(tmp_path, [*range(800), *range(0, 800, 2)])
    assert not set(task.train.examples) & set(task.selection.examples)
    assert max(Counter(task.selection.examples).values()) == 2


def test_so_many_choose_at_most_and_the_others_stay_apart(tmp_path: Path) -> None:
    rows = list(range(1000))
    whole, few = written(tmp_path, rows), written(tmp_path, rows, max_select=30)
    assert len(few.selection) == 30 and set(few.selection.examples) < set(whole.selection.examples)
    assert few.train == whole.train


def test_the_source_says_what_was_set_apart(tmp_path: Path) -> None:
    for count, share in ((1000, DEFAULT_SHARES["training"]), (100, 0.0)):
        task = written(tmp_path, list(range(count)))
        source = json.loads(json.dumps(task.record().source))
        assert source["select"] == share
        assert load_task(TaskConfig.parse(source)) == task


def test_without_any_the_held_out_texts_choose(tmp_path: Path) -> None:
    task = written(tmp_path, list(range(1000)), select=0)
    assert (len(task.train), len(task.selection)) == (1000, 0)
    assert task.chosen_on == "dev" and task.choices is task.dev
    apart = written(tmp_path, list(range(1000)))
    assert apart.fingerprint() != task.fingerprint()


@pytest.mark.parametrize("share", [-0.1, 0.51, "much"])
def test_other_shares_are_refused(share: object) -> None:
    with pytest.raises(ConfigError, match="select="):
        TaskConfig.parse({"select": share})


def test_without_a_held_out_file_a_hash_holds_texts_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are there twice: no text may be on two sides."""
    rows = [{"text": f"row {row % 700}", "label": row % 700 % 2} for row in range(1400)]
    train = WRITERS[".jsonl"](tmp_path / "mine.jsonl", rows)
    task = load_task(TaskConfig(train=train))
    sides = [{*split.examples} for split in (task.train, task.selection, task.dev)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 700, "each text is on one side"
    assert [round(len(split), -2) for split in (task.train, task.selection, task.dev)] == [
        1000,
        100,
        300,
    ]
    assert f"no --dev is set, so that {len(task.dev)} of 1400" in caplog.text
    again = load_task(TaskConfig.parse(task.source))
    assert again.fingerprint() == task.fingerprint(), "from its card"
    short = WRITERS[".jsonl"](tmp_path / "short.jsonl", rows[:20])
    with pytest.raises(ConfigError, match=r"too few to score by; 10 are needed. Give --dev"):
        load_task(TaskConfig(train=short))
