"""Vocabulary pruning: texts whose pieces stay are read as before, and no other becomes unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import BertTokenizerFast, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.pretraining.config import TOKENIZERS
from distill.pretraining.vocabularies import train_tokenizer
from distill.pretraining.vocabulary_cutting import (
    RemainingTokens,
    cut_vocabulary,
    needed_tokens,
)
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from tests.toy_models import LONGEST, save_artifact, tiny_classifier
from tests.toys import passages

SIZE = 400
FEW = ["eat the plum", "use the saw from the box"]


def whole(name: str) -> PreTrainedTokenizerBase:
    return train_tokenizer(name, passages(), SIZE, LONGEST)


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(request: pytest.FixtureRequest) -> tuple[PreTrainedTokenizerBase, RemainingTokens]:
    tokenizer = whole(request.param)
    return tokenizer, needed_tokens(tokenizer, FEW)


def spelt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_texts_whose_pieces_stay_are_cut_as_before(
    pair: tuple[PreTrainedTokenizerBase, RemainingTokens],
) -> None:
    tokenizer, tokens = pair
    assert len(tokens.tokenizer) == len(tokens.rows) < len(tokenizer)
    for text in (*FEW, "the plum from the saw", "box box"):
        before, after = tokenizer(text)["input_ids"], tokens.tokenizer(text)["input_ids"]
        assert spelt(tokens.tokenizer, text) == spelt(tokenizer, text)
        assert [tokens.rows[number] for number in after] == before


def test_pairs_and_special_tokens_keep_their_places(
    pair: tuple[PreTrainedTokenizerBase, RemainingTokens],
) -> None:
    tokenizer, tokens = pair
    before, after = (each(FEW[0], FEW[1])["input_ids"] for each in (tokenizer, tokens.tokenizer))
    assert [tokens.rows[number] for number in after] == before
    assert tokens.tokenizer.special_tokens_map == tokenizer.special_tokens_map
    assert tokens.tokenizer.pad_token_id == tokenizer.pad_token_id


@settings(max_examples=60)
@given(st.text(max_size=30))
def test_no_text_becomes_unknown(text: str) -> None:
    for name in TOKENIZERS:
        tokenizer, tokens = CUT[name]
        before, after = (
            each(text, add_special_tokens=False)["input_ids"]
            for each in (tokenizer, tokens.tokenizer)
        )
        unknown = tokenizer.unk_token_id
        if unknown not in before:
            assert tokens.tokenizer.unk_token_id not in after


CUT = {name: (whole(name), needed_tokens(whole(name), FEW)) for name in TOKENIZERS}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_it_saves_and_opens_as_it_is(name: str, tmp_path: Path) -> None:
    _, tokens = CUT[name]
    tokens.tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.get_vocab() == tokens.tokenizer.get_vocab()
    for text in (*FEW, "the hammer and 17 drills"):
        assert again(text)["input_ids"] == tokens.tokenizer(text)["input_ids"]
    assert again.model_max_length == LONGEST


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "electra", "mobilebert", "albert"])
def test_a_model_answers_as_before(model_type: str) -> None:
    tokenizer, tokens = CUT["wordpiece"]
    model = tiny_classifier(model_type, vocab_size=len(tokenizer)).eval()
    keys = ["input_ids", "attention_mask"]
    given_ = {
        name: {key: each(FEW, padding=True, return_tensors="pt")[key] for key in keys}
        for name, each in (("before", tokenizer), ("after", tokens.tokenizer))
    }
    with torch.inference_mode():
        expected = model(**given_["before"]).logits
        cut_vocabulary(model, tokens)
        found = model(**given_["after"]).logits
    torch.testing.assert_close(found, expected)
    assert model.config.vocab_size == len(tokens.rows) == len(model.get_input_embeddings().weight)


def test_rare_pieces_go() -> None:
    tokenizer = whole("wordpiece")
    texts = ["the plum", "the saw", "the box"]
    often = needed_tokens(tokenizer, texts, floor=3).tokenizer.get_vocab()
    always = needed_tokens(tokenizer, texts).tokenizer.get_vocab()
    assert "the" in often and "plum" not in often and "plum" in always


def test_the_most_frequent_pieces_fit_into_a_size(
    pair: tuple[PreTrainedTokenizerBase, RemainingTokens],
) -> None:
    tokenizer, tokens = pair
    whole_size, texts = len(tokens.rows), [*FEW, "the plum"]
    for size in (whole_size, whole_size - 1, whole_size - 2):
        fewer = needed_tokens(tokenizer, texts, size=size)
        assert size - 3 <= len(fewer.rows) <= size, "a piece may need parts of its own"
        assert set(fewer.rows) <= set(tokens.rows)
    the = spelt(tokenizer, "the")[1]
    assert the in fewer.tokenizer.get_vocab(), "it occurs most often"
    with pytest.raises(ConfigError, match=r"vocab_size=3: single characters .* Give \d+ or more"):
        needed_tokens(tokenizer, texts, size=3)


def test_what_cannot_be_pruned_is_refused() -> None:
    tokenizer, tokens = CUT["wordpiece"]
    with pytest.raises(DataError, match="no texts to count tokens in"):
        needed_tokens(tokenizer, ["", ""])
    model = tiny_classifier("roberta", vocab_size=len(tokenizer), pad_token_id=9)
    gone = RemainingTokens(tokens.tokenizer, tuple(row for row in tokens.rows if row != 3))
    with pytest.raises(ModelError, match="padding of this 'roberta' model is token 9"):
        cut_vocabulary(model, gone)
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = description["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] += 1
    gaps = BertTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(description)))
    with pytest.raises(ModelError, match="have gaps"):
        needed_tokens(gaps, FEW)


def test_special_tokens_keep_their_meaning_where_their_numbers_change() -> None:
    """RoBERTa's processor names its own by number, and a config may too."""
    trained = whole("bpe")
    description = json.loads(trained.backend_tokenizer.to_str())
    numbers = {name: trained.convert_tokens_to_ids(name) for name in ("<s>", "</s>")}
    description["post_processor"] = {
        "type": "RobertaProcessing",
        "cls": ["<s>", numbers["<s>"]],
        "sep": ["</s>", numbers["</s>"]],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    description["added_tokens"].append(
        {**description["added_tokens"][0], "id": len(trained), "content": "<last>"}
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(description)),
        eos_token="<last>",
        unk_token=trained.unk_token,
        pad_token=trained.pad_token,
    )
    tokens = needed_tokens(tokenizer, FEW)
    model = tiny_classifier("bert", vocab_size=len(tokenizer), eos_token_id=len(trained))
    cut_vocabulary(model, tokens)
    assert model.config.eos_token_id == tokens.tokenizer.convert_tokens_to_ids("<last>")
    before, after = (each(FEW[0])["input_ids"] for each in (tokenizer, tokens.tokenizer))
    assert [tokens.rows[number] for number in after] == before


