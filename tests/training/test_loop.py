"""The one training path: it learns, it says how, and only the same run resumes from its files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.backends.cuda import flash_sdp_enabled
from transformers import (
    PreTrainedModel,
)

from bertender.core.errors import ConfigError, TrainingError
from bertender.recipes.stages import STAGES
from bertender.text.batch import BATCH_ORDERS, BatchLimits, BatchOrder, plan_batches
from bertender.training.config import (
    LAST_EPOCH,
    POOL_BATCHES,
    Keeping,
    TaskTrainingConfig,
    TrainingConfig,
)
from bertender.training.examples import TensorBatch
from bertender.training.loop import train
from bertender.training.steps import SHORT_TOKENS, LossParts, Objective
from distill.finetuning.finetune import label_objective
from tests.training.runs import CONFIG, STARTS, Start, classification

SHORT = CONFIG.model_copy(update={"epochs": 1})


def train_toy(start: Start, objective: Objective, work: Path, **changes: Any) -> Any:
    config = SHORT.model_copy(update=changes)
    return train(start.model, start.examples, objective, config, work)


@pytest.mark.parametrize("name", STARTS)
def test_loss_falls(name: str, tmp_path: Path) -> None:
    start = STARTS[name]()
    config = CONFIG.model_copy(update={"epochs": 10, "learning_rate": 3e-3})
    report = train(start.model, start.examples, start.objective, config, tmp_path)
    assert report.steps == 120
    first, *_, last = (sum(parts.values()) for parts in report.losses)
    assert last < 0.8 * first
    assert len(report.losses) == 4, "steps 0, 50 and 100, and the last one"


def test_every_part_of_the_loss_is_minimised_and_logged(tmp_path: Path) -> None:
    start = classification()
    weight = start.model.classifier.weight

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        return {**label_objective(model, batch, step), "size": 100 * weight.square().sum()}

    before = float(weight.detach().square().sum())
    report = train_toy(start, objective, tmp_path)
    assert all(parts.keys() == {"hard", "size"} for parts in report.losses)
    assert report.losses[0]["size"] == pytest.approx(100 * before, rel=1e-4)
    assert float(weight.detach().square().sum()) < before


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (lambda hard: {"hard": hard}, []),
        (lambda hard: {"hard": hard, "soft": 0 * hard}, ["the loss 'soft' was 0"]),
        (lambda hard: {"hard": 0 * hard + 0.7}, ["the loss was {'hard': 0.7}"]),
    ],
    ids=["falling", "nothing from the teacher", "never moved"],
)
def test_a_loss_that_teaches_nothing_is_said(
    idle: Any, said: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = classification()

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts: LossParts = idle(label_objective(model, batch, step)["hard"])
        return parts

    train_toy(start, objective, tmp_path)
    assert [
        line.partition(": ")[2][: len(words)]
        for line, words in zip(caplog.messages, said, strict=True)
    ] == said


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_a_setting(tmp_path: Path, dropout: bool) -> None:
    start, differences = classification(), []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        first, second = (label_objective(model, batch, step) for _ in range(2))
        differences.append(float((first["hard"] - second["hard"]).detach().abs()))
        return first

    train_toy(start, objective, tmp_path, no_dropout=not dropout)
    assert len(differences) == 12
    assert all(bool(difference) == dropout for difference in differences)


def test_short_texts_are_trained_without_flash_attention(tmp_path: Path) -> None:
    start, flash = classification(), set()

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        assert batch["input_ids"].shape[-1] <= SHORT_TOKENS
        flash.add(flash_sdp_enabled())
        return label_objective(model, batch, step)

    train_toy(start, objective, tmp_path)
    assert flash == {False} and flash_sdp_enabled()


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({}, BatchOrder(POOL_BATCHES, in_turn=True)),
        ({"batches": "sorted"}, BatchOrder(50)),
        ({"batches": "random"}, BatchOrder(1)),
        ({"batches": "pooled", "pool_batches": 3}, BatchOrder(3, in_turn=True)),
    ],
)
def test_objective_sees_the_planned_batches_in_order(
    tmp_path: Path, settings: dict[str, Any], order: BatchOrder
) -> None:
    start = classification()
    seen: list[tuple[int, list[int]]] = []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        seen.append((step, batch["attention_mask"].sum(1).tolist()))
        return label_objective(model, batch, step)

    train_toy(start, objective, tmp_path, epochs=2, **settings)
    lengths = start.examples.lengths
    plan = plan_batches(lengths, BatchLimits(8, 8192), order, epochs=2, seed=SHORT.seed)
    planned = [[lengths[index] for index in batch] for batch in plan.batches]
    assert seen == list(enumerate(planned))


@pytest.mark.parametrize("batches", [row for row in BATCH_ORDERS if row != "pooled"])
@pytest.mark.parametrize("size", [20, POOL_BATCHES])
def test_the_size_of_pools_is_refused_where_nothing_reads_it(batches: str, size: int) -> None:
    """At its default value too; a stage's own rules come on top of this one."""
    for config in (TrainingConfig, *(stage.config for stage in STAGES.values())):
        if issubclass(config, TrainingConfig):
            with pytest.raises(ConfigError, match=f"batches={batches} and pool_batches={size}: "):
                config.parse({"batches": batches, "pool_batches": size})
    assert TrainingConfig.parse({"batches": "pooled", "pool_batches": size}).pool_batches == size


