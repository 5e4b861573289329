"""BERT-of-Theseus: which modules run, which weights learn, and when the successor is alone."""

from __future__ import annotations

import pytest
import torch

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers
from bertender.training.steps import switch_off_dropout
from distill.distillation.start import check_teacher
from distill.losses.signals import Signals
from distill.losses.training_modules import TRAINING_MODULES, Replacing
from distill.methods import METHODS
from distill.students import StudentShape
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer

STEPS = 100


def training_module(
    method: str = "theseus", layers: int = 2, phase: int = 0, depth: int = 4
) -> Replacing:
    teacher = tiny_classifier("bert", num_hidden_layers=depth).requires_grad_(False)
    row = METHODS[method].at(layers)
    student = row.build(teacher, StudentShape(layers))
    trained = row.phases[phase]
    module = TRAINING_MODULES[trained.training_module]
    built = module(student, teacher, trained.terms, seed=0, steps=STEPS)
    assert isinstance(built, Replacing)
    return built.train()


def loss(module: Replacing, step: int) -> torch.Tensor:
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    batch = {**tokens, "labels": torch.tensor([0, 1])}
    return module(batch, Signals(torch.empty(0)), step)["hard"]


def drawn(module: Replacing, step: int) -> list[bool]:
    loss(module, step)
    return [each.replaced for each in module.drawn]


@pytest.mark.parametrize(
    ("passed", "probability"), [(0, 0.3), (1 / 3, 0.65), (2 / 3, 1.0), (0.9, 1.0)]
)
def test_the_probability_grows_to_one(passed: float, probability: float) -> None:
    assert training_module().probability(passed) == pytest.approx(probability)


@pytest.mark.parametrize(
    ("depth", "layers", "sizes"), [(12, 6, [2] * 6), (5, 2, [2, 3]), (4, 4, [1] * 4)]
)
def test_the_predecessor_is_cut_into_modules(depth: int, layers: int, sizes: list[int]) -> None:
    module = training_module(layers=layers, depth=depth)
    assert [len(each.predecessor) for each in module.drawn] == sizes


def test_a_step_draws_the_same_modules_again() -> None:
    first, second = training_module(layers=4), training_module(layers=4)
    draws = [drawn(first, step) for step in range(60)]
    assert draws == [drawn(second, step) for step in range(60)]
    shares = [sum(map(sum, part)) / len(part) / 4 for part in (draws[:20], draws[20:40])]
    assert 0.3 < shares[0] < shares[1] < 1.0
    assert all(map(all, (drawn(first, step) for step in (67, 99))))


def test_only_successor_layers_learn() -> None:
    module = training_module()
    learning = {name for name, weight in module.named_parameters() if weight.requires_grad}
    assert learning and all(".successor." in name for name in learning)
    loss(module, 99).backward()
    assert all(weight.grad is None for weight in module.parameters() if not weight.requires_grad)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_is_drawn_is_what_runs(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the predecessor's layers everywhere, the answers are the teacher's; nothing learns."""
    module = training_module()
    monkeypatch.setattr(module, "probability", lambda passed: float(replaced))
    teacher = tiny_classifier("bert")
    switch_off_dropout(module)
    value = loss(module, 0)
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    theirs = torch.nn.functional.cross_entropy(teacher(**tokens).logits, torch.tensor([0, 1]))
    assert torch.allclose(value, theirs) is not replaced
    value.backward()
    moved = [
        weight.grad is not None and bool(weight.grad.any())
        for each in module.drawn
        for weight in each.successor.parameters()
    ]
    assert any(moved) is replaced


@pytest.mark.parametrize(("phase", "probability"), [(0, 0.5), (1, 1.0)])
def test_the_constant_schedule(phase: int, probability: float) -> None:
    module = training_module("theseus-constant", phase=phase)
    assert {module.probability(step / STEPS) for step in range(STEPS)} == {probability}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_layers_that_cannot_be_replaced_are_refused_before_training(model_type: str) -> None:
    """A family is refused, or its student has its own layers alone when it is finished."""
    row, teacher = METHODS["theseus"], tiny_classifier(model_type)
    if FAMILIES[model_type].fixed_layers:
        with pytest.raises(ModelError, match=r"replaces the teacher's layers"):
            check_teacher(teacher.config, row, student=None)
        return
    check_teacher(teacher.config, row, student=None)
    student = row.build(teacher, StudentShape(2))
    module = Replacing(student, teacher, row.phases[0].terms, seed=0, steps=STEPS).train()
    loss(module, 0).backward()
    layers = encoder_layers(module.finished())
    assert len(layers) == 2 and not any(map(encoder_layers(teacher).__contains__, layers))
