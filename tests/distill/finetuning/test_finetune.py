"""Teachers: fine-tuning every architecture by name."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertender import api
from bertender.comparison.accuracy import evaluate
from bertender.comparison.fitting import evaluated
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.classifier import model_inputs, open_classifier
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.tasks.task import Split, Task
from bertender.training.examples import TensorBatch
from bertender.training.loop import train
from bertender.training.steps import LossParts
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import (
    GradualUnfreezing,
    finetune_by_name,
    label_objective,
    trained_parts,
    with_settings,
)
from distill.teachers.encoders import load_classifier, load_to_learn
from tests.front import fail, write_csv
from tests.toy_models import SHAPES, save_encoder
from tests.toys import number_task, similarity_task
from tests.training.runs import classification

QUICK = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "precision": "fp32"}

STEEPER = {"mobilebert": {"learning_rate": 1e-2, "epochs": 10}}
"""Without layer norms, small random weights give next to no signal at first."""


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", SHAPES)
def test_every_architecture_is_fine_tuned_by_name(
    model_type: str, task: Task, tmp_path: Path
) -> None:
    encoder = save_encoder(model_type, tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), **{**QUICK, **STEEPER.get(model_type, {})})
    artifact = finetune_by_name(task, config, tmp_path / "teacher")
    score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
    assert artifact.card.family == model_type
    assert artifact.card.findings.training.epochs[-1]["accuracy"] == pytest.approx(score.value)
    assert score.value > 0.7


def test_the_same_run_gives_the_same_artifact(task: Task, tmp_path: Path) -> None:
    config = FinetuneConfig(teacher=str(save_encoder("bert", tmp_path / "encoder")), **QUICK)
    first, second = (finetune_by_name(task, config, tmp_path / name) for name in ("a", "b"))
    assert first.digest == second.digest


def test_a_fine_tuned_artifact_is_a_start_for_other_labels(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    other = Task("other", ("a", "b", "c"), "accuracy", ("text",), task.train, task.dev)
    config = FinetuneConfig(teacher=str(trained_teacher.path), **{**QUICK, "epochs": 1})
    artifact = finetune_by_name(other, config, tmp_path / "again")
    assert open_classifier(artifact).logits(task.dev.examples[:2]).shape == (2, 3)
    assert artifact.card.parent is not None
    assert artifact.card.parent.digest == trained_teacher.digest
    assert artifact.card.task.labels == ("a", "b", "c")


def test_a_frozen_encoder_stays_and_its_head_learns(task: Task, tmp_path: Path) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), epochs=1, precision="fp32", freeze="encoder")
    made = finetune_by_name(task, config, tmp_path / "made")
    assert made.card.config["learning_rate"] == 1e-3
    before, after = (load_file(each / "model.safetensors") for each in (encoder, made.path))
    moved = {
        name
        for name, own in before.items()
        if not (name.startswith("pooler") or torch.equal(after[f"bert.{name}"], own))
    }
    assert not moved
    assert after["classifier.bias"].any(), "it begins at 0"
    explicit = config.changed({"learning_rate": 2e-4})
    assert explicit.paced() == explicit


def test_a_frozen_encoder_gives_in_training_what_it_gives_later() -> None:
    """Its head drops values as ever."""
    start = classification()
    model = start.model.train()
    rows = [start.examples[row] for row in range(4)]
    inputs = model_inputs(model, start.examples.collate(rows))
    with torch.no_grad():
        with trained_parts(model, FinetuneConfig(freeze="encoder")):
            model.train()
            states = model.base_model(**inputs).last_hidden_state
            assert model.dropout.training
        assert not torch.equal(model.train().base_model(**inputs).last_hidden_state, states)
        expected = model.eval().base_model(**inputs).last_hidden_state
    torch.testing.assert_close(states, expected)


@pytest.mark.parametrize("freeze", ["encoder", "gradual"])
def test_vectors_have_no_head_to_learn_beside_a_frozen_encoder(freeze: str, tmp_path: Path) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), **{**QUICK, "epochs": 1}, freeze=freeze)
    with pytest.raises(ConfigError, match=f"freeze={freeze}: the vectors of task 'alike'"):
        finetune_by_name(similarity_task(), config, tmp_path / "made")


def test_layers_begin_to_learn_one_after_the_other(tmp_path: Path) -> None:
    """Four layers and the embeddings below the head: six shares of 12 steps, two each."""
    start = classification()
    model = start.model
    changed: list[set[str]] = []
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def objective(module: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        changed.append(
            {
                name.removeprefix("bert.encoder.").rpartition(".")[0][:7]
                for name, weight in module.named_parameters()
                if not torch.equal(weight, before[name])
            }
        )
        return label_objective(module, batch, step)

    config = FinetuneConfig(
        epochs=1, batch_size=8, precision="fp32", freeze="gradual", warmup_ratio=0
    )
    with trained_parts(model, config):
        gradual = with_settings(objective, model, start.examples, config)
        train(model, start.examples, gradual, config, tmp_path)
    assert all(weight.requires_grad for weight in model.parameters())
    heads, layers = {"classif", "bert.po"}, [f"layer.{number}" for number in (3, 2, 1, 0)]
    grown = [heads | set(layers[:count]) for count in range(5)]
    assert changed == [
        set(),
        *(own for own in grown for _ in range(2)),
        heads | {*layers, "bert.em"},
    ]
    assert config.paced() == config, "the rate is that of a whole model"


@pytest.mark.parametrize(("steps", "late"), [(2, 2), (5, 1), (6, 0), (12, 0)])
def test_parts_that_never_begin_are_said(
    steps: int, late: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Five parts of shares of the steps: of 2 steps, the last has 1 * 6 // 2 = 3 of them."""
    gradual = GradualUnfreezing(label_objective, classification().model, steps)
    assert gradual.learning(steps - 1) == 5 - late
    assert [f"lowest {late} never" in line for line in caplog.messages] == [True] * (late > 0)


