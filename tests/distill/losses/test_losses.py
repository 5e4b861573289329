"""The losses of distillation: exact values, masks, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertender.training.heads.head import hard_labels, logit_mse, soft_labels
from bertender.training.heads.texts import SetHead
from distill.losses.terms import (
    attention_divergence,
    attention_mse,
    hidden_cosine,
    hidden_mean_mse,
    hidden_mse,
    hidden_variance_difference,
    normalised_hidden_mse,
    normalised_sentence_mse,
    relation_divergence,
    sentence_cosine,
    soft_cross_entropy,
    token_soft_labels,
    vocabulary_labels,
    weight_mse,
)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MaskedLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
SENTENCE, HIDDEN, SCORES, HEADS = (2, 8), (2, 3, 8), (2, 4, 3, 3), (2, 4, 3, 6)
MASKED: dict[str, tuple[MaskedLoss, tuple[int, ...]]] = {
    "cosine": (hidden_cosine, HIDDEN),
    "hidden": (hidden_mse, HIDDEN),
    "words": (partial(token_soft_labels, temperature=2.0), HIDDEN),
    "features": (normalised_hidden_mse, HIDDEN),
    "means": (hidden_mean_mse, HIDDEN),
    "variances": (hidden_variance_difference, HIDDEN),
    "attention scores": (attention_mse, SCORES),
    "attention": (attention_divergence, SCORES),
    "relations": (relation_divergence, HEADS),
    "relations cut anew": (partial(relation_divergence, relation_heads=8), HEADS),
}
"""Losses over tokens, and a shape of both tensors: (batch=2, ..., seq=3, ...)."""


LOSSES: dict[str, tuple[Loss, tuple[int, ...]]] = {
    "soft": (lambda student, teacher: soft_labels(student, teacher, 2.0), (4, 3)),
    "logits": (logit_mse, (4, 3)),
    "patience": (normalised_sentence_mse, SENTENCE),
    "sentence": (sentence_cosine, SENTENCE),
    **{
        name: (partial(lambda loss, *given: loss(*given, MASK), loss), shape)
        for name, (loss, shape) in MASKED.items()
    },
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


def test_soft_labels_of_tokens_are_the_mean_over_real_ones() -> None:
    student, teacher = (tensor.detach() for tensor in tensors((2, 3, 5)))
    real = [(student[text, token], teacher[text, token]) for text, token in MASK.nonzero().tolist()]
    alone = [float(soft_labels(ours[None], theirs[None], 2.0)) for ours, theirs in real]
    loss = token_soft_labels(student, teacher, MASK, 2.0)
    assert float(loss) == pytest.approx(sum(alone) / 5, rel=1e-5)


def test_logit_mse_by_hand() -> None:
    """Squares 4 and 0 of the first text, 1 and 9 of the second; no softmax hides a shift of all."""
    student = torch.tensor([[2.0, 5.0], [1.0, 0.0]])
    teacher = torch.tensor([[0.0, 5.0], [0.0, 3.0]])
    assert float(logit_mse(student, teacher)) == pytest.approx(14 / 4)
    assert float(logit_mse(student + 2.0, student)) == pytest.approx(4.0)
    assert float(SetHead().logit_loss(student, teacher, {})) == pytest.approx(14 / 4)


def test_soft_labels_are_the_mean_over_the_batch() -> None:
    student, teacher = (tensor.detach() for tensor in tensors((4, 3)))
    alone = [float(soft_labels(student[i : i + 1], teacher[i : i + 1], 3.0)) for i in range(4)]
    assert float(soft_labels(student, teacher, 3.0)) == pytest.approx(sum(alone) / 4, rel=1e-5)


def test_soft_token_labels_by_hand() -> None:
    """The second token as in `test_soft_labels_by_hand`; the first equal, the third padding."""
    teacher = torch.tensor([[[0.0, 0.0], [math.log(9.0), 0.0], [5.0, 0.0]]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = token_soft_labels(torch.zeros(1, 3, 2), teacher, torch.tensor([[1, 1, 0]]), 2.0)
    assert float(loss) == pytest.approx(4 * divergence / 2)


def test_a_batch_without_a_real_token_has_no_loss() -> None:
    student, teacher = tensors(HIDDEN)
    none = torch.zeros_like(MASK)
    assert float(token_soft_labels(student, teacher, none, 2.0).detach()) == 0.0
    assert float(soft_cross_entropy(student[:0, 0], teacher[:0, 0], 1.0).detach()) == 0.0


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


@pytest.mark.parametrize("name", MASKED)
def test_padding_has_no_part(name: str) -> None:
    """Whatever stands at the third token of the second text, for the student and the teacher."""
    loss, shape = MASKED[name]
    student, teacher = tensors(shape)
    value = loss(student, teacher, MASK)
    changed = [tensor.detach().clone() for tensor in (student, teacher)]
    for number, tensor in enumerate(changed, start=1):
        for place in _padding(name, tensor):
            place.fill_(100.0 * number)
    torch.testing.assert_close(loss(*changed, MASK), value.detach())
    value.backward()
    assert student.grad is not None
    assert all(place.abs().max() == 0 for place in _padding(name, student.grad))


def _padding(name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of what belongs to the padded token: its states, or its row and column of scores."""
    if name in ("attention scores", "attention"):
        return [tensor[1, :, 2, :], tensor[1, :, :, 2]]
    return [tensor[1, 2]] if tensor.ndim == 3 else [tensor[1, :, 2]]


