"""Words to word pieces and back: alignment by hand, for two kinds of tokenizers."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerBase, RobertaTokenizerFast

from bertender.comparison.accuracy import predict_outputs
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import Classifier
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split
from bertender.text.batch import Batch, Begun, Encode, TokenizeWords, encode_words, keep_words
from bertender.text.tokenizer import (
    CONTINUED_LABELS,
    continued_labels,
    load_tokenizer,
    open_tokenizer,
    part_starts,
)
from bertender.training.heads import HEADS
from bertender.training.heads.head import PREDICTING
from tests.fake_predictor import FakePredictor
from tests.toys import tiny_tokenizer


def byte_level_tokenizer() -> RobertaTokenizerFast:
    """RoBERTa's kind, which reads the space before a word as part of it."""
    trainer = ByteLevelBPETokenizer(add_prefix_space=True)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(["apple saw " * 50], vocab_size=280, special_tokens=special)
    return RobertaTokenizerFast(
        tokenizer_object=trainer._tokenizer, add_prefix_space=True, model_max_length=64
    )


TOKENIZERS: dict[str, PreTrainedTokenizerBase] = {
    "word pieces": tiny_tokenizer(),
    "byte level": byte_level_tokenizer(),
}


def test_word_pieces_by_hand() -> None:
    """The tiny vocabulary holds whole words and digits: a long number falls apart."""
    tokenizer = TOKENIZERS["word pieces"]
    tokens, (begun,) = encode_words(tokenizer, [("Apple", "98765432", "saw")], 64)
    pieces = tokenizer.convert_ids_to_tokens(tokens["input_ids"][0])
    assert (pieces[0], pieces[1], pieces[-2:]) == ("[CLS]", "apple", ["saw", "[SEP]"])
    assert len(pieces) > 5, "the number falls into pieces"
    first, number, saw = (Begun(word, 0) for word in range(3))
    assert begun == [None, first, number, *[None] * (len(pieces) - 5), saw, None]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "sentence", [("apple", "saw", "apple"), ("zzz", "apple"), ("x-y", "7"), ("saw",)]
)
def test_every_word_begins_once_and_its_pieces_spell_it(
    name: str, sentence: tuple[str, ...]
) -> None:
    tokenizer = TOKENIZERS[name]
    tokens, (begun,) = encode_words(tokenizer, [sentence], 64)
    assert [each for each in begun if each] == [Begun(word, 0) for word in range(len(sentence))]
    for number, word in enumerate(sentence):
        own = [i for i, each in enumerate(tokens.word_ids(0)) if each == number]
        alone, _ = encode_words(tokenizer, [(word,)], 64, add_special_tokens=False)
        assert [[tokens["input_ids"][0][i] for i in own]] == alone["input_ids"]