def test_settings_of_fine_tuning_go_together(task: Task, tmp_path: Path) -> None:
    config = FinetuneConfig(
        teacher=str(save_encoder("electra", tmp_path / "encoder")),
        **{**QUICK, "epochs": 1, "batch_size": 8},
        freeze="gradual",
        adversarial="freelb",
        adversarial_steps=2,
        accumulation=2,
    )
    made = finetune_by_name(task, config, tmp_path / "made")
    assert made.card.findings.training.steps == 6
    assert made.card.config["adversarial"] == "freelb"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("a", "b", "c"), r"is for 2 outputs \('fruit', 'tool'\) and starts anew, for 3"),
        (("a", "b"), r"is for 2 outputs \('fruit', 'tool'\) and starts anew, for 2"),
        (("fruit", "tool"), None),
        (("tool", "fruit"), None),
        (("Tool", "Fruit"), None),
    ],
)
def test_the_head_of_another_task_is_said(
    labels: tuple[str, ...],
    said: str | None,
    trained_teacher: Artifact,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_classifier(str(trained_teacher.path), labels)
    found = [line for line in caplog.messages if line.startswith("the head of")]
    assert len(found) == (said is not None) and all(re.search(said or "", line) for line in found)


def test_labels_have_the_order_of_their_numbers(trained_teacher: Artifact, tmp_path: Path) -> None:
    """A file sorted by its keys as text has "10" before "2"."""
    shutil.copytree(trained_teacher.path, tmp_path / "teacher")
    file = tmp_path / "teacher" / "config.json"
    config = json.loads(file.read_text())
    config["id2label"] = {number: config["id2label"][number] for number in ("1", "0")}
    file.write_text(json.dumps(config))
    labels = trained_teacher.card.task.labels
    before, after = (
        load_classifier(str(folder), labels)[0].state_dict()
        for folder in (trained_teacher.path, file.parent)
    )
    torch.testing.assert_close(after, before)


LABELS = ("World", "Sports", "Business", "Tech")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (("Business", "Sports", "Tech", "World"), (2, 1, 3, 0)),
        (("business", "sports", "tech", "world"), (2, 1, 3, 0)),
        (("3", "1", "0", "2"), (3, 1, 0, 2)),
        (("a", "b", "c", "d"), None),
    ],
)
def test_a_finished_head_keeps_what_it_knows_of_each_label(
    model_type: str, labels: tuple[str, ...], order: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """The labels of data are sorted, and a finished model has its own order."""
    model, tokenizer = load_classifier(str(save_encoder(model_type, tmp_path / "encoder")), LABELS)
    model.save_pretrained(tmp_path / "finished")
    tokenizer.save_pretrained(tmp_path / "finished")
    ids = {"input_ids": torch.tensor([[2, 5, 6, 3]]), "attention_mask": torch.ones(1, 4)}
    again, _ = load_classifier(str(tmp_path / "finished"), labels)
    with torch.inference_mode():
        before, after = (each.eval()(**ids).logits for each in (model, again))
    assert [*again.config.id2label.values()] == [*labels]
    if order is None:  # others' labels start anew
        assert (before - after).abs().max() > 1e-4
    else:
        torch.testing.assert_close(after, before[:, list(order)])


def test_the_score_of_a_choice_is_kept_whatever_its_model_calls_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    model, tokenizer = load_classifier(encoder, ("A", "B", "C"), MULTIPLE_CHOICE)
    model.config.id2label = {0: "A", 1: "B", 2: "C"}
    model.save_pretrained(tmp_path / "finished")
    tokenizer.save_pretrained(tmp_path / "finished")
    again, _ = load_classifier(str(tmp_path / "finished"), ("0", "1", "2"), MULTIPLE_CHOICE)
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight)
    assert "the head of" not in caplog.text


