"""Corpora: passages that stream, with a mark where a document ends, and blocks without padding."""

from __future__ import annotations

import lzma
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertender.core.errors import BertenderError, ConfigError, DataError, HubUnreachableError
from distill.pretraining import corpus as corpus_files
from distill.pretraining.corpus import (
    CORPORA,
    HELD_OUT_EVERY,
    PASSAGES_AT_ONCE,
    READERS,
    Corpus,
    survey,
)
from distill.pretraining.rows import pack_rows, part_of
from tests.toys import FRUIT, packed, tiny_tokenizer

Documents = Sequence[Sequence[str]]

DOCUMENTS = (("the first line", "  the second, with spaces  "), ("naïve: third",))
PASSAGES = ["the first line", "the second, with spaces", "", "naïve: third", ""]


def as_text(documents: Documents, newline: str = "\n") -> bytes:
    return f"{newline} \t{newline}{newline}".join(map(newline.join, documents)).encode()


def write_plain(path: Path, documents: Documents) -> None:
    path.write_bytes(as_text(documents))


def write_xz(path: Path, documents: Documents) -> None:
    path.write_bytes(lzma.compress(as_text(documents)))


def write_parquet(path: Path, documents: Documents) -> None:
    texts = [None, *("\n\n".join(lines) for lines in documents), " \n "]
    pyarrow.parquet.write_table(pyarrow.table({"id": [*range(len(texts))], "text": texts}), path)


WRITERS: dict[str, Callable[[Path, Documents], None]] = {
    ".txt": write_plain,
    ".txt.xz": write_xz,
    ".parquet": write_parquet,
}


@pytest.mark.parametrize("ending", READERS)
def test_lines_are_passages_and_documents_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"corpus{ending}"
    WRITERS[ending](path, DOCUMENTS)
    assert list(Corpus(str(path))) == PASSAGES


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("around", ["", "\n", " \n\t\n\n"])
def test_blank_lines_are_one_mark_and_none_at_the_beginning(
    tmp_path: Path, newline: str, around: str
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(around.encode() + as_text(DOCUMENTS, newline) + around.encode())
    assert list(Corpus(str(path))) == PASSAGES


def test_several_files_are_read_in_order_and_each_ends_a_document(tmp_path: Path) -> None:
    for place, ending in enumerate(READERS):
        WRITERS[ending](tmp_path / f"{place}{ending}", [["one", f"file {place}"]])
    files = ", ".join(str(tmp_path / f"{place}{ending}") for place, ending in enumerate(READERS))
    expected = [text for place in range(len(READERS)) for text in ("one", f"file {place}", "")]
    assert list(Corpus(files)) == expected


def test_a_corpus_is_read_anew_every_time(tmp_path: Path) -> None:
    write_plain(tmp_path / "a.txt", DOCUMENTS)
    corpus = Corpus(str(tmp_path / "a.txt"))
    assert list(corpus) == list(corpus) == PASSAGES


def test_a_corpus_by_name_is_read_from_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORPORA, "docs", lambda: ["a passage", "another"])
    assert list(Corpus("docs")) == ["a passage", "another", ""]


ODD = "\ufefffirst\u2028line\x85still\x0cthe same\r\nsecond\n\u200b\nanother document"


@pytest.mark.parametrize("ending", READERS)
def test_no_character_but_lf_ends_a_line(tmp_path: Path, ending: str) -> None:
    """A byte-order mark is no word, and a line in which nothing can be seen is blank."""
    path, text = tmp_path / f"odd{ending}", ODD.encode()
    if ending == ".parquet":
        texts = ODD.removeprefix("\ufeff").split("\u200b")
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    else:
        path.write_bytes(lzma.compress(text) if ending == ".txt.xz" else text)
    first = "first\u2028line\x85still\x0cthe same"
    assert list(Corpus(str(path))) == [first, "second", "", "another document", ""]


