"""Words proposed by a masked language model: which, for what, computed once and in pieces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
)

from bertender.training import checkpoint
from distill.augmentation import tinybert as module
from distill.augmentation.tinybert import blanks_of, masked_words, questions_of
from distill.augmentation.words import LanguageModel, Span, WholeWords
from tests.toys import FRUIT, TOOLS, byte_level_tokenizer, tiny_tokenizer

TEXTS = tuple(f"{FRUIT[row % 6]} {TOOLS[row % 6]} {row}" for row in range(18))
LONG = " ".join((*FRUIT, *TOOLS) * 10)
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@pytest.fixture(scope="module")
def wordpiece() -> PreTrainedTokenizerBase:
    return tiny_tokenizer()


def random_model(tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> LanguageModel:
    """An untrained model, whose answers depend on all that it reads."""
    torch.manual_seed(seed)
    shape = {**SHAPE, "vocab_size": len(tokenizer), "initializer_range": 0.5}
    if "##s" in tokenizer.get_vocab():
        model: Any = BertForMaskedLM(BertConfig(**shape, max_position_embeddings=64))
    else:
        config = RobertaConfig(**shape, max_position_embeddings=66, type_vocab_size=1)
        model = RobertaForMaskedLM(config)
    return LanguageModel("random", model.eval(), tokenizer)


def preferring(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> LanguageModel:
    """A model that finds the same pieces likeliest everywhere, the first of them most of all."""
    config = BertConfig(
        **SHAPE, vocab_size=len(tokenizer), max_position_embeddings=64, tie_word_embeddings=False
    )
    model = BertForMaskedLM(config)
    decoder = model.get_output_embeddings()
    with torch.no_grad():
        decoder.weight.zero_()
        decoder.bias.copy_(torch.linspace(0.0, -1.0, len(tokenizer)))
        for place, number in enumerate(tokenizer.convert_tokens_to_ids(list(words))):
            decoder.bias[number] = float(len(words) - place)
    return LanguageModel("preferring", model.eval(), tokenizer)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many words the model is asked for in each piece, and a piece is four texts."""
    calls: list[int] = []
    length_buckets = module.length_buckets

    def counting(lengths: Sequence[int], tokens: int) -> list[list[int]]:
        calls.append(len(lengths))
        return length_buckets(lengths, tokens)

    monkeypatch.setattr(module, "length_buckets", counting)
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 4)
    return calls


def test_the_likeliest_other_words_are_proposed_and_no_pieces_of_words(
    wordpiece: PreTrainedTokenizerBase,
) -> None:
    liked = ("##s", "[SEP]", "1", "plum", "##a", "saw", "pear", "drill")
    found = masked_words(preferring(wordpiece, liked), ["saw apple 7", "plum"], 3)
    assert found == {
        "saw apple 7": {(0, 3): ("plum", "pear", "drill"), (4, 9): ("plum", "saw", "pear")},
        "plum": {(0, 4): ("saw", "pear", "drill")},
    }


@pytest.mark.parametrize("make", [tiny_tokenizer, byte_level_tokenizer], ids=["bert", "roberta"])
def test_each_word_is_asked_for_in_its_own_place(make: Callable[[], Any]) -> None:
    """Against texts answered one by one, unpadded, with the mask set by hand."""
    tokenizer = make()
    language_model = random_model(tokenizer)
    allowed = WholeWords.of(tokenizer).words
    texts = ["2 apple, saw", "3 pear", "4 melon drill grape plum cherry hammer"]
    found = masked_words(language_model, texts, 4)
    assert [len(found[text]) for text in texts] == [2, 1, 6]
    for text in texts:
        for (start, end), words in found[text].items():
            masked = text[:start] + tokenizer.mask_token + text[end:]
            tokens = tokenizer(masked, text, return_tensors="pt")
            place = tokens["input_ids"][0].tolist().index(tokenizer.mask_token_id)
            with torch.inference_mode():
                logits = language_model.model(**tokens).logits[0, place]
            order = [allowed[n] for n in logits.argsort(descending=True).tolist() if n in allowed]
            order.remove(text[start:end])
            assert words == tuple(order[:4])


def test_words_of_several_pieces_stop_words_and_numbers_are_not_asked_for(
    wordpiece: PreTrainedTokenizerBase,
) -> None:
    text = "the apple and applesaw 12 saw2"
    blanks = blanks_of(wordpiece, WholeWords.of(wordpiece), [text])
    assert [text[slice(*blank.span)] for blank in blanks] == ["apple"]
    assert masked_words(random_model(wordpiece), ["the 12", ""], 3) == {"the 12": {}, "": {}}