def test_recorded_settings_open_though_all_of_them_are_explicit() -> None:
    """Recipes and artifacts record every setting, the size of pools that were not used too."""
    recorded = TrainingConfig().model_dump(mode="json")
    assert "pool_batches" in recorded
    assert TrainingConfig.model_validate(recorded) == TrainingConfig()


def test_every_pooling_can_be_chosen() -> None:
    for batches in BATCH_ORDERS:
        assert TrainingConfig.parse({"batches": batches}).batches == batches
    with pytest.raises(ConfigError, match="poled"):
        TrainingConfig.parse({"batches": "poled"})


def test_a_pooled_run_that_was_cut_off_ends_as_a_whole_one(tmp_path: Path) -> None:
    """The second run starts at a checkpoint inside a pool, with the batches that were left."""
    pooled: dict[str, Any] = {"batches": "pooled", "pool_batches": 4, "epochs": 2}

    def cut_off(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step == 18:
            raise KeyboardInterrupt
        return label_objective(model, batch, step)

    whole, halves = classification(), classification()
    train_toy(whole, label_objective, tmp_path / "whole", **pooled)
    with pytest.raises(KeyboardInterrupt):
        train_toy(halves, cut_off, tmp_path / "halves", **pooled)
    resumed, seen = classification(), list[int]()

    def counted(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        seen.append(step)
        return label_objective(model, batch, step)

    train_toy(resumed, counted, tmp_path / "halves", **pooled)
    assert seen == list(range(16, 24))
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


def test_so_many_steps_and_no_more(tmp_path: Path) -> None:
    """The schedule of the learning rate ends with them."""
    start, weights = classification(), []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        weights.append(start.model.classifier.bias.detach().clone())
        return label_objective(model, batch, step)

    scores: list[int] = []
    report = train(
        start.model,
        start.examples,
        objective,
        CONFIG,
        tmp_path,
        steps=15,  # of 24, in two epochs
        at_epoch_end=lambda model: {"at": scores.append(len(weights)) or 0.0},
    )
    assert report.steps == len(weights) == 15
    assert scores == [12, 15]
    changes = [float((after - before).norm()) for before, after in pairwise(weights)]
    assert changes[-1] < 0.3 * max(changes)


def test_scored_after_each_epoch(tmp_path: Path) -> None:
    start = classification()
    trained: list[PreTrainedModel] = []

    def score(model: PreTrainedModel) -> dict[str, float]:
        model.eval()
        trained.append(model)
        return {"accuracy": len(trained) / 10}

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        assert model.training, "scoring must not leave the model in eval mode"
        return label_objective(model, batch, step)

    config = CONFIG.model_copy(update={"epochs": 3})
    report = train(start.model, start.examples, objective, config, tmp_path, at_epoch_end=score)
    assert report.epochs == [{"accuracy": 0.1}, {"accuracy": 0.2}, {"accuracy": 0.3}]
    assert all(model is start.model for model in trained)


@pytest.mark.parametrize(
    ("precision", "supported", "expected"),
    [
        ("auto", True, torch.bfloat16),
        ("fp32", True, torch.float32),
        ("bf16", False, torch.bfloat16),
        ("auto", False, torch.float32),
    ],
)
def test_precision(
    precision: str,
    supported: bool,
    expected: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bertender.training.config.supports_bf16", lambda: supported)
    start = classification()
    computed: set[torch.dtype] = set()
    start.model.classifier.register_forward_hook(lambda *call: computed.add(call[2].dtype))
    train_toy(start, label_objective, tmp_path, precision=precision)
    assert computed == {expected}
    assert {weight.dtype for weight in start.model.parameters()} == {torch.float32}
    computed.clear()
    start.model(torch.tensor([[2, 3]]))
    assert computed == {torch.float32}, "afterwards the model is as it was"


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("precision", "fp16"), ("seed", -1)])
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r}"):
        TrainingConfig.parse({name: value})


