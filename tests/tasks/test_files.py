"""Tasks of the user's own: every format, every way in which a row can be wrong."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from copy import copy
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from bertender.core.errors import ConfigError, DataError
from bertender.problems import PROBLEMS
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.labelled import read_placed_texts, read_texts
from bertender.tasks.loading import load_files
from bertender.tasks.rows import READERS
from bertender.tasks.task import TaskConfig
from tests.tasks.bad_values import BAD_VALUES, DEV, TRAIN
from tests.tasks.writers import WRITERS

Pair = Callable[..., TaskConfig]


@pytest.fixture
def files(tmp_path: Path) -> Pair:
    """Write a training and a held-out file, and return the config of the task they hold."""

    def write(
        suffix: str = ".csv",
        train: list[dict[str, Any]] = TRAIN,
        dev: list[dict[str, Any]] = DEV,
        **settings: Any,
    ) -> TaskConfig:
        return TaskConfig(
            train=WRITERS[suffix](tmp_path / f"reviews{suffix}", train),
            dev=WRITERS[suffix](tmp_path / f"held-out{suffix}", dev),
            **settings,
        )

    return write


@pytest.mark.parametrize("suffix", READERS)
def test_string_labels(files: Pair, suffix: str) -> None:
    task = load_files(files(suffix))
    assert task.name == "reviews"
    assert task.labels == ("neg", "pos")
    assert task.metric == "accuracy"
    assert task.train.examples == (("good",), ("bad",), ("über 🍺",))
    assert task.train.label_ids == (1, 0, 1)
    assert task.dev.label_ids == (1,)


@pytest.mark.parametrize("suffix", READERS)
def test_integer_labels_are_sorted_by_value(files: Pair, suffix: str) -> None:
    rows = [{"text": f"t{label}", "label": label} for label in (10, 2, -1, 2)]
    task = load_files(files(suffix, rows, rows[:1]))
    assert task.labels == ("-1", "2", "10")
    assert task.train.label_ids == (2, 1, 0, 1)


@pytest.mark.parametrize("suffix", READERS)
def test_pairs_and_named_columns(files: Pair, suffix: str) -> None:
    rows = [{"a": "x", "b": "y", "kind": "1"}, {"a": "u", "b": "v", "kind": "0"}]
    config = files(
        suffix, rows, rows, text_column="a", pair_column="b", label_column="kind", task="mine"
    )
    task = load_files(config)
    assert task.name == "mine"
    assert task.text_columns == ("a", "b")
    assert task.train.examples == (("x", "y"), ("u", "v"))


def test_second_texts_that_are_not_read_are_named(
    files: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"text": "x", "text_pair": "y", "label": "1"},
        {"text": "u", "text_pair": "v", "label": "0"},
    ]
    load_files(files(".csv", rows, rows))
    assert "--pair-column text_pair" in caplog.text
    caplog.clear()
    task = load_files(files(".csv", rows, rows, pair_column="text_pair"))
    assert task.train.examples == (("x", "y"), ("u", "v"))
    assert "--pair-column" not in caplog.text


@pytest.mark.parametrize(
    ("suffix", "labels", "names"),
    [
        (".jsonl", (1.0, 0.0), ("0", "1")),
        (".parquet", (1.0, 0.0), ("0", "1")),
        (".jsonl", (True, False), ("false", "true")),
        (".parquet", (True, False), ("false", "true")),
        (".jsonl", (2**70, "3"), ("3", str(2**70))),
        (".parquet", (Decimal("1.00"), Decimal("0.00")), ("0", "1")),
        (".csv", ("1.0", "0.0"), ("0.0", "1.0")),
        (".jsonl", (1, "one"), ("1", "one")),
    ],
)
def test_typed_labels(
    files: Pair, suffix: str, labels: tuple[Any, Any], names: tuple[str, ...]
) -> None:
    rows = [{"text": "t", "label": label} for label in labels]
    assert load_files(files(suffix, rows, rows)).labels == names


STRINGS = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
DICTIONARY = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())


@pytest.mark.parametrize("type_of_text", [*STRINGS, DICTIONARY], ids=str)
@pytest.mark.parametrize(
    ("values", "type_of_label", "names"),
    [
        *((("b", "a"), each, ("a", "b")) for each in (*STRINGS, DICTIONARY)),
        ((True, False), pyarrow.bool_(), ("false", "true")),
        ((3, 20), pyarrow.uint8(), ("3", "20")),
        ((3, 20), pyarrow.dictionary(pyarrow.int8(), pyarrow.int64()), ("3", "20")),
        ((3, 20), pyarrow.float32(), ("3", "20")),
    ],
    ids=str,
)
def test_types_of_parquet_columns(
    values: tuple[Any, Any],
    type_of_label: pyarrow.DataType,
    names: tuple[str, str],
    type_of_text: pyarrow.DataType,
    tmp_path: Path,
) -> None:
    """And a missing label is missing, whatever the column's type."""
    texts = pyarrow.array(["t", "u", "v"]).cast(type_of_text)
    labels = pyarrow.array([*values, None], type_of_label)
    path = tmp_path / "f.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), path)
    with pytest.raises(DataError, match="row 3, column 'label': missing value"):
        load_files(TaskConfig(train=path, dev=path))
    task = load_files(TaskConfig(train=path, dev=path, skip_bad_rows=True))
    assert (task.train.examples, task.labels) == ((("t",), ("u",)), names)


