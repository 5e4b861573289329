"""Models that answer questions: the logits of a token side by side, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    BertConfig,
    BertForQuestionAnswering,
    PreTrainedModel,
)

from bertender.core.errors import ModelError
from bertender.models.classifier import input_names, open_classifier
from bertender.models.families import FAMILIES
from bertender.models.importing import open_artifact
from bertender.models.own_models import (
    PRUNABLE,
    answering,
    answering_class,
    answering_head,
    load_pretrained,
)
from tests.toy_models import SHAPES
from tests.toys import tiny_tokenizer

UNANSWERING = {
    "big_bird": "not one layer with two outputs",
    **dict.fromkeys(
        ("eurobert", "gte", "nomic_bert"), "transformers .* has no AutoModelForQuestionAnswering"
    ),
}
"""Families that answer no questions, and how they are refused."""

TOKENS = {
    "input_ids": torch.tensor([[2, 5, 3, 6, 7, 3], [2, 5, 3, 6, 3, 0]]),
    "attention_mask": torch.tensor([[1] * 6, [1] * 5 + [0]]),
}


def tiny_answerer(model_type: str) -> PreTrainedModel:
    torch.manual_seed(4)
    config = AutoConfig.for_model(model_type, **{**SHAPES[model_type], "num_labels": 2})
    model: PreTrainedModel = AutoModelForQuestionAnswering.from_config(config).eval()
    return model


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in UNANSWERING])
def test_every_family_has_both_logits_of_a_token(model_type: str) -> None:
    model = tiny_answerer(model_type)
    known: Any = type(model)
    names = input_names(model)
    with torch.inference_mode():
        before = model(**TOKENS)
        after: Any = answering(model)(**TOKENS)
    assert torch.equal(after.logits[..., 0], before.start_logits)
    assert torch.equal(after.logits[..., 1], before.end_logits)
    made: Any = type(model)
    assert made is answering_class(known) is answering_class(made)
    assert (type(model).__name__, input_names(model)) == (known.__name__, names)
    assert not answering_head(model)._forward_hooks


@pytest.mark.parametrize("model_type", [name for name in UNANSWERING if name in FAMILIES])
def test_a_family_that_answers_no_questions_is_refused(model_type: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(model_type, **SHAPES[model_type])
    AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=UNANSWERING[model_type]):
        load_pretrained(AutoModelForQuestionAnswering, str(tmp_path))


def test_a_head_of_another_form_is_refused() -> None:
    model = tiny_answerer("bert")
    model.qa_outputs = torch.nn.Linear(32, 3)
    with pytest.raises(ModelError, match="BertForQuestionAnswering is not one layer with two"):
        answering(model)


def test_a_pruned_form_answers_questions() -> None:
    row = PRUNABLE["bert"]
    model = answering(tiny_answerer("bert"))
    origin, pruned = row.classes_of(model)
    assert issubclass(pruned, BertForQuestionAnswering) and isinstance(model, origin)
    made = pruned(row.config(**{**SHAPES["bert"], "num_labels": 2})).eval()
    made.load_state_dict(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(made(**TOKENS).logits, model(**TOKENS).logits)


def test_a_finished_model_is_opened_and_may_give_no_answer(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(4)
    shape = {**SHAPES["bert"], "vocab_size": len(tokenizer)}
    model = BertForQuestionAnswering(BertConfig(**shape)).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    artifact = open_artifact(tmp_path / "model")
    task = artifact.card.task
    assert (task.problem_type, task.labels) == ("question_answering", ("start", "end"))
    assert (task.text_columns, task.fitted) == (("question", "context"), {"no_answer": 0.0})
    of_data = task.model_copy(update={"source": {"dev": "dev.json"}, "fitted": {}})
    assert artifact.of_task(of_data).card.task.fitted == {"no_answer": 0.0}, "for the data, too"
    example = ("number 1", "apple pear plum")
    (own,) = open_classifier(artifact).outputs([example])
    tokens = tokenizer(*example, return_tensors="pt")
    with torch.inference_mode():
        theirs = AutoModelForQuestionAnswering.from_pretrained(artifact.path).eval()(**tokens)
    places = [0, *range(len(tokens["input_ids"][0]) - 4, len(tokens["input_ids"][0]) - 1)]
    starts = theirs.start_logits[0, places].numpy()
    assert own.logits[:, 0] == pytest.approx(starts, abs=1e-5)
