"""LAMB: its update by hand, and a run that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch
from bertender.training.loop import train
from bertender.training.optimizers import Lamb, warn_of_default_rate
from bertender.training.steps import LossParts
from distill.finetuning.finetune import label_objective
from tests.training.runs import CONFIG, classification


def moved(
    start: list[float], gradient: list[float], steps: int, weight_decay: float
) -> list[float]:
    """Return a matrix of one row after steps along the same gradient, at rate 0.1."""
    weight = torch.nn.Parameter(torch.tensor([start]))
    optimizer = Lamb([weight], lr=0.1, weight_decay=weight_decay)
    for _ in range(steps):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    values: list[float] = weight.detach()[0].tolist()
    return values


@pytest.mark.parametrize(
    ("start", "gradient", "steps", "weight_decay", "expected"),
    [
        # r is the gradient's sign; the ratio is 5 / sqrt(2)
        ([3.0, 4.0], [1.0, -2.0], 1, 0.0, [3 - 0.353553, 4 + 0.353553]),
        # r + lambda x is (1.3, -0.6) of norm 1.431782; the ratio is 3.492151
        ([3.0, 4.0], [1.0, -2.0], 1, 0.1, [3 - 0.453980, 4 + 0.209529]),
        # then the norm is sqrt(2.646447^2 + 4.353553^2) = 5.094812, and the ratio 3.602576
        ([3.0, 4.0], [1.0, -2.0], 2, 0.0, [2.646447 - 0.360258, 4.353553 + 0.360258]),
        # a ratio of 1 where the weight, or its update, is 0
        ([0.0, 0.0], [1.0, -2.0], 1, 0.0, [-0.1, 0.1]),
        ([3.0, 4.0], [0.0, 0.0], 1, 0.0, [3.0, 4.0]),
    ],
)
def test_a_matrix_moves_by_a_share_of_its_size(
    start: list[float],
    gradient: list[float],
    steps: int,
    weight_decay: float,
    expected: list[float],
) -> None:
    assert moved(start, gradient, steps, weight_decay) == pytest.approx(expected, abs=2e-6)


def test_a_vector_moves_as_by_adam() -> None:
    bias = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lamb([bias], lr=0.1)
    bias.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    assert bias.tolist() == pytest.approx([2.9, 4.1], abs=1e-6)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"optimizer": "lamb", "epochs": 1, "learning_rate": 1e-2})

    def dying(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step == 10:
            raise KeyboardInterrupt
        return label_objective(model, batch, step)

    whole, halves, resumed, adam = (classification() for _ in range(4))
    train(whole.model, whole.examples, label_objective, config, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train(halves.model, halves.examples, dying, config, tmp_path / "b")
    train(resumed.model, resumed.examples, label_objective, config, tmp_path / "b")
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name
    other = config.model_copy(update={"optimizer": "adamw"})
    train(adam.model, adam.examples, label_objective, other, tmp_path / "c")
    assert not torch.equal(adam.model.classifier.weight, whole.model.classifier.weight)


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (TrainingConfig(optimizer="lamb"), True),
        (TrainingConfig(optimizer="lamb", learning_rate=1e-3), False),
        (TrainingConfig(), False),
    ],
)
def test_the_default_rate_of_another_optimizer_is_said(
    config: TrainingConfig, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_default_rate(config)
    assert ["optimizer lamb" in line for line in caplog.messages] == [True] * warned