def in_parts(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, with three labels: O, B-x and I-x."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.init_kwargs[CONTINUED_LABELS] = [0, 2, 2]
    return tokenizer


PARTS: dict[str, tuple[str, list[str]]] = {
    "a mark at the end": ("Paris,", ["Paris", ","]),
    "points within": ("U.S.", ["U", ".", "S", "."]),
    "accents as marks": ("e\u0301te\u0301", ["e\u0301te\u0301"]),
    "vowel signs": ("हिन्दी।", ["हिन्दी", "।"]),
    "pictures and a joiner": ("👩\u200d💻!", ["👩\u200d", "💻", "!"]),
    "a joiner first": ("\u200dab", ["\u200dab"]),
    "signs alone": ("...", [".", ".", "."]),
    "one that is whole": ("apple2", ["apple2"]),
}


@pytest.mark.parametrize(("word", "parts"), PARTS.values(), ids=PARTS)
def test_parts(word: str, parts: list[str]) -> None:
    starts = part_starts(word)
    assert [word[a:b] for a, b in pairwise((*starts, len(word)))] == parts


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_are_the_same_whether_marks_came_apart(name: str) -> None:
    encode = TokenizeWords(in_parts(TOKENIZERS[name]))
    together, apart = (
        encode([text.split()]) for text in ("saw-apple, saw.", "saw - apple , saw .")
    )
    assert together.arrays["input_ids"].tolist() == apart.arrays["input_ids"].tolist()
    assert encode.counts([("saw-apple,",)]) == encode.counts([("saw", "-", "apple", ",")])
    assert together.words is not None and together.parts is not None and apart.parts is not None
    assert together.words[together.words >= 0].tolist() == [0, 1]
    assert together.parts[together.parts > 0].tolist() == [3, 4, 9, 3]
    assert not apart.parts.any()


def test_later_parts_continue_the_tag_of_their_word() -> None:
    split = Split((("saw,", "apple"),), ((1, 0),))
    _, columns = HEADS[TOKEN_CLASSIFICATION.name].tokenize(split, in_parts(tiny_tokenizer()))
    labels, starts = columns["labels"][0], columns[PREDICTING][0]
    assert [label for label in labels if label != NO_LABEL] == [1, 2, 0]
    assert [int(label != NO_LABEL) for label in labels] == starts


def test_a_tokenizer_keeps_how_it_reads_words(tmp_path: Path) -> None:
    in_parts(tiny_tokenizer()).save_pretrained(tmp_path)
    for opened in (load_tokenizer(tmp_path), open_tokenizer(tmp_path)):
        assert continued_labels(opened) == [0, 2, 2]
    tiny_tokenizer().save_pretrained(tmp_path / "before")
    for opened in (load_tokenizer(tmp_path / "before"), open_tokenizer(tmp_path / "before")):
        assert continued_labels(opened) is None


def tagger(max_length: int = 64) -> Classifier:
    """Its label of a token is the token's place in the sequence."""

    def places(batch: Batch) -> np.ndarray:
        rows, length = batch.arrays["input_ids"].shape
        return np.broadcast_to(np.eye(length, 64, dtype=np.float32), (rows, length, 64))

    labels = tuple(map(str, range(64)))
    encode = TokenizeWords(tiny_tokenizer(), max_length)
    return Classifier("fake", labels, encode, FakePredictor(places), 0, TOKEN_CLASSIFICATION)


def tagged(sentences: list[tuple[str, ...]], max_length: int = 64) -> list[tuple[int, ...]]:
    found = predict_outputs(tagger(max_length), sentences, tokens_per_batch=80)
    return [
        TOKEN_CLASSIFICATION.decode(each, sentence)
        for each, sentence in zip(found, sentences, strict=True)
    ]


def test_a_word_has_the_answer_of_its_first_piece() -> None:
    sentences = [("saw", "apple"), ("98765432", "saw"), ("plum",)]
    pieces = len(tiny_tokenizer().tokenize("98765432"))
    assert tagged(sentences) == [(1, 2), (1, 1 + pieces), (1,)]


def test_answers_come_in_the_order_of_the_sentences() -> None:
    sentences = [("saw",) * (1 + row % 7) for row in range(40)]
    assert tagged(sentences) == [tuple(range(1, 2 + row % 7)) for row in range(40)]


def test_words_that_the_model_does_not_see_are_outside() -> None:
    """Six tokens hold four words; a word of a control character alone has no piece."""
    assert tagged([("saw",) * 6], max_length=6) == [(1, 2, 3, 4, 0, 0)]
    assert tagged([("saw", "\u200b\x01", "plum")]) == [(1, 0, 2)]


@pytest.mark.parametrize(
    "encode", [TokenizeWords(tiny_tokenizer()), keep_words], ids=["ids", "text"]
)
def test_a_sentence_that_is_a_text_has_words(encode: Encode) -> None:
    as_text, as_words = encode(["apple saw"]), encode([("apple", "saw")])
    assert as_text.examples == (("apple", "saw"),)
    assert as_text.words is not None and as_words.words is not None
    assert as_text.words.tolist() == as_words.words.tolist()
