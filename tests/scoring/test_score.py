"""`score`: parts that are whole, resumed and shared, in the predictor's own words."""

from __future__ import annotations

import json
import lzma
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest

import bertender
from bertender.core.artifact import Artifact, copy_artifact
from bertender.core.card import Calibration
from bertender.core.errors import ConfigError, DataError, ModelError, RowError
from bertender.models.classifier import Classifier, open_classifier
from bertender.problems.problem import log_softmax
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.scoring.job import Job
from bertender.scoring.score import ScoreRun
from bertender.scoring.scorer import Scorer, rounded
from bertender.tasks.task import Task
from bertender.tasks.text_files import TextColumns, open_source
from bertender.text.batch import Example
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig
from tests.front import fail, succeed
from tests.tasks.writers import WRITERS
from tests.toys import set_task, tiny_bert, tiny_tokenizer, write_model

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def opened_once() -> Iterator[None]:
    """Open each model once."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(lambda path, settings: open_classifier(Artifact.load(path), **dict(settings)))
        patch.setattr(
            "bertender.scoring.scorer.open_classifier",
            lambda artifact, **settings: once(artifact.path, tuple(settings.items())),
        )
        yield


@pytest.fixture(scope="module")
def texts(task: Task) -> list[str]:
    """25 texts, so that parts of 10 end in one that is not full."""
    return [text for (text,) in task.train.examples[:25]]


def source_of(texts: Sequence[str], folder: Path, suffix: str = ".csv") -> Path:
    rows = [{"id": str(row), "text": text, "label": "gold"} for row, text in enumerate(texts)]
    return WRITERS[suffix](folder / f"texts{suffix}", rows)


def rows_of(folder: Path) -> Rows:
    """The rows of all parts, in their order."""
    rows: Rows = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".parquet":
            rows += pyarrow.parquet.read_table(path).to_pylist()
        else:
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def scored(
    artifact: Artifact, source: Path, out: Path, force: bool = False, **settings: Any
) -> ScoreRun:
    small = {"texts_per_part": 10, **settings}
    return bertender.score(artifact, source, out=out, force=force, **small)


def logits_alone(model: Classifier, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.concatenate([model.logits([(text,)]) for text in texts])


@pytest.mark.parametrize(
    ("suffix", "form"), [*((suffix, "jsonl") for suffix in WRITERS), (".parquet", "parquet")]
)
def test_rows_have_their_own_columns_and_what_the_model_says(
    teacher: Artifact, texts: list[str], tmp_path: Path, suffix: str, form: str
) -> None:
    run = scored(teacher, source_of(texts, tmp_path, suffix), tmp_path / "out", format=form)
    rows = rows_of(tmp_path / "out")
    model = open_classifier(teacher)
    wanted = np.exp(log_softmax(logits_alone(model, texts)))
    assert [row["text"] for row in rows] == texts and {row["label"] for row in rows} == {"gold"}
    assert [row["id"] for row in rows] == [str(row) for row in range(25)]
    found = [[row["probabilities"][label] for label in model.labels] for row in rows]
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    best = [model.labels[each] for each in wanted.argmax(axis=1)]
    assert [row["predicted"] for row in rows] == best
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    parts = [f"part-0000{number}.{form}" for number in range(3)]
    assert names == ["_SUCCESS", "_parts", "_score.json", *parts]
    assert (run.parts, run.resumed, run.texts, run.complete) == (3, 0, 25, True)


def test_a_graph_and_a_bag_of_words_are_scored_too(
    exported: Artifact, task: Task, texts: list[str], tmp_path: Path
) -> None:
    words = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    for artifact in (exported, words):
        scored(artifact, source_of(texts, tmp_path), tmp_path / "of" / artifact.name)
        model = open_classifier(artifact)
        wanted = np.exp(log_softmax(logits_alone(model, texts)))
        rows = rows_of(tmp_path / "of" / artifact.name)
        found = [[*row["probabilities"].values()] for row in rows]
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_files_of_a_folder_and_a_pattern(
    teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    """One stream: a part may end in the middle of the next file."""
    folder = tmp_path / "in"
    for number in range(5):
        (folder / "more").mkdir(parents=True, exist_ok=True)
        source_of(texts[5 * number :][:5], folder).rename(folder / f"{number}.csv")
    (folder / "notes.md").touch()
    whole = scored(teacher, folder, tmp_path / "whole")
    some = scored(teacher, folder / "[12].csv", tmp_path / "some")
    assert [row["text"] for row in rows_of(tmp_path / "whole")] == texts
    assert [row["text"] for row in rows_of(tmp_path / "some")] == texts[5:15]
    assert (whole.parts, some.parts) == (3, 1)
    with pytest.raises(DataError, match="no file of texts is there"):
        scored(teacher, folder / "more", tmp_path / "none")
    with pytest.raises(DataError, match="No such file"):
        scored(teacher, tmp_path / "other.csv", tmp_path / "none")


@pytest.mark.parametrize("suffix", [".txt", ".txt.xz", ".csv.xz", ".jsonl.xz"])
def test_lines_of_text_and_packed_files(
    teacher: Artifact, texts: list[str], tmp_path: Path, suffix: str
) -> None:
    """Lines without a text have no prediction, and are counted."""
    path = tmp_path / f"texts{suffix}"
    content = "\n\n".join(texts).encode()
    if ".txt" not in suffix:
        content = source_of(texts, tmp_path, suffix.removesuffix(".xz")).read_bytes()
    path.write_bytes(lzma.compress(content) if suffix.endswith(".xz") else content)
    run = scored(teacher, path, tmp_path / "out")
    assert [row["text"] for row in rows_of(tmp_path / "out")] == texts
    assert (run.texts, run.blank) == (25, 24 if ".txt" in suffix else 0)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_shards_share_the_parts(
    teacher: Artifact, texts: list[str], tmp_path: Path, suffix: str
) -> None:
    source, out = source_of(texts, tmp_path, suffix), tmp_path / "out"
    second = scored(teacher, source, out, shard="2/2")
    assert [row["text"] for row in rows_of(out)] == texts[10:20]
    assert not second.complete and (second.parts_done, second.parts_in_all) == (1, 3)
    assert not (out / "_SUCCESS").exists()
    first = scored(teacher, source, out, shard="1/2")
    assert first.complete and first.parts == 2 and (out / "_SUCCESS").exists()
    assert [row["text"] for row in rows_of(out)] == texts


def test_what_is_there_is_not_computed_again(
    teacher: Artifact, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves whole parts; one without its record, or of another size, is made again."""
    source, out = source_of(texts, tmp_path), tmp_path / "out"
    computed: list[int] = []
    encode = Scorer.encode

    def stopping(self: Scorer, examples: Sequence[Example]) -> Any:
        computed.append(len(examples))
        if len(computed) == 3:
            raise KeyboardInterrupt
        return encode(self, examples)

    monkeypatch.setattr(Scorer, "encode", stopping)
    with pytest.raises(KeyboardInterrupt):
        scored(teacher, source, out)
    assert len(rows_of(out)) in (10, 20) and not (out / "_SUCCESS").exists()
    monkeypatch.setattr(Scorer, "encode", encode)
    scored(teacher, source, out)
    before = rows_of(out)
    assert [row["text"] for row in before] == texts
    times = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert scored(teacher, source, out).resumed == 3
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    (out / "part-00001.jsonl").write_text("{}")
    (out / "_parts" / "00002.json").unlink()
    again = scored(teacher, source, out)
    assert again.resumed == 1 and rows_of(out) == before


