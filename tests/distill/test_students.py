"""Students: a copy of the teacher's layers that answers as the teacher where it can."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DistilBertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.families import FAMILIES
from distill.students import alternating_layers, distilbert_student
from tests.distill.toys import VOCABULARY, tiny_classifier

MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


def hidden_states(model: PreTrainedModel) -> list[torch.Tensor]:
    """Embeddings and each layer's output, for real tokens only: (tokens, hidden)."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, VOCABULARY, MASK.shape, generator=generator)
    pad = model.config.pad_token_id
    ids = torch.where(MASK.bool(), ids, torch.tensor(pad))
    with torch.inference_mode():
        outputs = model(input_ids=ids, attention_mask=MASK, output_hidden_states=True)
    return [states[MASK.bool()] for states in outputs.hidden_states]


def without_relative_positions(model: PreTrainedModel) -> PreTrainedModel:
    """Zero the one thing of a teacher that a DistilBERT cannot hold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative" in name:
                parameter.zero_()
    return model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_student_of_full_depth_has_the_teachers_hidden_states(model_type: str) -> None:
    teacher = without_relative_positions(tiny_classifier(model_type))
    student = distilbert_student(teacher, 4).eval()
    pairs = zip(hidden_states(student), hidden_states(teacher), strict=True)
    for layer, (ours, theirs) in enumerate(pairs):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda m, n=layer: f"{n}: {m}"
        )


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_shorter_student_has_the_chosen_layers(model_type: str) -> None:
    teacher = tiny_classifier(model_type)
    student = distilbert_student(teacher, 2, (1, 3))
    family = FAMILIES[model_type]
    for source, target in zip((1, 3), student.distilbert.transformer.layer, strict=True):
        layer = teacher.base_model.get_submodule(f"{family.layers}.{source}")
        assert torch.equal(target.ffn.lin1.weight, layer.get_submodule(family.ffn_in).weight)
        assert torch.equal(target.attention.v_lin.bias, layer.get_submodule(family.value).bias)


def test_the_student_is_a_distilbert_without_token_types() -> None:
    student = distilbert_student(tiny_classifier("bert"), 2)
    assert type(student) is DistilBertForSequenceClassification
    assert not [name for name, _ in student.named_parameters() if "token_type" in name]
    assert student.config.n_layers == 2
    assert student.config.max_position_embeddings == 64


def test_the_student_shares_no_memory_with_its_teacher() -> None:
    teacher = tiny_classifier("bert")
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = distilbert_student(teacher, 4)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], now) for name, now in teacher.state_dict().items())


def test_labels_and_their_names_come_along() -> None:
    teacher = tiny_classifier("bert", labels=3)
    teacher.config.id2label = {0: "a", 1: "b", 2: "c"}
    student = distilbert_student(teacher, 1)
    assert student.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert student.classifier.out_features == 3


def test_alternating_layers() -> None:
    assert alternating_layers(12, 6) == (0, 2, 4, 7, 9, 11), "the published checkpoint's"
    assert alternating_layers(6, 3) == (1, 3, 5)
    assert alternating_layers(6, 1) == (5,)


@given(st.integers(1, 48).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(1, depth))))
def test_alternating_layers_ascend_to_the_last(depths: tuple[int, int]) -> None:
    teacher, student = depths
    chosen = alternating_layers(teacher, student)
    assert len(chosen) == student
    assert list(chosen) == sorted(set(chosen))
    assert chosen[0] >= 0
    assert chosen[-1] == teacher - 1


REFUSED = {
    "too deep": ("bert", {}, 5, None, r"layers=5: the teacher has only 4\. Choose 1 to 4"),
    "wrong count": ("bert", {}, 2, (0, 1, 2), r"teacher_layers=\(0, 1, 2\): give 2 layers between"),
    "no such layer": ("bert", {}, 2, (0, 4), r"between 0 and 3"),
    "factorised": ("electra", {"embedding_size": 16}, 2, None, r"16 wide and its layers 32"),
    "unknown family": ("albert", {}, 2, None, r"'albert'.*Known: bert, .*xlm-roberta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_students_are_refused(case: str) -> None:
    model_type, changes, layers, chosen, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        distilbert_student(tiny_classifier(model_type, **changes), layers, chosen)
