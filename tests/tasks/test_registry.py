"""Every row of TASKS loads; cuts keep the classes; a source finds its data again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bertender.core.errors import ConfigError, DataError, UnknownNameError
from bertender.tasks import docs
from bertender.tasks.loading import load_task, sample, unlabelled_texts
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, TaskConfig
from tests.tasks.writers import (
    WRITERS,
    make_sectioned_trees,
    write_film_sentences,
    write_sentences,
    write_texts,
)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data for every row of TASKS: GLUE files, and trees of documented source."""
    root = write_sentences(write_texts(tmp_path / "glue"))
    monkeypatch.setenv("BERTENDER_DATA", str(root))
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    trees = make_sectioned_trees(tmp_path / "trees", ("brew", "pour"))
    monkeypatch.setattr(docs, "DOCUMENTED", {name: name for name in trees})
    monkeypatch.setattr(docs, "root_of", lambda distribution, package: trees[distribution])
    monkeypatch.setattr(docs, "version_of", lambda distribution: "1.0")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.usefixtures("local")
def test_every_task_loads(name: str) -> None:
    task = load_task(TaskConfig(task=name))
    spec = TASKS[name]
    assert (task.name, task.labels, task.metric) == (name, spec.labels, spec.metric)
    assert task.text_columns == spec.text_columns
    for split in (task.train, task.dev):
        numbers = {label for own in split.label_ids for label in task.problem.labels_of(own)}
        assert numbers == (set(range(len(task.labels))) if task.problem.names_labels else set())
        if not (task.problem.labels_words or task.problem.takes_list):
            assert all(len(example) == len(task.text_columns) for example in split.examples)
    assert task.record().labels == task.labels


def test_metrics() -> None:
    assert {name: spec.metric for name, spec in TASKS.items()} == {
        "docs": "accuracy",
        "sst2": "accuracy",
        "cola": "matthews",
        "mrpc": "f1",
        "rte": "accuracy",
        "qnli": "accuracy",
        "qqp": "f1",
        **dict.fromkeys(("mnli", "mnli-mismatched", "ag_news"), "accuracy"),
        **{f"xnli-{language}": "accuracy" for language in ("de", "en", "fr", "zh")},
        "ax": "matthews",
        "wnli": "accuracy",
        "stsb": "pearson",
        "semeval2018-ec": "jaccard",
        **dict.fromkeys(("copa", "commonsenseqa", "hellaswag", "race"), "accuracy"),
        **dict.fromkeys(("conll2003", "conll2000", "wnut17", "ncbi", "snips"), "entity_f1"),
        "snips-joint": "intent:accuracy+slots:entity_f1",
        "stsb-embedding": "cosine_spearman",
        "squad-ranking": "ndcg_at_10",
        **dict.fromkeys(("squad", "squad2", "tydiqa"), "answer_f1"),
    }


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.usefixtures("local")
def test_texts_without_labels_are_what_the_row_reads(name: str, tmp_path: Path) -> None:
    write_film_sentences(tmp_path / "glue", ["a film.", "another film."])
    task, further = load_task(TaskConfig(task=name)), TASKS[name].has_unlabelled
    texts = unlabelled_texts(task)
    of_films = name in {"sst2", "stsb-embedding"}
    assert further == (of_films or name == "docs")
    assert bool(texts) == of_films, "the small libraries have no more sentences"
    asked = task.problem.asked_columns(task.text_columns)
    assert not texts or all(len(text) == len(asked) for text in texts)
    assert not set(texts) & {*task.train.examples, *task.dev.examples}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("wnut17", (3394, 1009)),
        pytest.param("ncbi", (5424, 923), marks=pytest.mark.slow),
        ("snips", (13084, 700)),
        pytest.param("snips-joint", (13084, 700), marks=pytest.mark.slow),
        ("semeval2018-ec", (6838, 886)),
        ("copa", (734, 266)),
        ("commonsenseqa", (844, 377)),
        pytest.param("hellaswag", (8669, 1373), marks=pytest.mark.slow),
        ("squad-ranking", (3690, 1421)),
    ],
)
@pytest.mark.usefixtures("data_directory")
def test_official_sentences(name: str, sizes: tuple[int, int]) -> None:
    train, dev = TASKS[name].load()
    assert (len(train), len(dev)) == sizes


