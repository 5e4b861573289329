"""Places of rows and errors of formats, in all of READERS."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertender.core.errors import DataError
from bertender.tasks.rows import READERS, Table, open_table, read_delimited
from tests.tasks.writers import WRITERS

ROWS = [{"text": "a b", "label": "x"}, {"text": "c, d", "label": "y"}]


def test_every_format_has_a_writer() -> None:
    assert WRITERS.keys() == READERS.keys()


@pytest.mark.parametrize("suffix", READERS)
def test_columns_rows_and_places(tmp_path: Path, suffix: str) -> None:
    table = open_table(WRITERS[suffix](tmp_path / f"f{suffix}", ROWS))
    rows = list(table.rows)
    assert table.columns == ("text", "label")
    assert [row.values for row in rows] == ROWS
    first = {".jsonl": "line 1", ".parquet": "row 1"}.get(suffix, "line 2")
    assert rows[0].place == first


@pytest.mark.parametrize("suffix", READERS)
def test_upper_case_suffix(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"f{suffix}", ROWS).rename(tmp_path / f"F{suffix.upper()}")
    assert len(list(open_table(path).rows)) == 2


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("made", ["missing", "empty", "folder"])
def test_nothing_to_read(tmp_path: Path, suffix: str, made: str) -> None:
    path = tmp_path / f"f{suffix}"
    if made == "empty":
        path.touch()
    elif made == "folder":
        path.mkdir()
    reason = {"missing": "No such file", "empty": "is empty", "folder": "Is a directory"}[made]
    with pytest.raises(DataError, match=reason) as caught:
        open_table(path)
    assert str(path) in str(caught.value)


def test_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'\.xlsx'.*\.csv, \.tsv, \.jsonl, \.parquet"):
        open_table(tmp_path / "f.xlsx")


def test_quoted_fields_span_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"one\r\ntwo ""2""",x\r\n\r\nthree,y\r\n')
    table = open_table(path)
    rows = list(table.rows)
    assert table.columns == ("text", "label")
    assert [row.values["text"] for row in rows] == ['one\r\ntwo "2"', "three"]
    assert [row.place for row in rows] == ["line 2", "line 5"]


def test_unquoted_reading_keeps_quotes(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text('"open\tx\nb "c\ty\n')
    table = read_delimited(path, delimiter="\t", quoted=False, columns=("text", "label"))
    assert [(row.place, row.values["text"]) for row in table.rows] == [
        ("line 1", '"open'),
        ("line 2", 'b "c'),
    ]


BAD = {
    "too many fields": (".csv", b"text,label\na,x\nb,c,x\n", "line 3: 3 fields .* 2 columns"),
    "too few fields": (".tsv", b"text\tlabel\na\n", "line 2: 1 fields .* 2 columns"),
    "open quote": (".csv", b'text,label\na,x\n"b,y\n', "line 3: .*double quote"),
    "text after a quote": (".csv", b'text,label\n"a"b,x\n', "line 2: .*double quote"),
    "endless field": (".csv", b"text,label\n" + b"a" * 200_000 + b",x\n", "line 2: field larger"),
    "latin-1": (".csv", b"text,label\na,x\ncaf\xe9,y\n", "line 3: byte 0xe9 is not UTF-8"),
    "latin-1 json": (".jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2: byte 0xe9"),
    "utf-16": (".tsv", "text\tlabel\n".encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
    "half an object": (".jsonl", b'{"text": "a"}\n\n{"text": \n', "line 3: not JSON"),
    "no object": (".jsonl", b'["a", "x"]\n', "line 1: .* is not a JSON object"),
    "deep nesting": (".jsonl", b"[" * 100_000, "line 1: not JSON"),
    "endless number": (".jsonl", b'{"text": ' + b"1" * 5000 + b"}", "line 1: not JSON"),
    "no parquet": (".parquet", b"text,label\n", "not a Parquet file"),
}


@pytest.mark.parametrize(("suffix", "content", "message"), BAD.values(), ids=BAD)
def test_malformed_files(tmp_path: Path, suffix: str, content: bytes, message: str) -> None:
    path = tmp_path / f"f{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(open_table(path).rows)
    assert str(path) in str(caught.value)


def test_parquet_with_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"row 2: .*not UTF-8"):
        list(open_table(tmp_path / "f.parquet").rows)


def test_damaged_parquet(tmp_path: Path) -> None:
    path = WRITERS[".parquet"](tmp_path / "f.parquet", ROWS * 1000)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"f\.parquet.*damaged"):
        list(open_table(path).rows)


def header(*columns: str) -> Table:
    return Table(Path("f.csv"), columns, iter(()))


def test_requirements() -> None:
    table = header("text", "lable", "text")
    with pytest.raises(
        DataError, match=r"no column 'label'. Did you mean 'lable'\? Columns: 'text'"
    ):
        table.require(["label"])
    with pytest.raises(DataError, match="two columns are named 'text'"):
        table.require(["text"])
    table.require(["lable"])
    with pytest.raises(DataError, match="is empty"):
        header().require(["text"])
