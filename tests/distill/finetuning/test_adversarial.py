"""FreeLB: perturbations by hand, of every kind of problem, and a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.core.errors import ConfigError
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch
from bertender.training.loop import train
from bertender.training.steps import LossParts
from distill.finetuning.adversarial import FreeLB, Perturbation
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import label_objective
from tests.training.runs import CONFIG, classification


def test_a_row_moves_along_its_gradient_and_stays_in_the_ball() -> None:
    """Two tokens of two numbers and padding; epsilon is 1, so that alpha is 1/3.

    The gradient (3, 4 | 0, 0) has norm 5: the row at 0 moves to (0.2, 0.2667). At 0.9 of the first
    number it would move to (1.1, 0.2667), of norm 1.1319, and is brought back to norm 1.
    """
    ids = torch.tensor([[5, 6, 0], [5, 6, 0]])
    noise = Perturbation(ids, torch.tensor([[1, 1, 0]] * 2), radius=1.0)
    table = torch.nn.Embedding(9, 2)
    with noise.added_to(table):
        table(ids)
    assert noise.values is not None
    drawn = noise.values.detach()
    assert not drawn[:, 2].any() and bool((drawn[:, :2].abs() <= 0.5).all()), "1 / sqrt(4) at most"
    values = torch.zeros(2, 3, 2)
    values[1, 0, 0] = 0.9
    noise.values = values.requires_grad_()
    with noise.added_to(table):
        out = table(ids)
    (out[:, 0] @ torch.tensor([3.0, 4.0]) + 7 * out[:, 2].sum(-1)).sum().backward()
    noise.ascend()
    free = torch.tensor([0.2, 4 / 15])
    torch.testing.assert_close(noise.values[0, 0].detach(), free)
    held = torch.tensor([1.1, 4 / 15])
    torch.testing.assert_close(noise.values[1, 0].detach(), held / held.norm())
    assert not noise.values[:, 1:].any(), "no gradient, and padding"


def test_the_first_perturbation_is_drawn_up_to_the_radius_over_the_root_of_its_size() -> None:
    torch.manual_seed(0)
    table, ids = torch.nn.Embedding(9, 4), torch.full((1, 100), 5)
    noise = Perturbation(ids, torch.ones_like(ids), radius=2.0)
    with noise.added_to(table):
        table(ids)
    assert noise.values is not None
    assert 0.095 < float(noise.values.detach().abs().max()) <= 2 / 400**0.5


def test_the_gradient_is_the_mean_over_perturbations_and_each_raises_the_loss(
    tmp_path: Path,
) -> None:
    """In a step of one batch, without dropout."""
    start = classification()
    losses: list[float] = []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts = label_objective(model, batch, step)
        losses.append(float(parts["hard"].detach()))
        return parts

    config = CONFIG.model_copy(
        update={"epochs": 1, "batch_size": 96, "no_dropout": True, "learning_rate": 1e-5}
    )
    adversary = FreeLB(objective, steps=4, radius=1.0)
    report = train(start.model, start.examples, adversary, config, tmp_path)
    assert report.steps == 1 and len(losses) == 4
    assert min(losses[1:]) > 1.005 * losses[0], "than under a random one"
    assert report.losses[0]["hard"] == pytest.approx(sum(losses) / 4, abs=1e-5)


def test_dropout_is_the_same_in_all_steps_of_a_batch(tmp_path: Path) -> None:
    start = classification()
    seen: list[torch.Tensor] = []

    def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
        seen.append(output == 0)

    start.model.dropout.p = 0.5
    start.model.dropout.register_forward_hook(hook)
    config = CONFIG.model_copy(update={"epochs": 1, "batch_size": 48})
    train(start.model, start.examples, FreeLB(label_objective, 2, 0.1), config, tmp_path)
    first, second, third, fourth = seen
    assert torch.equal(first, second) and torch.equal(third, fourth)
    assert not torch.equal(first, third[: len(first)])


@pytest.mark.parametrize("accumulation", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_weights(accumulation: int, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"accumulation": accumulation})
    last = 20 if accumulation == 1 else 6

    def dying(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step == last:
            raise KeyboardInterrupt
        return label_objective(model, batch, step)

    whole, halves, resumed = (classification() for _ in range(3))
    train(whole.model, whole.examples, FreeLB(label_objective, 2, 0.3), config, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train(halves.model, halves.examples, FreeLB(dying, 2, 0.3), config, tmp_path / "b")
    train(resumed.model, resumed.examples, FreeLB(label_objective, 2, 0.3), config, tmp_path / "b")
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


def test_settings_of_it_need_it() -> None:
    assert FinetuneConfig.parse({"adversarial": "freelb", "adversarial_steps": 2})
    for name in ("adversarial_steps", "adversarial_radius"):
        with pytest.raises(ConfigError, match=rf"{name}=2.*--adversarial freelb"):
            FinetuneConfig.parse({name: 2})
    with pytest.raises(ConfigError, match="adversarial"):
        FinetuneConfig.parse({"adversarial": "smart"})


def test_a_model_without_words_is_refused(tmp_path: Path) -> None:
    start = classification()
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="no table of word embeddings"):
        train(model, start.examples, FreeLB(label_objective, 2, 0.3), TrainingConfig(), tmp_path)