def test_unnamed_labels_are_those_of_the_data_in_their_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = ("LABEL_0", "LABEL_1")
    model, tokenizer = load_classifier(str(save_encoder("bert", tmp_path / "encoder")), unnamed)
    model.save_pretrained(tmp_path / "finished")
    tokenizer.save_pretrained(tmp_path / "finished")
    again, _ = load_classifier(str(tmp_path / "finished"), ("bad", "good"))
    assert "learned as 'LABEL_0', 'LABEL_1' is here 'bad', 'good', in this order" in caplog.text
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight)


def test_a_finished_head_of_numbers_takes_the_unit_of_the_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = number_task(256, 40)
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    config = FinetuneConfig(teacher=encoder, **{**QUICK, "epochs": 12})
    known = str(finetune_by_name(task, config, tmp_path / "known").path)

    def in_unit(factor: float, offset: float) -> Task:
        train, dev = (
            Split(each.examples, tuple(factor * number + offset for number in each.label_ids))
            for each in (task.train, task.dev)
        )
        return replace(task, name="other", train=train, dev=dev)

    load_to_learn(known, task)
    assert "the head of" not in caplog.text
    for other in (in_unit(1000, 3e6), in_unit(1, 3000), in_unit(1e-3, 0)):
        caplog.clear()
        model, tokenizer = load_to_learn(known, other)
        assert "it is scaled to them" in caplog.text
        truth = np.array(other.dev.label_ids)
        found = np.asarray(evaluated(model, tokenizer, other, other.dev)[1])
        assert np.sqrt(np.square(found - truth).mean()) < 0.7 * truth.std()
    caplog.clear()
    some = in_unit(1000, 3e6)
    some = replace(some, train=some.train.first(100)).with_unlabelled(task.train.examples[100:])
    load_to_learn(known, some)
    assert "it is scaled to them" in caplog.text, "where most texts have no number, too"
    model, _ = load_to_learn(known, in_unit(-1, 0))
    assert "starts anew, as its numbers do not rise with theirs" in caplog.text
    assert not model.classifier.bias.any()


def test_a_label_map_pairs_labels_with_those_of_a_model_alone(tmp_path: Path, task: Task) -> None:
    for name, split in (("train", task.train), ("dev", task.dev)):
        write_csv(tmp_path / f"{name}.csv", split, task.labels)
    files = {"train": tmp_path / "train.csv", "dev": tmp_path / "dev.csv"}
    with pytest.raises(ConfigError, match="label_map=foo=bar: it pairs labels of the data"):
        api.finetune({**files, "label_map": "foo=bar"}, out=tmp_path / "out")
    flags = (f"--{name}={path}" for name, path in files.items())
    said = fail("baseline", *flags, "--label-map", "foo=bar", "--out", tmp_path / "out")
    assert "label_map=foo=bar: it pairs labels of the data" in said
