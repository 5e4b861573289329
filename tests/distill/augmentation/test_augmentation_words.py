"""Words of a text, words of a vocabulary, words of a class, and words near to another."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from bertender.core.errors import ModelError
from distill.augmentation.bilstm import CLOSED_CLASSES, WordClasses
from distill.augmentation.tinybert import nearest_words
from distill.augmentation.words import (
    STOP_WORDS,
    WholeWords,
    is_alphabetic,
    replaceable_words,
    with_words,
    word_spans,
)
from tests.toys import FRUIT, TOOLS, byte_level_tokenizer, tiny_tokenizer

TOKENIZERS = {"word pieces": tiny_tokenizer, "byte level": byte_level_tokenizer}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Good films don't age.", ["Good", "films", "don't", "age"]),
        ("two-star, 3D  it 's", ["two", "star", "3D", "it", "s"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("ไม่เป็นไร", ["ไม่เป็นไร"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("", []),
        ("?!", []),
    ],
)
def test_words_are_runs_of_letters_and_digits(text: str, words: list[str]) -> None:
    assert [text[slice(*span)] for span in word_spans(text)] == words


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_only_letters_that_are_no_stop_word_are_replaceable(text: str) -> None:
    for span in replaceable_words(text):
        word = text[slice(*span)]
        assert is_alphabetic(word) and len(word) > 1 and word.lower() not in STOP_WORDS
        assert span in word_spans(text)


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_what_lies_between_the_words_stays(text: str) -> None:
    spans = word_spans(text)
    assert with_words(text, {span: text[slice(*span)] for span in spans}) == text
    emptied = with_words(text, dict.fromkeys(spans, ""))
    assert len(emptied) == len(text) - sum(end - start for start, end in spans)


def test_words_of_other_lengths_take_their_places() -> None:
    text = "a dull, dull film"
    spans = {text[start:end] + str(start): (start, end) for start, end in word_spans(text)}
    changed = {spans["film13"]: "documentary", spans["dull2"]: "so"}
    assert with_words(text, changed) == "a so, dull documentary"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_whole_words_are_pieces_that_begin_and_end_a_word(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    whole = WholeWords.of(tokenizer)
    assert {*FRUIT, *TOOLS} <= set(whole.words.values())
    tokens = {number: tokenizer.convert_ids_to_tokens(number) for number in whole.words}
    expected = {number: _as_piece(word, name) for number, word in whole.words.items()}
    assert tokens == expected
    assert whole.ids.tolist() == sorted(whole.words)


def _as_piece(word: str, name: str) -> str:
    return word if name == "word pieces" else f"Ġ{word}"


def test_only_words_of_one_piece_have_a_number() -> None:
    tokenizer = tiny_tokenizer()
    numbers = WholeWords.of(tokenizer).numbered(["apple", "Apple", "applesaw", "12"], tokenizer)
    assert numbers == dict.fromkeys(("apple", "Apple"), tokenizer.vocab["apple"])
    assert WholeWords.of(tokenizer).numbered([], tokenizer) == {}


def test_a_vocabulary_without_words_is_refused() -> None:
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b")
    model = WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    with pytest.raises(ModelError, match="0 tokens that are words"):
        WholeWords.of(tokenizer)


def test_nearest_words_by_hand() -> None:
    whole = WholeWords({1: "east", 2: "northeast", 4: "north", 5: "west"})
    embeddings = torch.tensor(
        [[1.0, 0.0], [2.0, 0.0], [1.0, 1.1], [1.0, 0.1], [0.0, 9.0], [-1.0, 0.5]]
    )  # 0 and 3 are the nearest to east, and no words
    near = nearest_words(embeddings, whole, [1, 5], 2)
    assert near == {1: ("northeast", "north"), 5: ("north", "northeast")}
    assert nearest_words(embeddings, whole, [4], 15) == {4: ("northeast", "west", "east")}


def test_no_word_is_in_two_closed_classes() -> None:
    words = Counter(word for words in CLOSED_CLASSES.values() for word in words.split())
    assert set(words.values()) == {1}


TEXTS = (
    "the film is slowly moving to a quiet madness",
    "the film was deeply felt and a story of kindness",
    "his quiet story is a sad dream",
    "she will watch a film and he can enjoy the dream",
    "we could watch it , they may enjoy it",
)


@pytest.mark.parametrize(
    ("word", "fellows"),
    [
        ("the", {"the", "a", "his"}),
        ("The", {"the", "a", "his"}),
        ("slowly", {"slowly", "deeply"}),
        ("madness", {"madness", "kindness"}),
        ("watch", {"watch", "enjoy"}),
        ("quiet", {"quiet", "sad"}),
        ("film", {"film", "story", "dream"}),
        ("unheard", {"unheard"}),
        ("12", {"12"}),
    ],
)
def test_words_are_drawn_from_their_class(word: str, fellows: set[str]) -> None:
    classes = WordClasses(TEXTS)
    assert {classes.draw(word, step / 200) for step in range(200)} == fellows


def test_words_are_drawn_as_often_as_they_stand_in_the_texts() -> None:
    classes = WordClasses(["surely surely surely hardly"])
    drawn = Counter(classes.draw("hardly", step / 100) for step in range(100))
    assert drawn == {"hardly": 25, "surely": 75}
