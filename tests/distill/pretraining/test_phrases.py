"""Phrases of a file, masked as wholes wherever a corpus has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast  # type: ignore[attr-defined]  # in transformers 5

from bertender.core.errors import ConfigError, DataError
from distill.pretraining.config import TOKENIZERS, PretrainConfig
from distill.pretraining.masking import PhraseSpans
from distill.pretraining.pretrain import pretrain
from distill.pretraining.vocabularies import OF_WORDPIECE, train_tokenizer
from tests.distill.pretraining.settings import BRIEF
from tests.toys import passages, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def units(spans: PhraseSpans, text: str, budget: int = 9) -> list[str]:
    ids = torch.tensor([TOKENIZER(text)["input_ids"]])
    (row,) = spans.words(ids, ids > 4)
    return [TOKENIZER.decode(ids[0, start:end]) for start, end in spans.units(ids[0], row, budget)]


def test_the_longest_phrase_is_one_unit_by_hand() -> None:
    spans = PhraseSpans(TOKENIZER, ["apple pear", "apple pear plum", "saw"])
    assert units(spans, "apple pear drill") == ["apple pear", "drill"]
    assert units(spans, "apple pear plum saw") == ["apple pear plum", "saw"]
    assert units(spans, "pear apple") == ["pear", "apple"]
    assert units(spans, "apple apple pear plum apple") == ["apple", "apple pear plum", "apple"]


def test_a_phrase_ends_where_a_word_ends() -> None:
    """A number of several tokens that begins as the phrase does is another word."""
    first, *rest = TOKENIZER.tokenize("apple 987")[1:]
    assert rest and not first.startswith("##"), "or the test shows nothing"
    spans = PhraseSpans(TOKENIZER, [f"apple {first}"])
    assert units(spans, "apple 987") == ["apple", "987"]
    assert units(spans, f"apple {first}") == [f"apple {first}"]


def test_a_phrase_that_is_too_long_falls_into_shorter_ones() -> None:
    spans = PhraseSpans(TOKENIZER, ["apple pear plum saw", "apple pear"])
    text = "apple pear plum saw drill"
    assert units(spans, text, 4) == ["apple pear plum saw", "drill"]
    assert units(spans, text, 3) == ["apple pear", "plum", "saw", "drill"]
    assert units(spans, text, 1) == ["apple", "pear", "plum", "saw", "drill"]


def test_words_of_a_phrase_that_never_fits_are_chosen() -> None:
    spans = PhraseSpans(TOKENIZER, ["apple pear plum"])
    ids = torch.tensor([TOKENIZER("apple pear plum saw")["input_ids"]] * 200)
    chosen = spans(ids, ids > 4, 0.25, torch.Generator().manual_seed(0))
    assert (chosen.sum(1) == 1).all() and chosen[:, 1:5].any(0).all()


def test_a_phrase_occurs_from_the_start_of_a_word_to_an_end() -> None:
    """A part of a word is not it: "art" in "start" and in "artist"."""
    tokens = [*OF_WORDPIECE, "art", "st", "##art", "##ist", "by"]
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = BertTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(numbers)._tokenizer, unk_token="[UNK]"
    )
    spans = PhraseSpans(tokenizer, ["art", "st art"])
    found = {
        text: spans.found(tokenizer(text)["input_ids"], 0.3)
        for text in ("start by artist", "by art", "by artist art", "st art by by")
    }
    assert [*found.values()] == [[], [True], [True], [False, True]]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenizer_has_them_at_the_start_and_within_a_text(name: str) -> None:
    tokenizer = train_tokenizer(name, passages(), 400, 64)
    spans = PhraseSpans(tokenizer, ["the apple"])
    for text in ("the apple", "eat the apple"):
        assert spans.found(tokenizer(text)["input_ids"], 0.9) == [True]
        assert spans.found(tokenizer(text)["input_ids"], 0.1) == [False]
    assert not spans.found(tokenizer("eat the plum")["input_ids"], 0.9)


def test_all_tokens_of_a_phrase_are_chosen_together() -> None:
    spans = PhraseSpans(TOKENIZER, ["apple pear plum"])
    ids = torch.tensor([TOKENIZER("saw " * 9 + "apple pear plum drill")["input_ids"]] * 200)
    chosen = spans(ids, ids > 4, 0.3, torch.Generator().manual_seed(0))
    apple, pear, plum = (chosen[:, place] for place in (10, 11, 12))
    assert torch.equal(apple, pear) and torch.equal(pear, plum)
    assert 0.05 < apple.float().mean() < 0.6


def test_phrases_are_read_from_a_file_and_one_must_occur(tmp_path: Path) -> None:
    file = tmp_path / "phrases.txt"
    config = PretrainConfig.parse({**BRIEF, "objective": "phrase", "phrases": file})
    for text, said in (("\n \n", "has no phrase"), ("no such thing\n", "none of the 1 phrases")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=said):
            pretrain(passages(60), config, tmp_path / "out")
    file.write_text("eat the apple\n", encoding="utf-8")
    few = config.changed({"mask_probability": 0.03})
    with pytest.raises(DataError, match=r"none of the 1 phrases .* fits.*mask_probability=0.03"):
        pretrain(passages(60), few, tmp_path / "out")
    file.write_text("the apple\n\nno such thing\n", encoding="utf-8")
    made = pretrain(passages(60), config, tmp_path / "out")
    assert made.card.config["phrases"] == str(file)


def test_the_file_and_its_objective_go_together() -> None:
    with pytest.raises(ConfigError, match="Give it by --phrases"):
        PretrainConfig.parse({"objective": "phrase"})
    with pytest.raises(ConfigError, match="Give --objective phrase, or leave this out"):
        PretrainConfig.parse({"phrases": "p.txt"})
    with pytest.raises(ConfigError, match="other tokens than the phrases"):
        settings = {"tokenizer": "bpe", "bpe_dropout": 0.1, "objective": "phrase"}
        PretrainConfig.parse({**settings, "phrases": "p.txt"})