def test_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_toy(classification(), label_objective, tmp_path)
    assert capfd.readouterr().out == ""


def test_another_seed_reaches_other_weights(tmp_path: Path) -> None:
    first, second, third = (classification() for _ in range(3))
    for start, seed, name in ((first, 1, "a"), (second, 1, "b"), (third, 2, "c")):
        train_toy(start, label_objective, tmp_path / name, seed=seed)
    weights = [start.model.classifier.weight for start in (first, second, third)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_weights_that_are_no_numbers_end_the_run(tmp_path: Path) -> None:
    """The loss is one to the end; the gradient of its last step is not."""
    start = classification()

    def diverging(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts = label_objective(model, batch, step)
        same = start.model.classifier.bias.sum()
        return parts if step < 11 else {**parts, "root": (same - same).sqrt()}

    with pytest.raises(TrainingError, match=r"weight .* is not a finite number.*learning_rate"):
        train_toy(start, diverging, tmp_path)


@pytest.mark.parametrize("checkpoint_steps", [500, 2])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, checkpoint_steps: int) -> None:
    def diverging(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts = label_objective(model, batch, step)
        return {"hard": parts["hard"] * (float("nan") if step >= 3 else 1.0)}

    with pytest.raises(TrainingError, match=r"is not a number.*lower learning_rate"):
        train_toy(classification(), diverging, tmp_path, checkpoint_steps=checkpoint_steps)
    good = [*tmp_path.rglob("checkpoint-2/complete")]
    assert len(good) == (checkpoint_steps == 2) and not [*tmp_path.rglob("checkpoint-4")]


class Scripted:
    """Scores epochs as told, and remembers the weights of each."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.weights: list[torch.Tensor] = []

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        self.weights.append(model.classifier.weight.detach().clone())
        return {"accuracy": self.scores[len(self.weights) - 1]}


def scored_run(work: Path, scripted: Scripted, keeping: Keeping) -> tuple[Any, torch.Tensor]:
    start = classification()
    config = CONFIG.model_copy(update={"epochs": len(scripted.scores)})
    report = train(
        *(start.model, start.examples, label_objective, config, work),
        at_epoch_end=scripted,
        keeping=keeping,
    )
    return report, start.model.classifier.weight.detach()


@pytest.mark.parametrize(
    ("scores", "keeping", "kept", "epochs"),
    [
        ((0.3, 0.9, 0.9, 0.4), LAST_EPOCH, None, 4),
        ((0.3, 0.9, 0.9, 0.4), Keeping(best=True), 2, 4),
        ((0.3, 0.4, 0.5, 0.6), Keeping(best=True, patience=1), 4, 4),
        ((0.3, 0.9, 0.9, 0.4, 1.0), Keeping(best=True, patience=2), 2, 4),
    ],
    ids=["last", "best", "rising", "patience"],
)
def test_the_best_epoch_is_kept(
    scores: tuple[float, ...], keeping: Keeping, kept: int | None, epochs: int, tmp_path: Path
) -> None:
    scripted = Scripted(*scores)
    report, weight = scored_run(tmp_path, scripted, keeping)
    assert (report.kept_epoch, len(report.epochs)) == (kept, epochs)
    assert report.kept == {"accuracy": scores[(kept or epochs) - 1]}
    assert torch.equal(weight, scripted.weights[(kept or epochs) - 1])
    again = Scripted(*scores)
    resumed, weight = scored_run(tmp_path, again, keeping)
    assert (resumed, again.weights) == (report, []), "it had ended"
    assert torch.equal(weight, scripted.weights[(kept or epochs) - 1])


def test_lost_weights_of_the_best_epoch_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scored_run(tmp_path, Scripted(0.9, 0.5), Keeping(best=True))
    (tmp_path / "best-1.safetensors").unlink()
    report, _ = scored_run(tmp_path, Scripted(0.9, 0.5), Keeping(best=True))
    assert report.kept_epoch is None
    assert "the weights of epoch 1 are lost" in caplog.text


def test_patience_needs_an_epoch_that_is_chosen() -> None:
    assert TaskTrainingConfig().keeping(validated=True) == Keeping(best=True)
    assert TaskTrainingConfig().keeping(validated=False) == LAST_EPOCH
    assert TaskTrainingConfig(keep="last").keeping(validated=True) == LAST_EPOCH
    with pytest.raises(ConfigError, match="--keep best"):
        TaskTrainingConfig(patience=2).keeping(validated=False)
    with pytest.raises(ConfigError, match="keep=last"):
        TaskTrainingConfig.parse({"patience": 2, "keep": "last"})
