"""Whole words, found again from the pieces of every row of TOKENIZERS, and of one from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from tokenizers import SentencePieceBPETokenizer, Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ModelError
from distill.pretraining.config import TOKENIZERS
from distill.pretraining.masking import word_marks
from distill.pretraining.vocabularies import train_tokenizer
from tests.toys import FRUIT, TOOLS

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
PASSAGES = [f"{fruit} and naïve {tool}, number 17" for fruit in FRUIT for tool in TOOLS]
ENTRIES = 90
"""So few that most words have several pieces."""


def trained(name: str) -> PreTrainedTokenizerBase:
    return train_tokenizer(name, PASSAGES, max(ENTRIES, TOKENIZERS[name].smallest + 10), 32)


def metaspace_bpe() -> PreTrainedTokenizerBase:
    trainer = SentencePieceBPETokenizer(unk_token="[UNK]")
    tokens = list(SPECIAL.values())
    trainer.train_from_iterator(PASSAGES, ENTRIES, special_tokens=tokens, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, **SPECIAL)


KINDS: Mapping[str, Callable[[], PreTrainedTokenizerBase]] = {
    **{name: partial(trained, name) for name in TOKENIZERS},
    "SentencePiece BPE": metaspace_bpe,
}


def words_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The words that the boundaries cut a text into."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    words: list[list[int]] = []
    for token, continues in zip(
        ids, word_marks(tokenizer).continuing(torch.tensor(ids)), strict=True
    ):
        if continues and words:
            words[-1].append(token)
        else:
            words.append([token])
    return [text for word in words if (text := tokenizer.decode(word).strip())]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_between_spaces(kind: str) -> None:
    tokenizer = KINDS[kind]()
    text = " hammersaw pearplum applepear and drillmelon 17"
    assert len(tokenizer.tokenize(text)) > len(text.split())
    assert words_of(tokenizer, text) == text.split()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char-bpe", "sentencepiece"])
def test_punctuation_is_a_word_of_its_own(kind: str) -> None:
    assert words_of(KINDS[kind](), " saw, melon") == ["saw", ",", "melon"]


def test_bytes_of_a_longer_character_continue_it() -> None:
    assert words_of(KINDS["bpe"](), " melön 蘋果x") == ["melön", "蘋果x"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_answer_for_each_piece(kind: str) -> None:
    tokenizer = KINDS[kind]()
    marked = word_marks(tokenizer).marked
    assert marked.shape == (len(tokenizer),) and marked.dtype == torch.bool
    assert 0 < marked.sum() < len(tokenizer)


def test_a_tokenizer_that_marks_no_words_is_refused() -> None:
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    )
    with pytest.raises(ModelError, match=r"WordLevel.*WordPiece, ByteLevel, Metaspace"):
        word_marks(plain)
