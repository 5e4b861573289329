"""Text to pre-train on: passages, a vocabulary from them, and packed blocks of tokens."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, DataError
from bertender.core.training import TokenDataset
from bertender.tasks.docs import docs_corpus

__all__ = ["CORPORA", "READERS", "pack", "read_corpus", "train_wordpiece"]

CORPORA: Mapping[str, Callable[[], Iterable[str]]] = {"docs": docs_corpus}
"""Corpora by name; anything else is a file."""


def _open_plain(path: Path) -> TextIO:
    return path.open(encoding="utf-8")


def _open_xz(path: Path) -> TextIO:
    return lzma.open(path, "rt", encoding="utf-8")


READERS: Mapping[str, Callable[[Path], TextIO]] = {".txt": _open_plain, ".xz": _open_xz}
"""How to open a corpus file, by the end of its name."""


def read_corpus(source: str) -> Iterator[str]:
    """Yield the passages of a corpus: "docs", or the lines of one or more files, by commas.

    Raises:
        ConfigError: neither a known corpus nor a `.txt` or `.txt.xz` file.
        DataError: a file is not UTF-8 text or not xz.
    """
    if source in CORPORA:
        yield from CORPORA[source]()
        return
    for name in source.split(","):
        yield from _read_file(Path(name))


def train_wordpiece(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> BertTokenizerFast:
    """Train an uncased WordPiece vocabulary on a corpus."""
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(passages, vocab_size=vocabulary_size, show_progress=False)
    return BertTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=max_length)


def pack(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenDataset:
    """Join passages, [SEP] between them, and cut them into blocks of exactly `max_length` tokens.

    Full blocks waste nothing on padding; the remainder at the end makes one shorter block.
    """
    stream: list[int] = []
    for ids in tokenizer(list(passages), add_special_tokens=False)["input_ids"]:
        stream += [*ids, tokenizer.sep_token_id]
    body = max_length - 1
    blocks = [
        [tokenizer.cls_token_id, *stream[start : start + body]]
        for start in range(0, len(stream), body)
    ]
    masks = [[1] * len(block) for block in blocks]
    return TokenDataset({"input_ids": blocks, "attention_mask": masks}, tokenizer.pad_token_id)


def _read_file(path: Path) -> Iterator[str]:
    if path.suffix not in READERS or not path.is_file():
        raise ConfigError(
            f"corpus {str(path)!r} is neither a corpus by name ({', '.join(CORPORA)}) nor a file "
            f"that ends in {' or '.join(READERS)}. Give one of these."
        )
    try:
        with READERS[path.suffix](path) as file:
            yield from (line.strip() for line in file if line.strip())
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as UTF-8 text: {error}. Convert it first."
        ) from None
