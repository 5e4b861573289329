"""The losses of distillation: exact values, masks, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distill.losses import hard_labels, hidden_cosine, soft_labels

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
LOSSES: dict[str, tuple[Loss, tuple[int, ...]]] = {
    "soft": (lambda student, teacher: soft_labels(student, teacher, 2.0), (4, 3)),
    "cosine": (lambda student, teacher: hidden_cosine(student, teacher, MASK), (2, 3, 8)),
}
"""Losses between a student's and a teacher's tensor, and a shape for both."""

every_loss = pytest.mark.parametrize("name", LOSSES)


def tensors(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn((2, *shape), generator=generator, dtype=torch.float64)
    return student.to(dtype).requires_grad_(), teacher.to(dtype)


@every_loss
def test_a_student_equal_to_its_teacher_has_no_loss(name: str) -> None:
    loss, shape = LOSSES[name]
    _, teacher = tensors(shape)
    assert float(loss(teacher.clone(), teacher)) == pytest.approx(0, abs=1e-6)


@every_loss
def test_another_student_has_a_loss(name: str) -> None:
    loss, shape = LOSSES[name]
    assert float(loss(*tensors(shape)).detach()) > 0.01


@every_loss
def test_no_gradient_reaches_the_teacher(name: str) -> None:
    loss, shape = LOSSES[name]
    student, teacher = tensors(shape)
    teacher.requires_grad_()
    loss(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None and student.grad.abs().max() > 0


@every_loss
def test_the_gradient_is_the_slope(name: str) -> None:
    loss, shape = LOSSES[name]
    student, teacher = tensors(shape, torch.float64)
    assert torch.autograd.gradcheck(lambda values: loss(values, teacher), (student,))


@every_loss
def test_bfloat16_is_summed_in_float32(name: str) -> None:
    loss, shape = LOSSES[name]
    student, teacher = tensors(shape, torch.bfloat16)
    value = loss(student, teacher)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(student.float(), teacher.float()))


def test_hard_labels_gradient_and_precision() -> None:
    logits, _ = tensors((4, 3), torch.float64)
    labels = torch.tensor([0, 2, 1, 1])
    assert torch.autograd.gradcheck(lambda values: hard_labels(values, labels), (logits,))
    assert hard_labels(logits.bfloat16(), labels).dtype == torch.float32


def test_hard_labels_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    loss = hard_labels(logits, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_soft_labels_by_hand() -> None:
    """At T = 2 the teacher's odds 9 to 1 become 3 to 1; the student stays at 1 to 1."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[math.log(9.0), 0.0]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(soft_labels(student, teacher, 2.0)) == pytest.approx(4 * divergence)


def test_soft_labels_are_the_mean_over_the_batch() -> None:
    student, teacher = (tensor.detach() for tensor in tensors((4, 3)))
    alone = [float(soft_labels(student[i : i + 1], teacher[i : i + 1], 3.0)) for i in range(4)]
    assert float(soft_labels(student, teacher, 3.0)) == pytest.approx(sum(alone) / 4, rel=1e-5)


@given(temperature=st.floats(1.0, 20.0))
def test_temperature_squared_keeps_the_gradient_for_near_equal_logits(temperature: float) -> None:
    """Hinton et al., equation 4: in the limit it is (student - teacher) / labels at every T."""
    student, teacher = tensors((5, 3), torch.float64)
    student = (student.detach() * 0.01).requires_grad_()
    teacher = teacher * 0.01
    soft_labels(student, teacher, temperature).backward()
    gap = student.detach() - teacher
    expected = (gap - gap.mean(dim=1, keepdim=True)) / 3 / len(gap)
    assert student.grad is not None
    torch.testing.assert_close(student.grad, expected, rtol=0.05, atol=2e-5)


def test_hidden_cosine_by_hand() -> None:
    """Cosines 1, 0 and -1 over three real tokens; the length of a state is of no account."""
    student = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]]])
    teacher = torch.tensor([[[5.0, 0.0], [1.0, 0.0], [-2.0, -2.0]]])
    assert float(hidden_cosine(student, teacher, torch.ones(1, 3))) == pytest.approx(1.0)


def test_padding_has_no_part_in_the_cosine() -> None:
    student, teacher = tensors((2, 3, 8))
    loss = hidden_cosine(student, teacher, MASK)
    padded = student.detach().clone()
    padded[1, 2] = 1000.0
    assert torch.equal(hidden_cosine(padded, teacher, MASK), loss)
    loss.backward()
    assert student.grad is not None and student.grad[1, 2].abs().max() == 0
