"""Text to pre-train on: passages, a vocabulary from them, and packed blocks of tokens."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, DataError, nearest_hint
from bertender.core.examples import TokenDataset
from bertender.tasks.docs import docs_corpus

__all__ = ["CORPORA", "READERS", "pack", "read_corpus", "train_wordpiece"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_LETTERS = 1000
"""Letters that get an entry of their own; words with a rarer one become [UNK]."""

CORPORA: Mapping[str, Callable[[], Iterable[str]]] = {"docs": docs_corpus}
"""Corpora by name; anything else is a file."""


def _open_plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _open_xz(path: Path) -> IO[bytes]:
    return lzma.open(path)


READERS: Mapping[str, Callable[[Path], IO[bytes]]] = {".txt": _open_plain, ".txt.xz": _open_xz}
"""How to open a corpus file, by the end of its name."""


def read_corpus(source: str) -> Iterator[str]:
    """Yield the passages of a corpus: "docs", or the lines of one or more files, by commas.

    Raises:
        ConfigError: neither a known corpus nor a `.txt` or `.txt.xz` file; no file is read then.
        DataError: a file is damaged, or a line of it is not UTF-8.
    """
    if source in CORPORA:
        yield from CORPORA[source]()
        return
    files = [_checked_file(name.strip()) for name in source.split(",")]
    for path, reader in files:
        yield from _lines(path, reader)


def train_wordpiece(
    passages: Sequence[str], vocabulary_size: int, max_length: int
) -> BertTokenizerFast:
    """Train an uncased WordPiece vocabulary on a corpus; the same passages give the same one.

    The trainer numbers letters as it meets words in a hash table, whose order changes from run to
    run, and breaks ties by these numbers. Letters that are named beforehand keep their places.
    """
    trainer = BertWordPieceTokenizer(lowercase=True)
    first, following = _letters(trainer, passages, most=min(MOST_LETTERS, vocabulary_size // 4))
    trainer.train_from_iterator(
        passages,
        vocab_size=vocabulary_size,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{letter}" for letter in following)],
        initial_alphabet=first,
        limit_alphabet=len(first),
        show_progress=False,
    )
    # built anew from the vocabulary, which makes it add [CLS] and [SEP]
    tokenizer = BertWordPieceTokenizer(vocab=trainer.get_vocab(), lowercase=True)
    return BertTokenizerFast(tokenizer_object=tokenizer._tokenizer, model_max_length=max_length)


def pack(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenDataset:
    """Join passages, [SEP] between them, and cut them into blocks of exactly `max_length` tokens.

    Full blocks waste nothing on padding; the remainder at the end makes one shorter block.
    """
    stream: list[int] = []
    for ids in tokenizer(list(passages), add_special_tokens=False, verbose=False)["input_ids"]:
        stream += [*ids, tokenizer.sep_token_id]
    body = max_length - 1
    blocks = [
        [tokenizer.cls_token_id, *stream[start : start + body]]
        for start in range(0, len(stream), body)
    ]
    masks = [[1] * len(block) for block in blocks]
    return TokenDataset({"input_ids": blocks, "attention_mask": masks}, tokenizer.pad_token_id)


def _letters(
    tokenizer: BertWordPieceTokenizer, passages: Iterable[str], most: int
) -> tuple[list[str], list[str]]:
    """Return the commonest letters of a corpus, and those of them that continue a word."""
    words: Counter[str] = Counter()
    for passage in passages:
        text = tokenizer.normalizer.normalize_str(passage)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    letters = sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:most])
    continuing = {letter for word in words for letter in word[1:]}
    return letters, [letter for letter in letters if letter in continuing]


def _checked_file(name: str) -> tuple[Path, Callable[[Path], IO[bytes]]]:
    """Return a corpus file and how to open it."""
    ending = next((ending for ending in READERS if name.endswith(ending)), None)
    if ending is None:
        raise ConfigError(
            f"corpus {name!r} is neither a corpus by name ({', '.join(CORPORA)}) nor a file that "
            f"ends in {' or '.join(READERS)}.{nearest_hint(name, CORPORA)}"
        )
    if not Path(name).is_file():
        raise ConfigError(
            f"corpus {name!r}: there is no such file. Give a path from here, or an absolute one."
        )
    return Path(name), READERS[ending]


def _lines(path: Path, reader: Callable[[Path], IO[bytes]]) -> Iterator[str]:
    """Yield the lines of a corpus file that hold more than white space."""
    try:
        with reader(path) as file:
            for number, line in enumerate(file, start=1):
                if text := _decoded(line, f"{path}, line {number}").strip():
                    yield text
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: damaged or unreadable: {error}. Copy it again.") from None


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 text: {error}. Convert the file to UTF-8.") from None