def test_a_column_that_is_not_the_text_hinders_nothing(tmp_path: Path) -> None:
    beyond = pyarrow.array([2**62], pyarrow.timestamp("us"))
    table = pyarrow.table({"text": ["one"], "made": beyond, "vector": [[0.5] * 900]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert list(Corpus(str(tmp_path / "a.parquet"))) == ["one", ""]


def test_a_column_of_another_name(tmp_path: Path) -> None:
    table = pyarrow.table({"body": ["one\ntwo"], "text": ["other"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert list(Corpus(str(tmp_path / "a.parquet"), "body")) == ["one", "two", ""]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.sampled_from("aé名 "), max_size=90), min_size=1, max_size=5))
def test_very_long_lines_come_in_parts(tmp_path: Path, lines: list[str]) -> None:
    """No letter is lost or torn, and a part that is blank is no end of a document."""
    path = tmp_path / "long.txt"
    text = "\n".join(f"x{line}y" for line in lines)
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(corpus_files, "LONGEST_LINE_BYTES", 16)
        passages = list(Corpus(str(path)))
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert passages.count("") == 1 and passages[-1] == ""
    assert max(len(passage.encode()) for passage in passages) <= 32


def test_reading_holds_no_more_than_a_little(tmp_path: Path) -> None:
    """A million bytes in lines and four million in a single one."""
    path = tmp_path / "large.txt"
    path.write_text("some words of a line\n" * 50_000 + "words " * 700_000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in Corpus(str(path)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count > 50_000
    assert peak_bytes < 1_000_000


BAD: dict[str, tuple[str, bytes | None, type[BertenderError], str]] = {
    "unknown suffix": ("corpus.pdf", b"x", ConfigError, r"ends in \.txt or \.txt\.xz or \.parquet"),
    "other archive": ("corpus.tar.xz", b"x", ConfigError, r"ends in \.txt or \.txt\.xz"),
    "missing": ("absent.txt", None, ConfigError, "absent.txt': there is no such file"),
    "not UTF-8": ("latin.txt", b"good\nna\xefve\n", DataError, r"latin\.txt, line 2: not UTF-8"),
    "not UTF-8 in xz": ("latin.txt.xz", b"\xff", DataError, r"latin\.txt\.xz, line 1: not UTF-8"),
    "text as xz": ("plain.txt.xz", b"plain\n", DataError, r"plain\.txt\.xz: damaged or unreadable"),
    "text as Parquet": ("a.parquet", b"plain\n", DataError, r"a\.parquet: not a Parquet file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_corpora_are_refused(case: str, tmp_path: Path) -> None:
    name, content, error, message = BAD[case]
    if content is not None:
        packed = name.endswith(".xz") and content != b"plain\n"
        (tmp_path / name).write_bytes(lzma.compress(content) if packed else content)
    with pytest.raises(error, match=message):
        list(Corpus(str(tmp_path / name)))


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_a_damaged_archive_is_refused(tmp_path: Path, keep: float) -> None:
    content = "\n".join(f"line {number} of many" for number in range(5000)).encode()
    whole = lzma.compress(content)
    path = tmp_path / "cut.txt.xz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match=r"cut\.txt\.xz: damaged or unreadable"):
        list(Corpus(str(path)))


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    texts = pyarrow.table({"text": [f"text {number}" for number in range(500)]})
    pyarrow.parquet.write_table(texts, path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.parquet, after row 0: damaged"):
        list(Corpus(str(path)))


def test_a_missing_column_is_named_beside_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, DOCUMENTS)
    with pytest.raises(DataError, match=r"no column 'texts'. Did you mean 'text'\? .*'id', 'text'"):
        list(Corpus(str(path), "texts"))
    with pytest.raises(DataError, match=r"a\.parquet, row 1: '0' is of type int, not text"):
        list(Corpus(str(path), "id"))


def test_a_near_name_is_proposed() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'docs'"):
        list(Corpus("doc"))


@pytest.mark.parametrize(
    ("second", "column", "error"),
    [
        ("b.txt", "text", ConfigError),
        ("a.parquet", "other", DataError),
        ("owner/name", "text", HubUnreachableError),
    ],
)
def test_no_file_is_read_when_one_of_them_is_wrong(
    tmp_path: Path, second: str, column: str, error: type[BertenderError]
) -> None:
    write_plain(tmp_path / "a.txt", DOCUMENTS)
    write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    other = second if "/" in second else tmp_path / second
    with pytest.raises(error):
        next(iter(Corpus(f"{tmp_path / 'a.txt'},{other}", column)))


def test_the_survey_tells_documents_apart() -> None:
    found = survey(["one", "two", "", "three", ""])
    assert (found.passages, found.documents) == (3, 2)
    others = (
        *(["one", "", "two", "three", ""], ["one", "two", "", "three"], ["onetwo", "", "three"]),
        ["one\ntwo", "", "three", ""],
    )
    assert found.sha256 not in {survey(other).sha256 for other in others}


def test_the_two_parts_are_the_whole() -> None:
    passages = [text for number in range(170) for text in (f"line {number}", "")]
    kept, held_out = (list(filter(None, part_of(passages, held_out=part))) for part in (0, 1))
    assert held_out == [f"line {number}" for number in range(0, 170, HELD_OUT_EVERY)]
    assert {*kept, *held_out, ""} == set(passages) and len(kept) + len(held_out) == 170
    assert list(part_of(passages, held_out=True)).count("") == 170


@pytest.mark.parametrize("length", [8, 16, 64])
def test_only_the_last_block_is_shorter(length: int) -> None:
    tokenizer = tiny_tokenizer()
    passages = [" ".join(FRUIT[: 1 + row % 6]) for row in range(20)]
    blocks = packed(passages, tokenizer, length)
    assert all(size == length for size in blocks.lengths[:-1])
    assert 1 < blocks.lengths[-1] <= length
    for block, mask in zip(
        blocks.columns["input_ids"], blocks.columns["attention_mask"], strict=True
    ):
        assert block[0] == tokenizer.cls_token_id
        assert tokenizer.pad_token_id not in block
        assert mask == [1] * len(block)


@settings(max_examples=40)
@given(
    passages=st.lists(st.sampled_from(["apple pear", "saw", "", "drill plum 7"]), max_size=30),
    length=st.integers(8, 40),
    at_once=st.integers(1, 9),
)
def test_packing_keeps_every_token_in_order(passages: list[str], length: int, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("distill.pretraining.rows.PASSAGES_AT_ONCE", at_once)
        blocks = packed(passages, TOKENIZER, length).columns["input_ids"]
    there = TOKENIZER.convert_ids_to_tokens([token for block in blocks for token in block[1:]])
    expected = [
        token for text in passages if text for token in (*TOKENIZER.tokenize(text), "[SEP]")
    ]
    assert there == expected


TOKENIZER = tiny_tokenizer()


def test_packing_reads_no_further_than_it_must() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "apple"

    assert len(next(pack_rows(endless(), TOKENIZER, 16))["input_ids"]) == 16
    assert taken == PASSAGES_AT_ONCE