@pytest.mark.parametrize(
    "values", [[b"t", b"u"], [["t"], ["u"]], [{"t": 1}, {"t": 2}], [1, 2], [[0.5] * 700] * 2]
)
def test_a_text_column_of_another_type(values: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    table = pyarrow.table({"text": pyarrow.array(values), "label": ["x", "y"]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(DataError, match=r"row 1, column 'text': .* is not text\. Give") as caught:
        load_files(TaskConfig(train=path, dev=path))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("suffix", "row", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
@pytest.mark.parametrize("side", ["train", "dev"])
def test_bad_values(files: Pair, suffix: str, row: dict[str, Any], message: str, side: str) -> None:
    config = files(suffix, **{side: [*TRAIN, row]})
    place = {".jsonl": "line 4", ".parquet": "row 4"}.get(suffix, "line 5")
    with pytest.raises(DataError, match=f"{place}, .*{message}") as caught:
        load_files(config)
    assert str(getattr(config, side)) in str(caught.value)


@pytest.mark.parametrize("suffix", READERS)
def test_label_that_training_never_had(files: Pair, suffix: str) -> None:
    config = files(suffix, dev=[*DEV, {"text": "so so", "label": "meh"}])
    with pytest.raises(
        DataError, match=r"column 'label': label 'meh' is not one of .* 'neg', 'pos'"
    ) as e:
        load_files(config)
    assert str(config.dev) in str(e.value) and str(config.train) in str(e.value)


@pytest.mark.parametrize("suffix", READERS)
def test_one_class_only(files: Pair, suffix: str) -> None:
    with pytest.raises(DataError, match="column 'label': all 2 rows have the label 'pos'"):
        load_files(files(suffix, train=[TRAIN[0], TRAIN[2]]))


def test_words_of_one_tag_only(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("apple O\nand O\n\npear O\n")
    with pytest.raises(DataError, match="all 2 rows have the label 'O'"):
        load_files(TaskConfig(train=path, dev=path))


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("column", ["text_column", "pair_column", "label_column"])
def test_missing_column(files: Pair, suffix: str, column: str) -> None:
    with pytest.raises(
        DataError, match=r"no column 'labl'. Did you mean 'label'\? Columns: 'text'"
    ):
        load_files(files(suffix, **{column: "labl"}))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_header_only(files: Pair, suffix: str) -> None:
    config = files(suffix)
    assert config.dev is not None
    if suffix == ".parquet":
        table = pyarrow.parquet.read_table(config.dev)
        pyarrow.parquet.write_table(table.slice(0, 0), config.dev)
    else:
        config.dev.write_text(config.dev.read_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match="no rows"):
        load_files(config)


@pytest.mark.parametrize("content", ["\n", "\n\n"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_blank_lines_only(files: Pair, suffix: str, content: str) -> None:
    config = files(suffix)
    assert config.train is not None
    config.train.write_text(content)
    with pytest.raises(DataError, match="is empty"):
        load_files(config)


def test_a_file_to_learn_from_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"--dev f.csv is set without --train"):
        load_files(TaskConfig.parse({"dev": "f.csv"}))


@pytest.mark.parametrize("settings", [{"pair_column": "text"}, {"label_column": "text"}])
def test_columns_with_two_roles(files: Pair, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be different columns"):
        load_files(files(**settings))


def test_a_file_called_train_gives_its_folder_as_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "beers"
    folder.mkdir()
    train, dev = (WRITERS[".csv"](folder / f"{name}.csv", TRAIN) for name in ("train", "dev"))
    assert load_files(TaskConfig(train=train, dev=dev)).name == "beers"
    (folder / "runs").mkdir()
    monkeypatch.chdir(folder / "runs")
    assert load_files(TaskConfig(train=Path("../train.csv"), dev=dev)).name == "beers"
    current = tmp_path / "current"
    current.symlink_to(train.parent)
    assert load_files(TaskConfig(train=current / train.name, dev=dev)).name == "current"


@pytest.mark.parametrize("suffix", WRITERS)
def test_texts_without_labels(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts{suffix}"
    WRITERS[suffix](path, [{"text": row["text"]} for row in TRAIN])
    assert read_texts(path, ("text",)) == (("good",), ("bad",), ("über 🍺",))


def test_a_problem_type_may_have_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And pairs or none: both are facts of the kind, whatever its name is."""
    toy = copy(TOKEN_CLASSIFICATION)
    toy.name = "toy"
    monkeypatch.setitem(PROBLEMS, "toy", toy)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text("it O\nworks B-x\n\nit O\nfails O\n")
    paths = {name: tmp_path / f"{name}.conll" for name in ("train", "dev")}
    files = {**paths, "problem_type": "toy"}
    task = load_files(TaskConfig(**files))
    assert task.train.examples == (("it", "works"), ("it", "fails"))
    with pytest.raises(ConfigError, match="--pair-column more: an example of 'toy' has no second"):
        load_files(TaskConfig(**files, pair_column="more"))


def test_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("good, really\n\n  bad \n\u200b\n", encoding="utf-8")
    assert read_texts(tmp_path / "texts.txt", ("text",)) == (("good, really",), ("bad",))
    packed = lzma.compress((tmp_path / "texts.txt").read_bytes())
    (tmp_path / "texts.txt.xz").write_bytes(packed)
    assert read_texts(tmp_path / "texts.txt.xz", ("text",)) == (("good, really",), ("bad",))


def test_lines_are_those_that_wc_counts(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\nfirst\xe2\x80\xa8second\xc2\x85third\x0cfourth\rfifth\n\ntwo"
    (tmp_path / "texts.txt").write_bytes(content)
    read = read_placed_texts(tmp_path / "texts.txt", ("text",))
    assert read.examples == (("one",), ("first\u2028second\x85third\x0cfourth\rfifth",), ("two",))
    assert read.places == ("line 1", "line 2", "line 4") and read.blank == ("line 3",)


@pytest.mark.parametrize(
    ("name", "content", "columns", "said"),
    [
        ("texts.txt", "a\n", ("left", "right"), "a line holds one text.*left, right"),
        ("texts.txt", "\n \n", ("text",), "has no texts"),
        ("texts.csv", "text\n", ("text",), "has no texts"),
        ("texts.csv", "txet\na\n", ("text",), "no column 'text'. Did you mean 'txet'"),
        (
            *("texts.doc", "a", ("text",)),
            r"unknown suffix '.doc'. Allowed: .csv, .*.parquet, .txt, .txt.xz; .json in SQuAD's",
        ),
        ("texts.txt", "", ("text",), "the file is empty"),
        ("texts.txt.xz", "a\n", ("text",), "damaged or unreadable: .*Copy it again"),
        ("texts.xz", "a\n", ("text",), "unknown suffix '.xz'"),
    ],
)
def test_files_of_texts_that_cannot_be_used(
    name: str, content: str, columns: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        read_texts(tmp_path / name, columns)


@pytest.mark.parametrize(("shared", "warned"), [(1, False), (2, True)])
def test_held_out_texts_that_are_learned_from_are_said(
    files: Pair, shared: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One of a hundred may recur by chance."""
    train = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(9)]
    dev = [{"text": f"other {n}", "label": "a"} for n in range(100 - shared)]
    load_files(files(".csv", train, [*train[:shared], *dev]))
    assert ("held-out texts are in" in caplog.text) is warned


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("World", "WORLD", "Sports"), "'WORLD' and 'World'. Where they are the same"),
        (("a b", "A  b", "c"), "'A  b' and 'a b'"),
        ((COMPOSED, DECOMPOSED, "tea"), r"'cafe\u0301' and 'caf\xe9'"),
        (("a", "A", "b", "B"), "'A' and 'a'; 'B' and 'b'"),
        (tuple("abcdefABCDEF"), "and 1 more"),
        (("World", "World!", "Sports"), None),
    ],
)
def test_labels_that_look_alike_are_said(
    labels: tuple[str, ...], said: str | None, files: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    train = [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)]
    dev = [{"text": "another", "label": labels[0]}]
    load_files(files(".csv", train, dev))
    assert (said or "differ only by case") in caplog.text or said is None
    assert ("differ only by case" in caplog.text) is (said is not None)


def test_tags_that_look_alike_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.conll").write_text("Ann B-PER\nBo B-per\n\nCy B-PER\n")
    paths = {"train": tmp_path / "train.conll", "dev": tmp_path / "train.conll"}
    load_files(TaskConfig.parse(paths))
    assert "'B-PER' and 'B-per'" in caplog.text


def test_texts_with_several_labels_are_said(files: Pair, caplog: pytest.LogCaptureFixture) -> None:
    train = [{"text": f"text {n // 2}", "label": "ab"[n % 2 if n < 6 else 0]} for n in range(12)]
    dev = [{"text": "another", "label": "a"}]
    load_files(files(".csv", train, dev))
    assert "3 texts occur with different labels" in caplog.text
    assert "such as 'text 0' with 'a', 'b'" in caplog.text
    caplog.clear()
    load_files(files(".csv", train[6:] + train[:1] + [{"text": "c", "label": "b"}], dev))
    assert "different labels" not in caplog.text, "the same text with the same label"


def test_a_file_without_names_of_columns_is_said(files: Pair) -> None:
    long = "a sentence of some length, which is the first row of the file"
    row = {long: "another one of that kind", "pos": "neg"}
    with pytest.raises(DataError, match=r"no column 'text'.*\.\.\.', 'pos'\. If that is a row"):
        load_files(files(".csv", [row], [row]))