def test_of_a_long_text_the_model_reads_what_is_around_the_word(
    wordpiece: PreTrainedTokenizerBase,
) -> None:
    blanks = blanks_of(wordpiece, WholeWords.of(wordpiece), [LONG])
    questions = questions_of(wordpiece, blanks)
    assert len(blanks) == 120 and max(questions.lengths) == 63
    for blank, ids, place in zip(
        blanks, questions.columns["input_ids"], questions.columns["position"], strict=True
    ):
        assert ids[place] == wordpiece.mask_token_id
        word = LONG[slice(*blank.span)]
        assert blank.context[blank.start :].startswith(word) and blank.context in LONG
        assert ids.count(wordpiece.mask_token_id) == 1
        rest = wordpiece.decode(ids[place + 1 : ids.index(wordpiece.sep_token_id)])
        assert rest == blank.masked("")[blank.start :].strip()


def test_a_killed_run_computes_only_the_pieces_that_were_not_done(
    wordpiece: PreTrainedTokenizerBase,
    computed: list[int],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language_model = random_model(wordpiece)
    counting = module.length_buckets

    def dies(*given: Any) -> list[list[int]]:
        if len(computed) == 2:
            raise KeyboardInterrupt
        return counting(*given)

    monkeypatch.setattr(module, "length_buckets", dies)
    with pytest.raises(KeyboardInterrupt):
        masked_words(language_model, TEXTS, 3)
    assert len(list(cache.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(module, "length_buckets", counting)
    resumed = masked_words(language_model, TEXTS, 3)
    assert computed == [8, 8, 8, 8, 4], "18 texts of two words, four texts a piece"
    monkeypatch.setenv("BERTENDER_CACHE", str(cache / "another"))
    assert masked_words(language_model, TEXTS, 3) == resumed


def test_answers_are_computed_once_for_all_that_they_depend_on(
    wordpiece: PreTrainedTokenizerBase, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    language_model, texts = random_model(wordpiece), TEXTS[:4]
    first = masked_words(language_model, texts, 3)
    assert masked_words(language_model, texts, 3) == first and len(computed) == 1
    masked_words(random_model(wordpiece, seed=1), texts, 3)
    masked_words(language_model, texts, 2)
    masked_words(language_model, texts, 3, bf16=True)
    masked_words(language_model, TEXTS[4:8], 3)
    assert len(computed) == 5
    assert masked_words(language_model, TEXTS, 3).items() >= first.items()
    assert len(computed) == 8, "the first two pieces were known"
    versions = checkpoint.library_versions() | {"torch": "0"}
    monkeypatch.setattr(checkpoint, "library_versions", lambda: versions)
    masked_words(language_model, texts, 3)
    assert len(computed) == 9, "another version may give other words"


@pytest.mark.parametrize("damage", ["cut", "other", "shape"])
def test_a_damaged_piece_is_computed_again_with_a_warning(
    damage: str,
    wordpiece: PreTrainedTokenizerBase,
    computed: list[int],
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    language_model, texts = random_model(wordpiece), TEXTS[:8]
    first = masked_words(language_model, texts, 3)
    path, other = sorted(cache.rglob("*.safetensors"))
    masked_words(language_model, TEXTS[8:9], 3)
    (smaller,) = {*cache.rglob("*.safetensors")} - {path, other}
    contents = {"cut": path.read_bytes()[:-40], "other": b"{}", "shape": smaller.read_bytes()}
    path.write_bytes(contents[damage])
    with caplog.at_level(logging.WARNING):
        assert masked_words(language_model, texts, 3) == first
    assert len(computed) == 4 and "made again" in caplog.text
    assert masked_words(language_model, texts, 3) == first
    assert len(computed) == 4


def test_a_cache_that_cannot_be_written_is_a_warning(
    wordpiece: PreTrainedTokenizerBase,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache.write_text("a file where a folder should be")
    found: dict[str, dict[Span, tuple[str, ...]]] = {
        text: dict(words)
        for text, words in masked_words(random_model(wordpiece), ["saw"], 2).items()
    }
    assert len(found["saw"][0, 3]) == 2 and "cannot be cached" in caplog.text
