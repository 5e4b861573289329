"""Words split at random: as the papers draw, in training alone, and never by the tokenizer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ConfigError
from bertender.text.tokenizer import load_tokenizer
from distill.pretraining.config import TOKENIZERS, PretrainConfig
from distill.pretraining.objectives import HELD_OUT_STEP
from distill.pretraining.pretrain import pretrain
from distill.pretraining.sampling import (
    MergeDropout,
    Resegmented,
    UnigramSegmenter,
    segmenter_of,
)
from distill.pretraining.vocabularies import train_tokenizer
from tests.distill.pretraining.settings import BRIEF
from tests.toys import passages

DRAWS = 6000
UNIGRAM = {"vocab": [["a", -0.6931472], ["b", -1.3862944], ["ab", -1.3862944]]}
"""p(a) = 1/2, p(b) = p(ab) = 1/4: P(ab) = 1/4 and P(a b) = 1/8."""
MERGES = {"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", ["ab", "c"]]}
SAMPLED = {name: kind.sampled_by for name, kind in TOKENIZERS.items() if kind.sampled_by}
STRENGTHS = {"subword_alpha": 0.1, "bpe_dropout": 0.3}


def shares(segmenter: Any, word: list[int]) -> dict[tuple[int, ...], float]:
    draw = Random(0)
    found = Counter(tuple(segmenter.split(word, draw)) for _ in range(DRAWS))
    return {tokens: count / DRAWS for tokens, count in found.items()}


@pytest.mark.parametrize(
    ("alpha", "whole"),
    [(1.0, 2 / 3), (0.5, 0.5 / (0.5 + 0.125**0.5))],  # 1/4 : 1/8, and their roots
)
def test_segmentations_are_drawn_by_their_smoothed_probability(alpha: float, whole: float) -> None:
    found = shares(UnigramSegmenter(UNIGRAM, alpha), [2])
    assert found == pytest.approx({(2,): whole, (0, 1): 1 - whole}, abs=0.025)


def test_sums_over_all_segmentations_by_hand() -> None:
    _, (first, _), (second, ways) = UnigramSegmenter(UNIGRAM, 1.0).steps("ab")
    assert first == pytest.approx([1 / 2])
    assert second == pytest.approx([1 / 4, 1 / 4 + 1 / 8]) and ways == [(0, 2), (1, 1)]


def test_merges_are_passed_over_as_often_as_is_set() -> None:
    """At p = 1/2, "a b" is made in half of the draws, and then "ab c" in half of these."""
    found = shares(MergeDropout(MERGES, 0.5), [4])
    assert found == pytest.approx({(0, 1, 2): 0.5, (3, 2): 0.25, (4,): 0.25}, abs=0.025)
    assert shares(MergeDropout(MERGES, 0.0), [0, 1, 2]) == {(4,): 1.0}
    assert shares(MergeDropout(MERGES, 1.0), [4]) == {(0, 1, 2): 1.0}


def test_words_that_cannot_be_split_anew_stay() -> None:
    model = {"vocab": [["<0xC3>", -50.0], ["[CLS]", 0.0], *UNIGRAM["vocab"]]}
    segmenter = UnigramSegmenter(model, 0.5, ["[CLS]"])
    assert segmenter.split([4, 0], Random(0)) == [4, 0] and segmenter.split([1], Random(0)) == [1]
    long = UnigramSegmenter(UNIGRAM, 0.5)
    assert long.split([2] * 40, Random(0)) == [2] * 40


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    return train_tokenizer(name, passages(), 400, 64)


def resegmented(name: str, texts: list[str], longest: int = 64) -> tuple[Resegmented, Any]:
    tokenizer, strength = tokenizer_of(name), SAMPLED[name]
    config = PretrainConfig.parse({"tokenizer": name, strength: STRENGTHS[strength]})
    segmenter = segmenter_of(tokenizer, config)
    assert segmenter is not None
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    objective: Any = lambda model, batch, step: batch  # noqa: E731
    return Resegmented(objective, tokenizer, segmenter, 5, longest), dict(batch)


@pytest.mark.parametrize("name", SAMPLED)
def test_rows_have_the_same_words_in_other_tokens(name: str) -> None:
    objective, batch = resegmented(name, passages()[:40])
    tokenizer, model = tokenizer_of(name), torch.nn.Identity()
    split: Any = objective(model, batch, 0)
    assert split["input_ids"].shape[1] > batch["input_ids"].shape[1]
    assert split["attention_mask"].shape == split["input_ids"].shape
    texts, before = (
        tokenizer.batch_decode(each["input_ids"], skip_special_tokens=True)
        for each in (split, batch)
    )
    assert texts == before
    again, other = (objective(model, batch, step) for step in (0, 1))
    assert torch.equal(again["input_ids"], split["input_ids"])
    assert other["input_ids"].tolist() != split["input_ids"].tolist()
    assert objective(model, batch, HELD_OUT_STEP) is batch


@pytest.mark.parametrize("name", SAMPLED)
def test_a_row_that_outgrows_the_longest_loses_ends_and_no_frame(name: str) -> None:
    texts = [" ".join(passages()[:2])] * 9
    longest = len(tokenizer_of(name)(texts[0])["input_ids"])
    objective, batch = resegmented(name, texts, longest)
    split = objective.resegmented(batch, 0)
    tokenizer = tokenizer_of(name)
    assert split["input_ids"].shape[1] <= longest
    for row, mask in zip(split["input_ids"].tolist(), split["attention_mask"].sum(1), strict=True):
        assert row[0] == tokenizer.cls_token_id and row[int(mask) - 1] == tokenizer.sep_token_id
        assert tokenizer.decode(row, skip_special_tokens=True).strip() in texts[0]


def test_segments_go_with_their_words() -> None:
    objective, _ = resegmented("unigram", ["a"])
    tokenizer = tokenizer_of("unigram")
    batch = tokenizer(["eat the apple"], ["use the hammer"], return_tensors="pt")
    split = objective.resegmented(dict(batch), 0)
    second = split["input_ids"][0][split["token_type_ids"][0] == 1]
    assert tokenizer.decode(second, skip_special_tokens=True) == "use the hammer"


@pytest.mark.parametrize("name", ["sentencepiece", "bpe"])
def test_the_tokenizer_that_is_written_splits_nothing_at_random(name: str, tmp_path: Path) -> None:
    settings = {**BRIEF, "tokenizer": name, "vocabulary_size": 400}
    strength = {SAMPLED[name]: STRENGTHS[str(SAMPLED[name])]}
    made = {
        which: pretrain(passages(60), PretrainConfig.parse({**settings, **own}), tmp_path / which)
        for which, own in (("plain", {}), ("sampled", strength))
    }
    plain, sampled = (
        json.loads((each.path / "tokenizer.json").read_text()) for each in made.values()
    )
    assert plain == sampled
    assert not {"dropout", "alpha", "nbest_size"} & {k for k, v in sampled["model"].items() if v}
    tokenizer = load_tokenizer(made["sampled"].path)
    rows = {tuple(tokenizer("use the hammer and the pliers")["input_ids"]) for _ in range(50)}
    assert len(rows) == 1
    assert made["plain"].digest != made["sampled"].digest, "the weights differ"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"subword_alpha": 0.2}, "it splits words of tokenizer unigram, sentencepiece, not of 'wo"),
        ({"bpe_dropout": 0.1, "tokenizer": "unigram"}, "tokenizer bpe, char-bpe, not of 'unigram'"),
    ],
)
def test_tokenizers_of_another_kind_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PretrainConfig.parse(settings)
    config = PretrainConfig.parse(
        {**settings, "encoder": "some/encoder"} | {"tokenizer": "wordpiece"}
    )
    with pytest.raises(ConfigError, match="the tokenizer is of kind WordPiece"):
        segmenter_of(tokenizer_of("wordpiece"), config)