def test_hidden_mse_by_hand() -> None:
    """Squares 4 and 0 of the first token, 1 and 1 of the second; the third is padding."""
    student = torch.tensor([[[2.0, 5.0], [1.0, 1.0], [9.0, 9.0]]])
    teacher = torch.tensor([[[0.0, 5.0], [0.0, 2.0], [0.0, 0.0]]])
    assert float(hidden_mse(student, teacher, torch.tensor([[1, 1, 0]]))) == pytest.approx(1.5)


def test_features_by_hand() -> None:
    """States of 1 and -1 against 3 and 5: normalised, 1 and -1 against -1 and 1."""
    student, teacher = torch.tensor([[[1.0, -1.0]]]), torch.tensor([[[3.0, 5.0]]])
    assert float(normalised_hidden_mse(student, teacher, torch.ones(1, 1))) == pytest.approx(4.0)


@given(scale=st.floats(0.1, 10.0), shift=st.floats(-10.0, 10.0))
def test_features_means_and_variances_read_different_things(scale: float, shift: float) -> None:
    """A student that is its teacher scaled and shifted differs in mean and variance alone."""
    _, teacher = tensors(HIDDEN, torch.float64)
    teacher = teacher - teacher.mean(-1, keepdim=True)
    student = scale * teacher + shift
    variance = teacher.var(-1, correction=0)[MASK.bool()].mean()
    assert float(normalised_hidden_mse(student, teacher, MASK)) == pytest.approx(0, abs=1e-9)
    assert float(hidden_mean_mse(student, teacher, MASK)) == pytest.approx(shift**2)
    expected = abs(scale**2 - 1) * float(variance)
    assert float(hidden_variance_difference(student, teacher, MASK)) == pytest.approx(expected)


