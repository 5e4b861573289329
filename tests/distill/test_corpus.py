"""Corpora: files of text, a vocabulary from them, blocks without padding."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bertender.core.errors import BertenderError, ConfigError, DataError
from distill.corpus import CORPORA, pack, read_corpus, train_wordpiece
from tests.conftest import FRUIT, TOOLS
from tests.distill.toys import tiny_tokenizer

LINES = ("the first line", "  the second, with spaces  ", "", "\t", "naïve: third")
PASSAGES = ["the first line", "the second, with spaces", "naïve: third"]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return path


@pytest.mark.parametrize("ending", [".txt", ".txt.xz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_are_passages(tmp_path: Path, ending: str, newline: str) -> None:
    path = write(tmp_path / f"corpus{ending}", newline.join(LINES).encode())
    assert list(read_corpus(str(path))) == PASSAGES


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", b"one\ntwo")
    second = write(tmp_path / "b.txt.xz", b"three\n")
    assert list(read_corpus(f"{first}, {second}")) == ["one", "two", "three"]


def test_a_corpus_by_name_is_read_from_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORPORA, "docs", lambda: ["a passage", "another"])
    assert list(read_corpus("docs")) == ["a passage", "another"]


BAD: dict[str, tuple[str, bytes | None, type[BertenderError], str]] = {
    "unknown suffix": ("corpus.pdf", b"x", ConfigError, r"ends in \.txt or \.txt\.xz"),
    "other archive": ("corpus.tar.xz", b"x", ConfigError, r"ends in \.txt or \.txt\.xz"),
    "missing": ("absent.txt", None, ConfigError, "absent.txt': there is no such file"),
    "not UTF-8": ("latin.txt", b"good\nna\xefve\n", DataError, r"latin\.txt, line 2: not UTF-8"),
    "not UTF-8 in xz": ("latin.txt.xz", b"\xff", DataError, r"latin\.txt\.xz, line 1: not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_corpora_are_refused(case: str, tmp_path: Path) -> None:
    name, content, error, message = BAD[case]
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(error, match=message):
        list(read_corpus(str(tmp_path / name)))


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_a_damaged_archive_is_refused(tmp_path: Path, keep: float) -> None:
    content = "\n".join(f"line {number} of many" for number in range(5000)).encode()
    whole = lzma.compress(content)
    path = tmp_path / "cut.txt.xz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match=r"cut\.txt\.xz: damaged or unreadable"):
        list(read_corpus(str(path)))


def test_plain_text_named_as_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt.xz"
    path.write_text("not compressed at all\n")
    with pytest.raises(DataError, match="damaged or unreadable"):
        list(read_corpus(str(path)))


def test_a_near_name_is_proposed() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'docs'"):
        list(read_corpus("doc"))


def test_no_file_is_read_when_one_of_them_is_missing(tmp_path: Path) -> None:
    good = write(tmp_path / "a.txt", b"one\n")
    with pytest.raises(ConfigError, match="no such file"):
        next(read_corpus(f"{good},{tmp_path / 'b.txt'}"))


def test_the_vocabulary_holds_the_words_and_the_special_tokens() -> None:
    passages = [f"{fruit} and {tool}" for fruit in FRUIT for tool in TOOLS] * 3
    tokenizer = train_wordpiece(passages, 200, 32)
    vocabulary = tokenizer.get_vocab()
    assert set(FRUIT) | set(TOOLS) | {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} <= set(
        vocabulary
    )
    assert len(vocabulary) <= 200
    assert tokenizer.model_max_length == 32
    assert tokenizer.tokenize("APPLE") == ["apple"]


def test_the_trained_tokenizer_frames_texts_as_bert_does(tmp_path: Path) -> None:
    train_wordpiece(["apple saw drill"] * 9, 200, 32).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokens = tokenizer("Apple", "saw drill")
    pieces = tokenizer.convert_ids_to_tokens(tokens["input_ids"])
    assert pieces == ["[CLS]", "apple", "[SEP]", "saw", "drill", "[SEP]"]
    assert tokens["token_type_ids"] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("size", [120, 400])
def test_the_same_corpus_gives_the_same_vocabulary(size: int) -> None:
    """The words tie in their counts, and there are more letters than entries for them."""
    words = [f"{chr(0x4E00 + number)}word{number % 37} {number % 11}" for number in range(300)]
    first, *others = (train_wordpiece(words, size, 32).get_vocab() for _ in range(4))
    assert all(other == first for other in others)
    assert len(first) <= size


@pytest.mark.parametrize("length", [8, 16, 64])
def test_only_the_last_block_is_shorter(length: int) -> None:
    tokenizer = tiny_tokenizer()
    passages = [" ".join(FRUIT[: 1 + row % 6]) for row in range(20)]
    blocks = pack(passages, tokenizer, length)
    assert all(size == length for size in blocks.lengths[:-1])
    assert 1 < blocks.lengths[-1] <= length
    for block, mask in zip(
        blocks.columns["input_ids"], blocks.columns["attention_mask"], strict=True
    ):
        assert block[0] == tokenizer.cls_token_id
        assert tokenizer.pad_token_id not in block
        assert mask == [1] * len(block)


def test_packing_keeps_every_token_in_order() -> None:
    tokenizer = tiny_tokenizer()
    passages = ["apple pear", "saw", "drill plum 7"]
    blocks = pack(passages, tokenizer, 8).columns["input_ids"]
    packed = tokenizer.convert_ids_to_tokens([token for block in blocks for token in block[1:]])
    expected = [token for text in passages for token in (*tokenizer.tokenize(text), "[SEP]")]
    assert packed == expected
