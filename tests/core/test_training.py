"""The one training path: it learns, it says how, and only the same run resumes from its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedModel,
)

from bertender.core.batching import plan_batches
from bertender.core.errors import ArtifactError, ConfigError
from bertender.core.training import (
    LossParts,
    Objective,
    TensorBatch,
    TokenDataset,
    TrainingConfig,
    input_names,
    is_main_process,
    model_inputs,
    on_main_process,
    train,
    work_directory,
)
from distill.teacher import label_objective
from tests.core.runs import CONFIG, STARTS, Start, classification, toy_examples

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


def test_objective_sees_the_planned_batches_in_order(tmp_path: Path) -> None:
    start = classification()
    seen: list[tuple[int, list[int]]] = []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        seen.append((step, batch["attention_mask"].sum(1).tolist()))
        return label_objective(model, batch, step)

    train_toy(start, objective, tmp_path, epochs=2)
    lengths = start.examples.lengths
    plan = plan_batches(lengths, epochs=2, batch_size=8, tokens_per_batch=8192, seed=SHORT.seed)
    planned = [[lengths[index] for index in batch] for batch in plan.batches]
    assert seen == list(enumerate(planned))


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
    monkeypatch.setattr("bertender.core.training.supports_bf16", lambda: supported)
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


def work_of(out: Path, *identity: Any) -> Path:
    """Leave a work directory as an interrupted run does."""
    with pytest.raises(KeyboardInterrupt), work_directory(out, *identity) as work:
        raise KeyboardInterrupt
    return work


def test_only_the_same_run_finds_its_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, config = tmp_path / "model", CONFIG.model_dump(mode="json")
    work = work_of(out, "finetune", config, "digest")
    (work / "checkpoint").touch()
    assert work_of(out, "finetune", config, "digest") == work and (work / "checkpoint").exists()
    others = {
        work_of(out, "finetune", {**config, "seed": 9}, "digest"),
        work_of(out, "finetune", config, "other digest"),
        work_of(out, "distill", config, "digest"),
        work_of(tmp_path / "other", "finetune", config, "digest"),
    }
    monkeypatch.setenv("WORLD_SIZE", "2")
    others.add(work_of(out, "finetune", config, "digest"))
    assert len(others) == 5 and work not in others


@pytest.mark.parametrize("name", ["model", "model[1]"])
def test_work_vanishes_on_success(tmp_path: Path, name: str) -> None:
    stale = work_of(tmp_path / name, "other config")
    kept = work_of(tmp_path / "other", "config")
    with work_directory(tmp_path / name, "config") as work:
        (work / "checkpoint-1").mkdir()
    assert not work.exists() and not stale.exists() and kept.exists()


def test_foreign_directory_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").touch()
    with pytest.raises(ArtifactError), work_directory(tmp_path / "thesis", "config"):
        pytest.fail("training has begun")


def bert() -> PreTrainedModel:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return BertForSequenceClassification(BertConfig(vocab_size=9, intermediate_size=8, **shape))


def distilbert() -> PreTrainedModel:
    config = DistilBertConfig(vocab_size=9, dim=8, n_layers=1, n_heads=1, hidden_dim=8)
    return DistilBertForSequenceClassification(config)


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (bert, ["input_ids", "attention_mask", "token_type_ids"]),
        (distilbert, ["input_ids", "attention_mask"]),
    ],
)
def test_inputs_that_a_model_takes(build: Callable[[], PreTrainedModel], names: list[str]) -> None:
    model = build()
    assert input_names(model) == names
    assert input_names(torch.nn.DataParallel(model)) == names
    columns = ("labels", "token_type_ids", "attention_mask", "input_ids")
    batch = {name: torch.ones(2, 3, dtype=torch.long) for name in columns}
    assert list(model_inputs(model, batch)) == names
    assert model(**model_inputs(model, batch)).logits.shape == (2, 2)
    del batch["attention_mask"]
    assert "attention_mask" not in model_inputs(model, batch)


def test_collated_to_the_longest_of_the_batch() -> None:
    columns = {
        "input_ids": [[5, 6], [7, 8, 9], [4] * 9],
        "attention_mask": [[1, 1], [1, 1, 1], [1] * 9],
        "token_type_ids": [[0, 1], [0, 1, 1], [1] * 9],
        "labels": [0, 1, 0],
        "teacher_logits": [[0.5, -0.5], [1.0, 2.0], [0.0, 0.0]],
    }
    examples = TokenDataset(columns, pad_token_id=3)
    assert (len(examples), examples.lengths) == (3, [2, 3, 9])
    batch = examples.collate([examples[0], examples[1]])
    assert batch["input_ids"].tolist() == [[5, 6, 3], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert batch["teacher_logits"].tolist() == [[0.5, -0.5], [1.0, 2.0]]
    assert batch["teacher_logits"].dtype == torch.float32


def test_alone_a_process_is_the_main_one() -> None:
    done: list[int] = []
    on_main_process(lambda: done.append(os.getpid()))
    assert is_main_process() and done == [os.getpid()]


def test_toy_examples_differ_in_length() -> None:
    assert len(set(toy_examples().lengths)) > 5
