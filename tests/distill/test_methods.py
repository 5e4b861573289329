"""The rows of METHODS as losses: their parts, weights and temperature, and what they train."""

from __future__ import annotations

import pytest
import torch

from distill.distiller import DistillationObjective
from distill.methods import METHODS, method_named
from distill.students import distilbert_student
from tests.distill.toys import tiny_classifier, tiny_tokenizer


@pytest.mark.parametrize("name", METHODS)
def test_the_objective_trains_the_student_alone(name: str) -> None:
    teacher = tiny_classifier("bert").train()
    before = {key: tensor.clone() for key, tensor in teacher.state_dict().items()}
    student = distilbert_student(teacher, 2)
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    logits = torch.zeros(2, 2)
    batch = {**tokens, "labels": torch.tensor([0, 1]), "teacher_logits": logits}
    parts = DistillationObjective(METHODS[name], teacher)(student, batch, 0)
    assert not teacher.training  # or dropout would blur its answers
    sum(parts.values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert any(parameter.grad.abs().max() > 0 for parameter in student.parameters())
    assert all(torch.equal(before[key], now) for key, now in teacher.state_dict().items())


def test_weights_scale_the_parts_and_zero_removes_one() -> None:
    teacher = tiny_classifier("bert")
    student = distilbert_student(teacher, 2).eval()
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    batch = {**tokens, "labels": torch.tensor([0, 1]), "teacher_logits": torch.ones(2, 2)}

    def parts(**weights: float) -> dict[str, float]:
        method = method_named("distilbert").with_weights(weights, None)
        losses = DistillationObjective(method, teacher)(student, batch, 0)
        return {name: float(loss.detach()) for name, loss in losses.items()}

    usual = parts()
    assert parts(hard=1.5)["hard"] == pytest.approx(3 * usual["hard"])
    assert set(parts(cosine=0)) == {"soft", "hard"}
    assert parts(soft=0, hard=0) == {"cosine": pytest.approx(usual["cosine"])}


def test_temperature_reaches_the_soft_labels_alone() -> None:
    terms = {t.name: t for t in method_named("distilbert").with_weights({}, 7.0).terms}
    assert terms["soft"].temperature == 7.0
    assert terms["hard"] == METHODS["distilbert"].terms[1]
    assert METHODS["distilbert"].terms[0].temperature == 2.0


def test_without_hidden_states_the_teacher_is_not_run() -> None:
    teacher = tiny_classifier("bert")
    student = distilbert_student(teacher, 1)
    method = method_named("distilbert").with_weights({"cosine": 0}, None)
    teacher.register_forward_hook(lambda *given: pytest.fail("the teacher was run"))
    tokens = tiny_tokenizer()(["apple"], return_tensors="pt")
    batch = {**tokens, "labels": torch.tensor([0]), "teacher_logits": torch.zeros(1, 2)}
    assert set(DistillationObjective(method, teacher)(student, batch, 0)) == {"soft", "hard"}
