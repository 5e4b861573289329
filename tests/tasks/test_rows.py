"""Places of rows and errors of formats, in all of READERS."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertender.core.errors import DataError
from bertender.tasks.rows import READERS, Row, Table, open_table, read_delimited
from tests.tasks.writers import WRITERS


def all_rows(table: Table) -> list[Row]:
    return [*table.rows(table.columns)]


ROWS = [{"text": "a b", "label": "x"}, {"text": "c, d", "label": "y"}]


def test_every_format_has_a_writer() -> None:
    assert WRITERS.keys() == READERS.keys()


@pytest.mark.parametrize("suffix", READERS)
def test_columns_rows_and_places(tmp_path: Path, suffix: str) -> None:
    table = open_table(WRITERS[suffix](tmp_path / f"f{suffix}", ROWS))
    rows = list(table.rows(table.columns))
    assert table.columns == ("text", "label")
    assert [row.values for row in rows] == ROWS
    first = {".jsonl": "line 1", ".parquet": "row 1"}.get(suffix, "line 2")
    assert rows[0].place == first


@pytest.mark.parametrize("suffix", READERS)
def test_upper_case_suffix(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"f{suffix}", ROWS).rename(tmp_path / f"F{suffix.upper()}")
    assert len(all_rows(open_table(path))) == 2


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
    rows = list(table.rows(table.columns))
    assert table.columns == ("text", "label")
    assert [row.values["text"] for row in rows] == ['one\r\ntwo "2"', "three"]
    assert [row.place for row in rows] == ["line 2", "line 5"]


def test_unquoted_reading_keeps_quotes(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text('"open\tx\nb "c\ty\n')
    table = read_delimited(path, delimiter="\t", quoted=False, columns=("text", "label"))
    assert [(row.place, row.values["text"]) for row in table.rows(table.columns)] == [
        ("line 1", '"open'),
        ("line 2", 'b "c'),
    ]


BAD = {
    "too many fields": (".csv", b"text,label\na,x\nb,c,x\n", "line 3: 3 fields .* 2 columns"),
    "too few fields": (".tsv", b"text\tlabel\na\n", "line 2: 1 fields .* 2 columns"),
    "open quote": (".csv", b'text,label\na,x\n"b,y\n', "line 3: .*double quote"),
    "text after a quote": (".csv", b'text,label\n"a"b,x\n', "line 2: .*double quote"),
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
        all_rows(open_table(path))
    assert str(path) in str(caught.value)


def test_parquet_with_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"row 2, column 'text': .*not UTF-8"):
        all_rows(open_table(tmp_path / "f.parquet"))


def test_damaged_parquet(tmp_path: Path) -> None:
    path = WRITERS[".parquet"](tmp_path / "f.parquet", ROWS * 1000)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"f\.parquet.*damaged"):
        all_rows(open_table(path))


ODD = ["a\u2028b", "a\x85b", "a\x0cb", "a\x1cb", "a\rb", "a\u2029\xa0b", '"a', 'a "b" c']
"""Characters at which `str.splitlines` and universal newlines would end a line, and quotes."""


@pytest.mark.parametrize("suffix", READERS)
def test_no_character_of_a_text_ends_its_row(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"f{suffix}", [{"text": text, "label": "x"} for text in ODD])
    assert [row.values["text"] for row in all_rows(open_table(path))] == ODD


def test_a_return_within_a_line_is_of_its_text(tmp_path: Path) -> None:
    """As pandas writes it: without quotes."""
    path = tmp_path / "f.csv"
    path.write_bytes(b'text,label\r\na\rb,x\r\n"c\r\nd\r",y\r\n')
    rows = all_rows(open_table(path))
    assert [row.values["text"] for row in rows] == ["a\rb", "c\r\nd\r"]
    assert [row.place for row in rows] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(".csv", b"text\ra\rb\r"), (".jsonl", b'{"text": "a"}\r{"text": "b"}\r')],
)
def test_returns_end_the_lines_of_old_macs(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"f{suffix}").write_bytes(content)
    rows = all_rows(open_table(tmp_path / f"f{suffix}"))
    assert [row.values["text"] for row in rows] == ["a", "b"]


PLAIN_QUOTES = b'text\tlabel\n"Great start\tx\nfoo\ty\n"Good," he said\tx\nbar "baz"\ty\n'


def test_quotes_of_a_tsv_are_characters_where_they_enclose_no_field(tmp_path: Path) -> None:
    """As in GLUE's files: the first two rows are no field of two lines."""
    path = tmp_path / "f.tsv"
    path.write_bytes(PLAIN_QUOTES)
    texts = [row.values["text"] for row in all_rows(open_table(path))]
    assert texts == ['"Great start', "foo", '"Good," he said', 'bar "baz"']


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (PLAIN_QUOTES + b'"a ""b"""\tx\n', "line 2: .*double quote"),
        (PLAIN_QUOTES.replace(b"text\tlabel", b'"text"\t"label"'), "line 2: .*double quote"),
        (PLAIN_QUOTES + b'"two\nlines"\tx\n', "line 2: .*double quote"),
    ],
)
def test_quotes_of_a_tsv_enclose_fields_elsewhere(
    tmp_path: Path, changed: bytes, said: str
) -> None:
    """Some are doubled, or enclose the header, or lines: then those that enclose none are wrong."""
    path = tmp_path / "f.tsv"
    path.write_bytes(changed.replace(b'"Great start', b'"Great" start'))
    with pytest.raises(DataError, match=said):
        all_rows(open_table(path))


