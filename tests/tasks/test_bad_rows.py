"""Bad rows of the user's files: they stop everything, or are left out, counted and listed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from bertender.core.errors import ConfigError, DataError, RowError
from bertender.tasks.labelled import read_texts
from bertender.tasks.loading import load_files, load_task
from bertender.tasks.rows import LISTED_ROWS, READERS, SkippedRows, together
from bertender.tasks.task import Task, TaskConfig
from tests.tasks.bad_values import BAD_VALUES, DEV, TRAIN
from tests.tasks.writers import WRITERS

HEADER = b"text,label\n"
GOOD = b"good,pos\nbad,neg\n"

BAD_LINES: dict[str, tuple[str, bytes, str, str]] = {
    "empty text": (".csv", b",pos\n", "line 4, column 'text'", "empty"),
    "too few fields": (".csv", b"alone\n", "line 4", "1 fields where there are 2 columns"),
    "too many fields": (".csv", b"a,b,pos\n", "line 4", "3 fields"),
    "text after a quote": (".csv", b'"a"b,pos\n', "line 4", "double quote"),
    "not UTF-8": (".csv", b"caf\xe9,pos\n", "line 4", "byte 0xe9 is not UTF-8"),
    "not UTF-8, tabs": (".tsv", b"caf\xe9\tpos\n", "line 4", "byte 0xe9 is not UTF-8"),
    "half an object": (".jsonl", b'{"text": \n', "line 3", "not JSON"),
    "no object": (".jsonl", b'["a", "pos"]\n', "line 3", "not a JSON object"),
    "not UTF-8, JSON": (".jsonl", b'{"text": "\xe9", "label": "pos"}\n', "line 3", "byte 0xe9"),
    "deep nesting": (".jsonl", b"[" * 100_000 + b"\n", "line 3", "not JSON"),
}
"""(suffix, a line that cannot be parsed, where it then stands, what is wrong)"""


def good_lines(suffix: str, rows: Sequence[dict[str, Any]] = TRAIN[:2]) -> bytes:
    if suffix == ".jsonl":
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    mark = b"\t" if suffix == ".tsv" else b","
    return (HEADER + GOOD).replace(b",", mark)


def config_of(folder: Path, suffix: str, train: bytes, **settings: Any) -> TaskConfig:
    """Write a training file of these bytes and a good held-out one."""
    path = folder / f"train{suffix}"
    path.write_bytes(train)
    dev = WRITERS[suffix](folder / f"dev{suffix}", DEV)
    return TaskConfig(train=path, dev=dev, **settings)


@pytest.mark.parametrize(("suffix", "line", "place", "reason"), BAD_LINES.values(), ids=BAD_LINES)
def test_lines_that_cannot_be_parsed(
    suffix: str, line: bytes, place: str, reason: str, tmp_path: Path
) -> None:
    """The rows around it are read; by default it stops everything."""
    good = good_lines(suffix)
    more = good[len(HEADER) :] if suffix != ".jsonl" else good
    config = config_of(tmp_path, suffix, good + line + more, skip_bad_rows=True)
    task = load_files(config)
    assert task.train.examples == (("good",), ("bad",)) * 2
    assert task.left_out is not None and task.left_out.count == 1
    (row,) = task.left_out.first
    assert (row.file, row.place) == (str(config.train), place)
    assert reason in row.reason
    with pytest.raises(RowError, match=f"{place}: .*{reason}"):
        load_files(config.model_copy(update={"skip_bad_rows": False}))


@pytest.mark.parametrize(("suffix", "row", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
@pytest.mark.parametrize("side", ["train", "dev"])
@pytest.mark.parametrize("first", [True, False])
def test_values_that_cannot_be_used(
    suffix: str, row: dict[str, Any], message: str, side: str, first: bool, tmp_path: Path
) -> None:
    """Wherever the row stands; the columns of a file are known without its first row."""
    sides = {"train": TRAIN, "dev": DEV}
    whole = [row, *sides[side]] if first else [*sides[side], row]
    if suffix != ".jsonl":
        whole = [{"text": each.get("text"), "label": each.get("label")} for each in whole]
    paths = {
        name: WRITERS[suffix](tmp_path / f"{name}{suffix}", whole if name == side else rows)
        for name, rows in sides.items()
    }
    task = load_files(TaskConfig(**paths, skip_bad_rows=True))
    assert (len(task.train), len(task.dev)) == (len(TRAIN), len(DEV))
    assert task.left_out is not None and task.left_out.count == 1
    assert task.left_out.first[0].file == str(paths[side])


@pytest.mark.parametrize("suffix", READERS)
def test_a_label_that_training_never_had(suffix: str, tmp_path: Path) -> None:
    train = WRITERS[suffix](tmp_path / f"train{suffix}", TRAIN)
    dev = WRITERS[suffix](tmp_path / f"dev{suffix}", [*DEV, {"text": "so so", "label": "meh"}])
    task = load_files(TaskConfig(train=train, dev=dev, skip_bad_rows=True))
    assert len(task.dev) == len(DEV)
    assert task.left_out is not None and "'meh' is not one of" in task.left_out.first[0].reason


def test_parquet_with_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"caf\xe9", b"b"]).view(pyarrow.string())
    table = pyarrow.table({"text": texts, "label": ["x", "x", "y"]})
    for name in ("train", "dev"):
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("train", "dev")}
    task = load_files(TaskConfig(**paths, skip_bad_rows=True))
    assert task.train.examples == (("a",), ("b",))
    assert task.left_out is not None
    assert [row.place for row in task.left_out.first] == ["row 2, column 'text'"] * 2


WRONG_FILES: dict[str, tuple[str, bytes, str]] = {
    "no such column": (".csv", b"txet,label\na,pos\n", "no column 'text'"),
    "header is not UTF-8": (".csv", b"t\xe9xt,label\na,pos\n", "line 1: byte 0xe9"),
    "header is malformed": (".csv", b'"a"b,label\na,pos\n', "line 1: .*double quote"),
    "UTF-16": (".tsv", "text\tlabel\na\tpos\n".encode("utf-16"), "line 1: byte 0xff"),
    "no end to a quote": (".csv", HEADER + b'"a,pos\n' + GOOD, "line 2: .*double quote"),
    "one class": (".csv", HEADER + b"a,pos\n,neg\n", "have the label 'pos'"),
    "no good row": (
        ".csv",
        HEADER + b",pos\n,neg\n",
        "no rows that can be used; rows left out: 2, the first at line 2, column 'text': empty.*"
        "--text-column text and --label-column label right",
    ),
    "no good line": (".jsonl", b"{\n[\n", "no row of it can be read"),
    "empty": (".csv", b"", "is empty"),
}


@pytest.mark.parametrize(("suffix", "content", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_still_stops(
    suffix: str, content: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_files(config_of(tmp_path, suffix, content, skip_bad_rows=True))


def test_no_held_out_row_is_left(tmp_path: Path) -> None:
    config = config_of(tmp_path, ".csv", HEADER + GOOD, skip_bad_rows=True)
    assert config.dev is not None
    config.dev.write_bytes(HEADER + b"a,meh\n")
    with pytest.raises(
        DataError,
        match=r"no row has one of the labels 'neg', 'pos'; rows left out: 1, the first at line 2.*"
        r"'meh'.*--label-column label right",
    ):
        load_files(config)


def test_the_first_ten_are_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = HEADER + GOOD + b",pos\n" * 12
    with caplog.at_level(logging.WARNING):
        task = load_task(config_of(tmp_path, ".csv", content, skip_bad_rows=True))
    assert task.left_out is not None
    assert task.left_out.count == 12
    places = [row.place for row in task.left_out.first]
    assert places == [f"line {line}, column 'text'" for line in range(4, 4 + LISTED_ROWS)]
    (line,) = (each for each in caplog.messages if "bad rows" in each)
    assert line.startswith("12 bad rows are left out") and line.endswith("and 2 more")
    assert "line 13, column 'text': empty" in line and "line 14" not in line


def test_the_record_loads_the_same_task_again(tmp_path: Path) -> None:
    task = load_task(config_of(tmp_path, ".csv", HEADER + GOOD + b",pos\n", skip_bad_rows=True))
    record = task.record()
    assert record.left_out == task.left_out is not None
    again = load_task(TaskConfig.parse(record.source))
    assert again == task


def test_nothing_is_left_out_of_good_files(tmp_path: Path) -> None:
    config = config_of(tmp_path, ".csv", HEADER + GOOD, skip_bad_rows=True)
    assert load_task(config).record().left_out is None


def test_a_task_by_name_has_no_bad_rows() -> None:
    with pytest.raises(ConfigError, match="skip_bad_rows: for files of your own"):
        load_task(TaskConfig(skip_bad_rows=True))


TEXT_FILES: dict[str, Callable[[Path], Path]] = {
    ".txt": lambda path: (path.write_bytes(b"good\ncaf\xe9\n\nbad\n"), path)[1],
    ".csv": lambda path: (path.write_bytes(b'text\ngood\n" "\nbad\n'), path)[1],
}


@pytest.mark.parametrize("suffix", TEXT_FILES)
def test_texts_without_labels(suffix: str, tmp_path: Path) -> None:
    path = TEXT_FILES[suffix](tmp_path / f"texts{suffix}")
    with pytest.raises(DataError, match=r"line [23]"):
        read_texts(path, ("text",))
    skipped = SkippedRows()
    assert read_texts(path, ("text",), skipped) == (("good",), ("bad",))
    assert skipped.count == 1


def test_reports_together(task: Task) -> None:
    skipped = SkippedRows()
    for line in range(8):
        skipped(RowError(Path("a.csv"), f"line {line}", "empty"))
    report = skipped.report()
    assert together(None, report) == report
    both = together(report, report)
    assert both is not None and (both.count, len(both.first)) == (16, LISTED_ROWS)
    assert together(task.left_out, None) is None