def test_another_command_into_the_folder_is_an_error(
    teacher: Artifact, exported: Artifact, texts: list[str], tmp_path: Path
) -> None:
    source, out = source_of(texts, tmp_path), tmp_path / "out"
    scored(teacher, source, out)
    with pytest.raises(ConfigError, match="texts_per_part was 10, and is 20"):
        scored(teacher, source, out, texts_per_part=20)
    with pytest.raises(ConfigError, match=r"the model is another one.*--force"):
        scored(exported, source, out)
    source_of(texts[:-1], tmp_path)
    with pytest.raises(ConfigError, match=r"the source was texts\.csv, and its content has"):
        scored(teacher, source, out)
    run = scored(teacher, source, out, force=True, format="parquet")
    assert run.resumed == 0 and [row["text"] for row in rows_of(out)] == texts[:-1]
    assert not [*out.glob("*.jsonl")]


def test_the_suffixes_of_texts_are_named(teacher: Artifact, tmp_path: Path) -> None:
    (tmp_path / "foo.text").write_text("apple\n")
    with pytest.raises(
        DataError, match=r"Allowed: .csv.*, .txt.xz, .conll.*; .json in SQuAD's form"
    ):
        scored(teacher, tmp_path / "foo.text", tmp_path / "out")


def test_folders_that_hold_something_else(
    teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    source = source_of(texts, tmp_path)
    with pytest.raises(ConfigError, match="is the folder of the texts"):
        scored(teacher, source, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"has other files, such as letter\.txt"):
        scored(teacher, source, tmp_path / "mine", force=True)
    with pytest.raises(ConfigError, match="is a file"):
        scored(teacher, source, source)
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_a_command_that_was_replaced_stops(
    teacher: Artifact, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = source_of(texts, tmp_path), tmp_path / "out"
    size_of = Job.size_of

    def replaced(self: Job, number: int) -> int:
        monkeypatch.setattr(Job, "size_of", size_of)
        scored(teacher, source, out, force=True, texts_per_part=5)
        return size_of(self, number)

    monkeypatch.setattr(Job, "size_of", replaced)
    with pytest.raises(ConfigError, match="another command has begun anew"):
        scored(teacher, source, out)
    assert [row["text"] for row in rows_of(out)] == texts


BAD = {
    "a field too many": "3,a pear,x,y\n",
    "no text": "3,,x\n",
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_bad_rows_stop_before_anything_runs_or_are_left_out(
    teacher: Artifact, texts: list[str], tmp_path: Path, line: str
) -> None:
    """They count as rows, so that the other parts do not change with them."""
    source, out = source_of(texts, tmp_path), tmp_path / "out"
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([*lines[:13], line, *lines[13:]]))
    with pytest.raises(RowError, match="line 14"):
        scored(teacher, source, out)
    assert not out.exists()
    run = scored(teacher, source, out, skip_bad_rows=True)
    assert run.left_out is not None and run.left_out.count == 1 and run.texts == 25
    assert [row["text"] for row in rows_of(out)] == texts
    records = [json.loads(each.read_text()) for each in sorted((out / "_parts").iterdir())]
    assert [(each["rows"], each["texts"]) for each in records] == [(10, 10), (10, 9), (6, 6)]


@pytest.mark.parametrize("count", [1, 2])
def test_columns_of_another_number_of_texts_are_refused(
    count: int, teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    """A model that records no data may read one text or two."""
    columns = {"text_column": "text", "pair_column": "label"}
    assert scored(teacher, source_of(texts, tmp_path), tmp_path / "free", **columns).texts == 25
    task = {"source": {"train": "train.csv"}, "text_columns": ("text", "more")[:count]}
    card = teacher.card.model_copy(update={"task": teacher.card.task.model_copy(update=task)})
    known, out = replace(teacher, card=card), tmp_path / "out"
    if count == 1:
        with pytest.raises(ConfigError, match=r"text, label, and the model reads 1 text an exam"):
            scored(known, source_of(texts, tmp_path), out, **columns)
    else:
        assert scored(known, source_of(texts, tmp_path), tmp_path / "two", **columns).texts == 25
        with pytest.raises(DataError, match="no column 'more'"):
            scored(known, source_of(texts, tmp_path), out, text_column="text")
    assert not out.exists()


@pytest.mark.parametrize("problem", [SENTENCE_EMBEDDING, TOKEN_CLASSIFICATION])
def test_a_second_column_is_refused_where_a_text_stands_alone(
    problem: Any, teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    record = teacher.card.task.model_copy(update={"text_columns": problem.columns.texts})
    columns = TextColumns(problem, record, "text", "label")
    with pytest.raises(ConfigError, match=r"reads 1 text an example\. Leave --pair-column out"):
        columns.of(open_source(source_of(texts, tmp_path)))
    alone = TextColumns(problem, record, "text")
    assert alone.of(open_source(source_of(texts, tmp_path))) == ("text",)


def test_a_file_with_a_word_a_line_is_scored_by_sentences(
    teacher: Artifact, teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    """As a table with lists of its words is; tags stay as they are."""
    tagger = teacher_of(TOKEN_CLASSIFICATION.name)
    words, tags = [["apple", "saw"], ["plum"]], [["S-FRUIT", "O"], ["X"]]
    rows = [{"words": own, "tags": theirs} for own, theirs in zip(words, tags, strict=True)]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tagged.conll").write_text("-DOCSTART- O\n\napple S-FRUIT\nsaw O\n\nplum X\n")
    (tmp_path / "plain.iob").write_text("apple\nsaw\n\nplum\n")
    (tmp_path / "numbered.conllu").write_text("1\tapple\n2\tsaw\n\n1\tplum\n")
    scored(tagger, tmp_path / "table.jsonl", tmp_path / "table")
    wanted = rows_of(tmp_path / "table")
    scored(tagger, tmp_path / "tagged.conll", tmp_path / "tagged")
    assert rows_of(tmp_path / "tagged") == wanted
    scored(tagger, tmp_path / "plain.iob", tmp_path / "plain")
    plain = [{name: row[name] for name in row if name != "tags"} for row in wanted]
    assert rows_of(tmp_path / "plain") == plain
    with pytest.raises(DataError, match=r"Name the column of words, in CoNLL-U --text-column 2"):
        scored(tagger, tmp_path / "numbered.conllu", tmp_path / "numbered")
    scored(tagger, tmp_path / "numbered.conllu", tmp_path / "numbered", text_column="2")
    assert [row["2"] for row in rows_of(tmp_path / "numbered")] == words
    (tmp_path / "two.seq.in").write_text("apple saw\nplum\n")
    scored(tagger, tmp_path / "two.seq.in", tmp_path / "alone")
    assert rows_of(tmp_path / "alone") == plain
    (tmp_path / "two.seq.out").write_text("S-FRUIT O\nX\n")
    scored(tagger, tmp_path / "two.seq.in", tmp_path / "two")
    assert rows_of(tmp_path / "two") == wanted
    with pytest.raises(DataError, match="a line holds one word, and the model reads whole texts"):
        scored(teacher, tmp_path / "tagged.conll", tmp_path / "not")
    (tmp_path / "empty.conll").write_text("\n\n")
    with pytest.raises(DataError, match="it has no text to predict"):
        scored(tagger, tmp_path / "empty.conll", tmp_path / "empty")


def test_columns_of_predictions_are_never_those_of_the_file(
    teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    scored(teacher, source_of(texts, tmp_path), tmp_path / "once")
    with pytest.raises(ConfigError, match=r"'predicted'.*--prefix new_"):
        scored(teacher, tmp_path / "once", tmp_path / "twice")
    scored(teacher, tmp_path / "once", tmp_path / "twice", prefix="new_")
    for row in rows_of(tmp_path / "twice"):
        assert row["new_probabilities"] == row["probabilities"] and row["new_predicted"]
    rated = tmp_path / "rated.csv"
    rated.write_text("text,score\na good film,4.5\n")
    scored(teacher, rated, tmp_path / "rated")
    (row,) = rows_of(tmp_path / "rated")
    assert row["score"] == "4.5", "labels with probabilities have no such column"


def test_sets_have_a_probability_for_each_label(tmp_path: Path) -> None:
    """An empty set is a list in Parquet, too."""
    task = set_task(40, 8)
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    model.classifier.bias.data -= 9.0
    artifact = write_model(model, tiny_tokenizer(), task, tmp_path / "model")
    source = source_of([text for (text,) in task.dev.examples], tmp_path)
    scored(artifact, source, tmp_path / "out", format="parquet", texts_per_part=4)
    rows = rows_of(tmp_path / "out")
    assert [row["predicted"] for row in rows] == [[]] * len(rows)
    assert all(0 < each < 0.01 for row in rows for each in row["probabilities"].values())
    whole = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert str(whole.schema.field("predicted").type).startswith("list<") and len(whole) == 8


@pytest.mark.parametrize("at_once", [1, 3])
def test_parts_of_json_rows_have_the_same_types(
    at_once: int, teacher: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some values are missing in a part, or whole numbers there alone."""
    monkeypatch.setattr("bertender.tasks.rows.ROWS_AT_ONCE", at_once)
    own = [
        {"text": "apple", "stars": 4, "votes": None, "tags": [], "more": {"a": 1}},
        {"text": "pear", "stars": 4.5, "votes": 3, "tags": ["x"], "more": {"b": "y"}},
        {"text": "plum", "stars": None, "votes": 1, "tags": None},
    ]
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in own))
    out = tmp_path / "out"
    scored(teacher, source, out, format="parquet", texts_per_part=1)
    whole = pyarrow.dataset.dataset(out, format="parquet").to_table()
    assert whole["stars"].to_pylist() == [4.0, 4.5, None]
    assert whole["votes"].to_pylist() == [None, 3, 1]
    assert whole["tags"].to_pylist() == [[], ["x"], None]
    assert whole["more"].to_pylist()[0] == {"a": 1, "b": None}
    schemas = {pyarrow.parquet.read_schema(each) for each in out.glob("part-*")}
    assert len(schemas) == 1
    source.write_text('{"text": "apple", "v": 1}\n{"text": "pear", "v": "one"}\n')
    with pytest.raises(DataError, match="values of several types, which Parquet does not allow"):
        scored(teacher, source, tmp_path / "other", format="parquet", texts_per_part=1)


def test_lines_are_json_where_a_number_is_missing(teacher: Artifact, tmp_path: Path) -> None:
    """pandas writes NaN, which few programs but Python read."""
    source = tmp_path / "texts.parquet"
    numbers = pyarrow.table({"text": ["apple"], "x": [float("nan")], "y": [[1.0, float("nan")]]})
    pyarrow.parquet.write_table(numbers, source)
    scored(teacher, source, tmp_path / "out")
    (row,) = rows_of(tmp_path / "out")
    assert (row["x"], row["y"]) == (None, [1.0, None])
    pyarrow.parquet.write_table(pyarrow.table({"text": ["apple"], "x": [float("inf")]}), source)
    with pytest.raises(DataError, match="an infinite number, which JSON cannot represent"):
        scored(teacher, source, tmp_path / "infinite")


def test_nanoseconds_of_a_time_stay(teacher: Artifact, tmp_path: Path) -> None:
    times = pyarrow.array([1, 1000, None], pyarrow.time64("ns"))
    table = pyarrow.table({"text": ["apple", "pear", "plum"], "at": times})
    pyarrow.parquet.write_table(table, tmp_path / "texts.parquet")
    scored(teacher, tmp_path / "texts.parquet", tmp_path / "out", format="parquet")
    (part,) = (tmp_path / "out").glob("part-*")
    assert pyarrow.parquet.read_table(part)["at"].combine_chunks() == times
    scored(teacher, tmp_path / "texts.parquet", tmp_path / "lines")
    found = [row["at"] for row in rows_of(tmp_path / "lines")]
    assert found == ["00:00:00.000000001", "00:00:00.000001000", None]


def test_nanoseconds_in_lists_and_objects_are_text(teacher: Artifact, tmp_path: Path) -> None:
    time = pyarrow.time64("ns")
    types = {
        "several": pyarrow.list_(time),
        "object": pyarrow.struct([("at", time), ("x", pyarrow.float64())]),
        "by_name": pyarrow.map_(pyarrow.string(), time),
    }
    values = {"several": [1, None], "object": {"at": 1, "x": float("nan")}, "by_name": [("a", 1)]}
    columns = {name: pyarrow.array([values[name], None], kind) for name, kind in types.items()}
    table = pyarrow.table({"text": ["apple", "pear"], **columns})
    pyarrow.parquet.write_table(table, tmp_path / "texts.parquet")
    scored(teacher, tmp_path / "texts.parquet", tmp_path / "lines")
    at = "00:00:00.000000001"
    wanted = {"several": [at, None], "object": {"at": at, "x": None}, "by_name": [["a", at]]}
    found = [{name: row[name] for name in types} for row in rows_of(tmp_path / "lines")]
    assert found == [wanted, dict.fromkeys(types)]


def test_a_scorer_is_opened_where_it_is_asked(teacher: Artifact, texts: list[str]) -> None:
    scorer = Scorer(teacher, prefix="my_")
    found = scorer(texts)
    assert len(pickle.dumps(scorer)) < 1000
    assert pickle.loads(pickle.dumps(scorer))(texts) == found
    rows = scorer.batch_function()(np.array(texts, dtype=np.object_))
    assert [row["my_predicted"] for row in rows] == [row["my_predicted"] for row in found]
    assert {row["my_probabilities"].shape for row in rows} == {(2,)}
    assert scorer([]) == []
    with pytest.raises(DataError, match="not a list of texts"):
        scorer("a text")


def test_texts_that_are_cut_are_counted(
    teacher: Artifact, texts: list[str], tmp_path: Path
) -> None:
    source = source_of([*texts[:4], "apple " * 100], tmp_path)
    run = scored(teacher, source, tmp_path / "out", max_length=40)
    assert run.truncated == 1
    assert [row["truncated"] for row in rows_of(tmp_path / "out")] == [False] * 4 + [True]


def test_logits_that_are_not_finite_are_an_error(
    task: Task, texts: list[str], tmp_path: Path
) -> None:
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    model.bert.pooler.dense.bias.data[:] = 50.0
    model.classifier.weight.data[:] = 3e38
    artifact = write_model(model, tiny_tokenizer(), task, tmp_path / "model")
    with pytest.raises(ModelError, match="NaN or infinite"):
        scored(artifact, source_of(texts, tmp_path), tmp_path / "out")


def test_probabilities_have_six_digits() -> None:
    values = np.array([0.123456789, 0.00012345678, 1.0, 0.0, 3.3333333e-15])
    assert rounded(values).tolist() == [0.123457, 0.000123457, 1.0, 0.0, 3.33333e-15]


def test_the_command(teacher: Artifact, texts: list[str], tmp_path: Path) -> None:
    source, out = source_of(texts, tmp_path), tmp_path / "out"
    words = ("score", teacher.path, source, "--out", out, "--texts-per-part", "10")
    assert "2 of 3 parts are there" in succeed(*words, "--shard", "1/2").output
    run = json.loads(succeed(*words, "--shard", "2/2", "--json").output.splitlines()[-1])
    assert run["complete"] and run["texts"] == 10 and run["shard"] == "2/2"
    assert "3 parts, 3 of them by an earlier run" in succeed(*words).output
    assert "Give NUMBER/OF" in fail(*words, "--shard", "3/2")
    assert "no column 'sentence'" in fail(
        *("score", teacher.path, source, "--out", tmp_path / "other", "--text-column", "sentence")
    )


def test_probabilities_are_calibrated(teacher: Artifact, texts: list[str], tmp_path: Path) -> None:
    calibration = Calibration(method="temperature", fitted_for="any", texts=9, temperature=4.0)
    record = teacher.card.task.model_copy(update={"calibration": calibration})
    calibrated = replace(teacher, card=teacher.card.model_copy(update={"task": record}))
    artifact = copy_artifact(calibrated, tmp_path / "calibrated")
    scored(artifact, source_of(texts, tmp_path), tmp_path / "out")
    wanted = np.exp(log_softmax(logits_alone(open_classifier(teacher), texts) / 4))
    found = [[*row["probabilities"].values()] for row in rows_of(tmp_path / "out")]
    np.testing.assert_allclose(found, wanted, atol=2e-6)