def used(path: Path) -> list[tuple[object, object]]:
    rows = open_table(path).rows(("text", "label"))
    return [(row.values["text"], row.values["label"]) for row in rows]


UNUSED: dict[str, pyarrow.Array] = {
    "list": pyarrow.array([[0.5] * 800, []]),
    "struct": pyarrow.array([{"a": 1, "b": None}, None]),
    "map": pyarrow.array([[("a", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "decimal": pyarrow.array([1, 2], pyarrow.decimal128(38, 5)),
    "nanoseconds": pyarrow.array([2**62, 5], pyarrow.timestamp("ns")),
    "a year beyond Python's": pyarrow.array([2**62, 5], pyarrow.timestamp("us")),
    "an unknown time zone": pyarrow.array([1, 2], pyarrow.timestamp("s", tz="Mars/Olympus")),
    "date": pyarrow.array([2**30, 1], pyarrow.date32()),
    "duration": pyarrow.array([2**62, 1], pyarrow.duration("s")),
    "binary": pyarrow.array([b"\xff", b""]),
    "not UTF-8": pyarrow.array([b"\xff", b"a"]).view(pyarrow.string()),
    "dictionary": pyarrow.array(["a", None]).dictionary_encode(),
    "null": pyarrow.nulls(2),
    "half": pyarrow.array([0.5, 1.5], pyarrow.float16()),
}


@pytest.mark.parametrize("name", UNUSED)
def test_a_column_that_is_not_used_hinders_nothing(tmp_path: Path, name: str) -> None:
    columns = {"text": ["a", "b"], "x": UNUSED[name], "label": ["x", "y"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    assert used(tmp_path / "f.parquet") == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("name", ["a year beyond Python's", "an unknown time zone", "date"])
def test_a_value_that_python_does_not_have_is_of_its_row(tmp_path: Path, name: str) -> None:
    columns = {"text": ["a", "b"], "label": UNUSED[name]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"row 1, column 'label': a value of type (timestamp|date)"):
        used(tmp_path / "f.parquet")


def test_names_with_points_and_double_names_of_a_parquet_file(tmp_path: Path) -> None:
    values = [["u", "v"], ["w", "z"], [{"text": 1}, {"text": 2}], ["a", "b"], ["x", "y"]]
    table = pyarrow.table(
        [pyarrow.array(each) for each in values], ["i", "i", "a", "a.text", "label"]
    )
    pyarrow.parquet.write_table(table, tmp_path / "f.parquet")
    rows = open_table(tmp_path / "f.parquet").rows(("a.text", "label"))
    assert [dict(row.values) for row in rows] == [
        {"a.text": "a", "label": "x"},
        {"a.text": "b", "label": "y"},
    ]


UNUSED_FIELDS: dict[str, tuple[str, bytes]] = {
    "huge": (".csv", b"text,x,label\na," + b"h" * 200_000 + b",x\nb,,y\n"),
    "NUL": (".csv", b"text,x,label\na,\0,x\nb,,y\n"),
    "not UTF-8": (".csv", b"text,x,label\na,\xe9,x\nb,,y\n"),
    "line breaks": (".csv", b'text,x,label\r\na,"\r\n\n",x\r\nb,,y\r\n'),
    "a double name": (".csv", b"text,x,label,x\na,1,x,2\nb,3,y,4\n"),
    "no name": (".csv", b"\xef\xbb\xbf,text,label\n0,a,x\n1,b,y\n"),
    "nested": (
        ".jsonl",
        b'\xef\xbb\xbf\n{"text": "a", "x": [{"y": null}], "label": "x"}\r\n\r\n'
        b'{"label": "y", "text": "b", "z": 1e999}\n\n',
    ),
}


@pytest.mark.parametrize(("suffix", "content"), UNUSED_FIELDS.values(), ids=UNUSED_FIELDS)
def test_a_field_that_is_not_used_hinders_nothing(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    (tmp_path / f"f{suffix}").write_bytes(content)
    assert used(tmp_path / f"f{suffix}") == [("a", "x"), ("b", "y")]


def test_a_text_may_be_long_and_the_limit_of_the_process_stays(tmp_path: Path) -> None:
    limit, text = csv.field_size_limit(), "word " * 100_000
    path = WRITERS[".csv"](tmp_path / "f.csv", [{"text": text, "label": "x"}])
    assert used(path) == [(text, "x")]
    assert csv.field_size_limit() == limit


def header(*columns: str) -> Table:
    return Table(Path("f.csv"), columns, lambda columns: iter(()))


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
