"""The task `docs-library` on small trees made here, and once on what is really installed."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from bertender.core.errors import DataError
from bertender.tasks import docs
from bertender.tasks.docs import LIBRARIES, Library
from bertender.tasks.passages import Passage, distinct, read_passages
from tests.tasks.writers import make_trees

LABELS = ("brew", "pour")


@pytest.fixture
def passages(tmp_path: Path) -> list[Passage]:
    return read_passages(make_trees(tmp_path, LABELS))


def test_balance_and_sides(passages: list[Passage]) -> None:
    train, dev = docs.balanced_splits(passages, LABELS, 20, 3)
    assert Counter(train.label_ids) == {0: 20, 1: 20}
    assert Counter(dev.label_ids) == {0: 3, 1: 3}
    file_of = {passage.text: (passage.library, passage.file) for passage in passages}
    sides = [{file_of[text] for (text,) in split.examples} for split in (train, dev)]
    assert sides[0] and sides[1] and sides[0].isdisjoint(sides[1])
    for split in (train, dev):
        for (text,), label_id in zip(split.examples, split.label_ids, strict=True):
            assert text.startswith(LABELS[label_id])


def test_the_choice_is_mixed_and_does_not_hang_on_the_order(passages: list[Passage]) -> None:
    chosen = docs.balanced_splits(passages, LABELS, 20, 3)
    assert docs.balanced_splits(passages[::-1], LABELS, 20, 3) == chosen
    assert 0 < sum(chosen[0].label_ids[:20]) < 20


def test_the_scarcest_class_sets_the_size(
    passages: list[Passage], caplog: pytest.LogCaptureFixture
) -> None:
    few = [p for p in passages if p.library == "brew" or docs.is_held_out(p) or p.file < "f2"]
    train, _ = docs.balanced_splits(few, LABELS, 40, 1)
    scarce = sum(p.library == "pour" and not docs.is_held_out(p) for p in few)
    assert Counter(train.label_ids) == {0: scarce, 1: scarce}
    assert "of pour" in caplog.text


def test_one_file_does_not_stand_for_its_library() -> None:
    long = [Passage("brew", "long.py", n, f"brew {n}") for n in range(100)]
    short = [Passage("brew", f"{n}.py", 0, f"brew in {n}") for n in range(100)]
    pour = [Passage("pour", f"{n}.py", 0, f"pour in {n}") for n in range(200)]
    train, dev = docs.balanced_splits([*long, *short, *pour], LABELS, 200, 50)
    texts = {text for split in (train, dev) for (text,) in split.examples}
    assert 0 < len(texts & {passage.text for passage in long}) <= docs.MOST_A_FILE


def test_a_library_without_documentation() -> None:
    passages = [Passage("brew", f"{n}.py", 0, f"brew {n}") for n in range(50)]
    with pytest.raises(DataError, match="no documentation of 'pour'"):
        docs.balanced_splits(passages, LABELS)


def test_corpus_is_the_training_side_joined(passages: list[Passage]) -> None:
    texts = list(docs.corpus(passages))
    training = {p.file for p in passages if not docs.is_held_out(p) and p.library == "brew"}
    assert sum(text.startswith("brew") for text in texts) == len(training)
    assert all(len(text.split()) == 45 for text in texts if text)
    assert texts.count("") == len({p[:2] for p in passages if not docs.is_held_out(p)})
    assert texts[-1] == ""


def test_roots_and_versions() -> None:
    roots = {name: library.root() for name, library in LIBRARIES.items()}
    assert all(root.is_dir() for root in roots.values())
    assert (roots["stdlib"] / "argparse.py").is_file()
    assert (roots["torch"] / "nn" / "modules" / "linear.py").is_file()
    assert all(library.version() for library in LIBRARIES.values())


def test_a_library_that_is_not_installed() -> None:
    with pytest.raises(DataError, match="antigravity, which is not installed"):
        Library("antigravity_xyz", "antigravity").root()


@pytest.mark.slow
def test_the_installed_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    passages = docs.docs_passages()
    monkeypatch.setattr(docs, "read_passages", lambda *given: pytest.fail("the cache was not read"))
    assert docs.docs_passages() == passages == distinct(passages)
    train, dev = docs.load_docs_library()
    assert Counter(train.label_ids) == dict.fromkeys(range(6), docs.TRAIN_A_CLASS)
    assert Counter(dev.label_ids) == dict.fromkeys(range(6), docs.DEV_A_CLASS)
    sides = defaultdict(set)
    chosen = {text: side for side, split in enumerate((train, dev)) for (text,) in split.examples}
    for passage in passages:
        if passage.text in chosen:
            sides[passage.library, passage.file].add(chosen[passage.text])
    assert all(len(found) == 1 for found in sides.values())
    assert sum(len(text.split()) for text in docs.docs_corpus()) > 1_000_000
