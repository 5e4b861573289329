"""Parts that learn at a rate of their own: how far they move, and that a resumed run repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bertender.text.tokenizer import Padding
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.loop import train
from bertender.training.optimizers import Rates
from bertender.training.steps import LossParts

STEPS = 10
CONFIG = TrainingConfig(
    epochs=1,
    batch_size=1,
    learning_rate=0.1,
    schedule="constant",
    warmup_ratio=0,
    weight_decay=0,
    precision="fp32",
    checkpoint_steps=3,
)


def falling(passed: float) -> float:
    """Full rate for the first half of the steps, and nothing in the second."""
    return 1.0 if passed < 0.5 else 0.0


RATES: Rates = {"slow.": lambda passed: 0.1, "stopped.": falling}


def parts() -> torch.nn.ModuleDict:
    names = ("slow", "stopped", "usual")
    layers = {name: torch.nn.Linear(1, 1, bias=False) for name in names}
    for layer in layers.values():
        torch.nn.init.zeros_(layer.weight)
    return torch.nn.ModuleDict(layers)


def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
    """A slope of 1 everywhere, along which AdamW moves a weight by its rate in each step."""
    return {"sum": torch.stack([weight.sum() for weight in model.parameters()]).sum()}


def examples() -> TokenDataset:
    return TokenDataset({"input_ids": [[1]] * STEPS}, Padding(0))


def moved(model: torch.nn.Module) -> Iterator[float]:
    return (-float(weight.detach()) / CONFIG.learning_rate for weight in model.parameters())


def test_each_part_moves_by_its_own_rate(tmp_path: Path) -> None:
    model = parts()
    train(model, examples(), objective, CONFIG, tmp_path, rates=RATES)
    assert list(moved(model)) == pytest.approx([0.1 * STEPS, 0.5 * STEPS, STEPS], rel=1e-4)


def test_the_schedule_is_multiplied(tmp_path: Path) -> None:
    """A rate that falls to 0 in a line over ten steps: 1, 0.9, ... 0.1, which are 5.5 steps."""
    model = parts()
    linear = CONFIG.model_copy(update={"schedule": "linear"})
    train(model, examples(), objective, linear, tmp_path, rates=RATES)
    stopped = 1 + 0.9 + 0.8 + 0.7 + 0.6
    assert list(moved(model)) == pytest.approx([0.55, stopped, 5.5], rel=1e-4)


def dies_at(step: int) -> Callable[[torch.nn.Module, TensorBatch, int], LossParts]:
    def dying(model: torch.nn.Module, batch: TensorBatch, now: int) -> LossParts:
        if now == step:
            raise KeyboardInterrupt
        return objective(model, batch, now)

    return dying


@pytest.mark.parametrize("step", [4, 7])
def test_a_killed_run_goes_on_at_the_same_rates(step: int, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(parts(), examples(), dies_at(step), CONFIG, tmp_path, rates=RATES)
    model = parts()
    train(model, examples(), objective, CONFIG, tmp_path, rates=RATES)
    assert list(moved(model)) == pytest.approx([0.1 * STEPS, 0.5 * STEPS, STEPS], rel=1e-4)