def test_means_and_variances_by_hand_of_another_width() -> None:
    """Means 2 and 0, variances 0 and 4; the second token, which is padding, has no part."""
    student = torch.tensor([[[2.0, 2.0, 2.0], [9.0, 0.0, 0.0]]])
    teacher = torch.tensor([[[2.0, -2.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 0]])
    assert float(hidden_mean_mse(student, teacher, mask)) == pytest.approx(4.0)
    assert float(hidden_variance_difference(student, teacher, mask)) == pytest.approx(4.0)


def test_attention_mse_by_hand() -> None:
    student, teacher = torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert float(attention_mse(student, teacher, torch.ones(1, 2))) == pytest.approx(30 / 4)
    alone = attention_mse(student, teacher, torch.tensor([[1, 0]]))
    assert float(alone) == pytest.approx(1.0), "one pair of real tokens is left"


def test_attention_divergence_by_hand() -> None:
    """Odds of 3 to 1 against even ones, in one of two rows."""
    teacher = torch.tensor([[[[math.log(3.0), 0.0], [0.0, 0.0]]]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = attention_divergence(torch.zeros(1, 1, 2, 2), teacher, torch.ones(1, 2))
    assert float(loss) == pytest.approx(divergence / 2)


def test_relations_are_scaled_products() -> None:
    """Vectors 2 and 0 of one head, one wide: products 4, 0 and 0, 0 over a root of 1."""
    teacher = torch.tensor([[[[2.0], [0.0]]]])
    scores = torch.tensor([[[[4.0, 0.0], [0.0, 0.0]]]])
    student = torch.zeros(1, 1, 2, 1)
    mask = torch.ones(1, 2)
    expected = attention_divergence(torch.zeros(1, 1, 2, 2), scores, mask)
    torch.testing.assert_close(relation_divergence(student, teacher, mask), expected)


def test_relation_heads_free_the_student_from_width_and_heads() -> None:
    wide, narrow = torch.randn(2, 4, 3, 6), torch.randn(2, 2, 3, 4)
    loss = relation_divergence(narrow, wide, MASK, relation_heads=8)
    assert loss.ndim == 0 and float(loss) > 0


def test_patience_by_hand() -> None:
    """[CLS] states of length one at a right angle: squared distance 2, over a width of 2."""
    student, teacher = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    assert float(normalised_sentence_mse(student, teacher)) == pytest.approx(1.0)


def test_sentence_cosine_by_hand() -> None:
    """Cosines 1 and 0 of two texts; the length of a state is of no account."""
    student = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    teacher = torch.tensor([[7.0, 0.0], [1.0, 0.0]])
    assert float(sentence_cosine(student, teacher)) == pytest.approx(0.5)


def test_soft_cross_entropy_is_soft_labels_and_the_teachers_entropy() -> None:
    student, teacher = (tensor.detach() for tensor in tensors((4, 3)))
    probabilities = teacher.softmax(-1)
    entropy = -(probabilities * probabilities.log()).sum(-1).mean()
    expected = soft_labels(student, teacher, 1.0) + entropy
    torch.testing.assert_close(soft_cross_entropy(student, teacher, 1.0), expected)


def test_hard_labels_of_tokens_are_those_of_the_labelled_ones() -> None:
    logits, _ = tensors((2, 3, 4), torch.float64)
    labels = torch.tensor([[1, -100, 0], [-100, 3, -100]])
    expected = hard_labels(logits[[0, 0, 1], [0, 2, 1]], torch.tensor([1, 0, 3]))
    torch.testing.assert_close(hard_labels(logits, labels), expected)
    assert torch.autograd.gradcheck(lambda values: hard_labels(values, labels), (logits,))


def test_examples_without_a_label_are_left_out() -> None:
    logits, _ = tensors((4, 3))
    labels = torch.tensor([0, -100, 1, -100])
    expected = hard_labels(logits[[0, 2]], labels[[0, 2]])
    torch.testing.assert_close(hard_labels(logits, labels), expected)
    assert float(hard_labels(logits, torch.full((4,), -100)).detach()) == 0.0


@every_loss
def test_autocast_does_not_round_a_loss(name: str) -> None:
    """Training computes in bfloat16; the losses do not."""
    loss, shape = LOSSES[name]
    student, teacher = (tensor.detach() for tensor in tensors(shape))
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(student, teacher)
    torch.testing.assert_close(inside, loss(student, teacher), rtol=0, atol=0)


def test_each_word_is_asked_for_among_the_entries_of_its_own_vocabulary() -> None:
    logits = torch.log(torch.tensor([[[1.0, 3.0, 1.0, 1.0, 2.0], [1.0, 3.0, 1.0, 1.0, 2.0]]]))
    targets = torch.tensor([[1, 4]])
    loss = vocabulary_labels(logits, targets, (2, 3))
    assert float(loss) == pytest.approx(-(math.log(3 / 4) + math.log(2 / 4)) / 2)
    of_one = vocabulary_labels(logits, torch.tensor([[1, -100]]), (2, 3))
    assert float(of_one) == pytest.approx(-math.log(3 / 4)), "what is not asked has no part"
    assert float(vocabulary_labels(logits, torch.full((1, 2), -100), (2, 3))) == 0


def test_one_vocabulary_alone_is_plain_cross_entropy() -> None:
    logits, _ = tensors((2, 3, 5), torch.float64)
    targets = torch.tensor([[0, 4, -100], [2, -100, 1]])
    plain = hard_labels(logits, targets)
    torch.testing.assert_close(vocabulary_labels(logits, targets, (5,)), plain)
    assert torch.autograd.gradcheck(
        lambda each: vocabulary_labels(each, targets, (2, 3)), (logits,)
    )


def test_weights_are_compared_by_their_mean_square_each() -> None:
    ours = [torch.tensor([1.0, 3.0]), torch.zeros(2, 2)]
    theirs = [torch.tensor([0.0, 0.0]), torch.full((2, 2), 2.0)]
    assert float(weight_mse(ours, theirs)) == (1 + 9) / 2 + 4
    assert float(weight_mse(theirs, theirs)) == 0
