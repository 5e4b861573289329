"""The task `docs` and its corpus on small trees made here, and once on what is installed."""

from __future__ import annotations

from collections import Counter, defaultdict
from importlib import metadata
from pathlib import Path

import pytest

from bertender.core.errors import DataError
from bertender.tasks import docs
from bertender.tasks.docs import further_sentences, load_docs, load_further, section_splits
from bertender.tasks.docstrings import (
    SECTIONS,
    Sentence,
    distinct,
    read_passages,
    read_sentences,
    unlike,
)
from tests.tasks.writers import make_sectioned_trees, make_trees

LIBRARIES = ("brew", "pour")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> list[Sentence]:
    return read_sentences(make_sectioned_trees(tmp_path_factory.mktemp("trees"), LIBRARIES))


def test_balance_and_sides(sentences: list[Sentence]) -> None:
    train, dev = section_splits(sentences, 20, 4)
    assert Counter(train.label_ids) == dict.fromkeys(range(len(SECTIONS)), 20)
    assert Counter(dev.label_ids) == dict.fromkeys(range(len(SECTIONS)), 4)
    rows = {row.text: row for row in sentences}
    sides = [{rows[text][:2] for (text,) in split.examples} for split in (train, dev)]
    assert sides[0] and sides[1] and sides[0].isdisjoint(sides[1])
    for split in (train, dev):
        for (text,), label_id in zip(split.examples, split.label_ids, strict=True):
            assert rows[text].section == SECTIONS[label_id]


def test_the_choice_is_mixed_and_does_not_hang_on_the_order(sentences: list[Sentence]) -> None:
    chosen = section_splits(sentences, 20, 4)
    assert section_splits(sentences[::-1], 20, 4) == chosen
    assert len(set(chosen[0].label_ids[:20])) > 1


def test_libraries_take_turns(sentences: list[Sentence]) -> None:
    few = [row for row in sentences if row.library == "brew" or row.file < "f2"]
    train, _ = section_splits(few, 10, 1)
    rows = {row.text: row for row in few}
    shares = Counter((rows[text].library, rows[text].section) for (text,) in train.examples)
    assert len(shares) == len(LIBRARIES) * len(SECTIONS)
    assert set(shares.values()) == {5}


def test_one_file_does_not_stand_for_its_library(sentences: list[Sentence]) -> None:
    long = [row._replace(file="f.py") for row in sentences if row.library == "brew"]
    train, dev = section_splits([*long, *(row for row in sentences if row.library == "pour")])
    texts = {text for split in (train, dev) for (text,) in split.examples}
    of_one = Counter(row.section for row in unlike(long) if row.text in texts)
    assert set(of_one) == set(SECTIONS)
    assert max(of_one.values()) <= docs.MOST_A_FILE


def test_what_balancing_leaves_is_of_training_files_and_in_turns(
    sentences: list[Sentence],
) -> None:
    train, dev = section_splits(sentences, 20, 4)
    further = further_sentences(sentences, 20)
    rows = {row.text: row for row in sentences}
    held_out = {rows[text][:2] for (text,) in dev.examples}
    assert further and not set(further) & set(train.examples)
    assert held_out.isdisjoint(rows[text][:2] for (text,) in further)
    assert [rows[text].section for (text,) in further[:5]] == list(SECTIONS)


def test_the_scarcest_section_sets_the_size(
    sentences: list[Sentence], caplog: pytest.LogCaptureFixture
) -> None:
    few = [row for row in sentences if row.section != "exception" or row.file < "f2"]
    train, _ = section_splits(few, 50, 1)
    (count,) = set(Counter(train.label_ids).values())
    assert 0 < count < 50
    assert f"only {count} sentences of exception" in caplog.text


def test_a_section_without_documentation(sentences: list[Sentence]) -> None:
    with pytest.raises(DataError, match="no documentation of 'note'"):
        section_splits([row for row in sentences if row.section != "note"])


@pytest.mark.slow
def test_the_installed_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    rows = docs.docs_sentences()
    monkeypatch.setattr(
        docs, "read_sentences", lambda *given: pytest.fail("the cache was not read")
    )
    assert docs.docs_sentences() == rows
    assert {row.library for row in rows} == set(docs.DOCUMENTED)
    train, dev = load_docs()
    assert Counter(train.label_ids) == dict.fromkeys(range(5), docs.TRAIN_A_CLASS)
    assert Counter(dev.label_ids) == dict.fromkeys(range(5), docs.DEV_A_CLASS)
    side_of = {text: side for side, split in enumerate((train, dev)) for (text,) in split.examples}
    assert len(side_of) == len(train) + len(dev), "no sentence is on both sides, or twice on one"
    further = {text for (text,) in load_further()}
    assert len(further) > len(train) and not further & side_of.keys()
    sides = defaultdict(set)
    libraries: Counter[str] = Counter()
    for row in unlike(rows):
        if row.text in side_of:
            sides[row.library, row.file].add(side_of[row.text])
            libraries[row.library] += 1
    assert all(len(found) == 1 for found in sides.values())
    assert len(libraries) >= 6 and max(libraries.values()) < 0.25 * len(side_of)


def test_corpus_is_the_training_side_joined(tmp_path: Path) -> None:
    passages = read_passages(make_trees(tmp_path, LIBRARIES))
    texts = list(docs.corpus(passages))
    training = {p.file for p in passages if not docs.is_held_out(p) and p.library == "brew"}
    assert sum(text.startswith("brew") for text in texts) == len(training)
    assert all(len(text.split()) == 45 for text in texts if text)
    assert texts.count("") == len({p[:2] for p in passages if not docs.is_held_out(p)})
    assert texts[-1] == ""


def test_roots_and_versions() -> None:
    roots = {name: docs.root_of(name, package) for name, package in docs.CORPUS.items()}
    assert all(root.is_dir() for root in roots.values())
    assert (roots["stdlib"] / "argparse.py").is_file()
    assert (roots["torch"] / "nn" / "modules" / "linear.py").is_file()
    assert all(map(docs.version_of, docs.CORPUS))


def test_a_package_under_another_name_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "onnxruntime":
            raise metadata.PackageNotFoundError(name)
        return f"1.0 of {name}"

    monkeypatch.setattr(metadata, "version", version)
    assert docs.version_of("onnxruntime") == "1.0 of onnxruntime-gpu"


def test_a_library_that_is_not_installed() -> None:
    with pytest.raises(DataError, match="antigravity, which is not installed"):
        docs.root_of("antigravity", "antigravity_xyz")


@pytest.mark.slow
def test_the_corpus_of_the_installed_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    passages = docs.docs_passages()
    monkeypatch.setattr(docs, "read_passages", lambda *given: pytest.fail("the cache was not read"))
    assert docs.docs_passages() == passages == distinct(passages)
    assert sum(len(text.split()) for text in docs.docs_corpus()) > 1_000_000