@pytest.mark.parametrize("model_type", ["bertender-bilstm", "bertender-static"])
def test_models_without_layers_give_up_words_too(model_type: str) -> None:
    tokenizer, tokens = CUT["wordpiece"]
    model = tiny_classifier(model_type, vocab_size=len(tokenizer)).eval()
    per_token = [name for name, each in model.named_parameters() if len(each) == len(tokenizer)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokenizer(FEW[0])["input_ids"]])).logits
        cut_vocabulary(model, tokens)
        found = model(torch.tensor([tokens.tokenizer(FEW[0])["input_ids"]])).logits
    torch.testing.assert_close(found, expected)
    sizes = {name: len(each) for name, each in model.named_parameters() if name in per_token}
    assert set(sizes.values()) == {len(tokens.rows)} and sizes.keys() == set(per_token)


@pytest.mark.parametrize("model_type", ["bertender-bilstm", "bertender-static"])
def test_a_model_without_layers_is_pruned_of_words_alone(
    model_type: str, task: Task, tmp_path: Path
) -> None:
    whole = save_artifact(tiny_classifier(model_type), task, tmp_path / "whole")
    config = PruneConfig.parse({"vocab": "task", "recover": False})
    pruned = prune(whole, task, config, tmp_path / "pruned")
    findings = pruned.card.findings.pruning
    assert findings.vocabulary.after.entries < findings.vocabulary.before.entries