def test_sentences_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"CoNLL-2003/eng.train and CoNLL-2003/eng.testa; or .*"):
        TASKS["conll2003"].load()


def test_official_files_of_conll_2003(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IOB1, four columns with one space between, marks of documents."""
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    (tmp_path / "CoNLL-2003").mkdir()
    for name in ("eng.train", "eng.testa"):
        (tmp_path / "CoNLL-2003" / name).write_text(
            "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n"
            "Greek JJ I-NP B-MISC\n. . O O\n\n-DOCSTART- -X- -X- O\n\nPeter NNP I-NP I-PER\n"
            "Blackburn NNP I-NP I-PER\n"
        )
    task = load_task(TaskConfig(task="conll2003"))
    tags = [task.problem.by_names(each, task.labels) for each in task.dev.label_ids]
    assert tags == [("B-ORG", "O", "B-MISC", "B-MISC", "O"), ("B-PER", "I-PER")]


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match=r"'sst'. Did you mean 'sst2'\?.*--train and --dev"):
        load_task(TaskConfig(task="sst"))


SORTED = Split(
    tuple((f"text {row}",) for row in range(100)),
    tuple(0 if row < 97 else row - 96 for row in range(100)),
)


def test_a_sample_of_a_sorted_file_keeps_its_classes() -> None:
    cut = sample(SORTED, 10)
    assert len(cut) == len(set(cut.examples)) == 10
    assert set(cut.label_ids) == {0, 1, 2, 3}
    assert cut == sample(SORTED, 10) != SORTED.first(10)
    assert set(zip(cut.examples, cut.label_ids, strict=True)) <= set(
        zip(SORTED.examples, SORTED.label_ids, strict=True)
    )


@pytest.mark.parametrize("count", [None, 100, 1000])
def test_a_sample_of_everything_is_everything(count: int | None) -> None:
    assert sample(SORTED, count) is SORTED


def test_cuts_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"t{row}", "label": row // 10} for row in range(30)]
    for name in ("train", "dev"):
        WRITERS[".jsonl"](tmp_path / f"{name}.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    config = TaskConfig(
        task="mine", train=Path("train.jsonl"), dev=Path("dev.jsonl"), max_train=9, max_dev=5
    )
    task = load_task(config)
    assert (len(task.train), len(task.dev)) == (9, 5)
    assert set(Counter(task.train.label_ids)) == {0, 1, 2}
    monkeypatch.chdir(Path(tmp_path.anchor))
    source = json.loads(json.dumps(task.record().source))
    again = load_task(TaskConfig.parse(source))
    assert again == task
    assert again.fingerprint() == task.fingerprint()


def test_the_source_keeps_the_name_given_by_the_file(tmp_path: Path) -> None:
    rows = [{"text": f"t{row}", "label": row % 2} for row in range(4)]
    train, dev = (WRITERS[".csv"](tmp_path / f"{name}.csv", rows) for name in ("beers", "dev"))
    assert load_task(TaskConfig(train=train, dev=dev)).source["task"] == "beers"


def test_a_metric_is_chosen_recorded_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"row {n},{n % 3}\n" for n in range(30)))
    own = {"train": file, "dev": file}
    task = load_task(TaskConfig(**own, metric="macro_f1"))
    assert task.metric == task.record().metric == task.record().source["metric"] == "macro_f1"
    assert load_task(TaskConfig.parse(task.source)).metric == "macro_f1"
    assert "metric" not in load_task(TaskConfig(**own)).source
    with pytest.raises(UnknownNameError, match=r"metric: no metric .* 'macrof1'.*'macro_f1'"):
        load_task(TaskConfig(**own, metric="macrof1"))
    with pytest.raises(UnknownNameError, match="Known: pearson, spearman"):
        load_task(TaskConfig(**own, metric="accuracy", problem_type="regression"))
    with pytest.raises(ConfigError, match="less is better"):
        load_task(TaskConfig(**own, metric="mean_absolute_error", problem_type="regression"))
