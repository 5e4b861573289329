"""Words to word pieces and back: alignment by hand, for two kinds of tokenizers."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerBase, RobertaTokenizerFast

from bertender.comparison.accuracy import predict_outputs
from bertender.models.classifier import Classifier
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.batch import (
    Batch,
    Encode,
    TokenizeWords,
    begun_words,
    encode_words,
    keep_words,
)
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


def test_the_first_piece_begins_its_word() -> None:
    assert begun_words([None, 0, 0, 1, 2, 2, 2, None]) == [None, 0, None, 1, 2, None, None, None]
    assert begun_words([0, None, 0]) == [0, None, 0]
    assert begun_words([]) == []


def test_word_pieces_by_hand() -> None:
    """The tiny vocabulary holds whole words and digits: a long number falls apart."""
    tokenizer = TOKENIZERS["word pieces"]
    tokens = encode_words(tokenizer, [("Apple", "98765432", "saw")], 64)
    pieces = tokenizer.convert_ids_to_tokens(tokens["input_ids"][0])
    begun = begun_words(tokens.word_ids(0))
    assert (pieces[0], pieces[1], pieces[-2:]) == ("[CLS]", "apple", ["saw", "[SEP]"])
    assert len(pieces) > 5, "the number falls into pieces"
    assert begun == [None, 0, 1, *[None] * (len(pieces) - 5), 2, None]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "sentence", [("apple", "saw", "apple"), ("zzz", "apple"), ("x-y", "7"), ("saw",)]
)
def test_every_word_begins_once_and_its_pieces_spell_it(
    name: str, sentence: tuple[str, ...]
) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = encode_words(tokenizer, [sentence], 64)
    begun = begun_words(tokens.word_ids(0))
    assert [word for word in begun if word is not None] == list(range(len(sentence)))
    for number, word in enumerate(sentence):
        own = [i for i, each in enumerate(tokens.word_ids(0)) if each == number]
        alone = encode_words(tokenizer, [(word,)], 64, add_special_tokens=False)["input_ids"]
        assert [[tokens["input_ids"][0][i] for i in own]] == alone


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
