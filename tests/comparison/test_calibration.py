"""Calibration of artifacts: fitted on validation texts, kept by what is made of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.comparison.accuracy import predict_outputs
from bertender.comparison.calibration import CalibrateConfig, calibrate, reliability_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.classifier import open_classifier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from distill.pruning.config import PruneConfig
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.toy_kinds import TASKS
from tests.toy_models import save_artifact, untrained_model
from tests.toys import choice_task, set_task, toy_task

KINDS = STAGES["calibrate"].problem_types or ()
TEMPERATURE = 4.0
"""At which the labels of the texts are drawn."""


def sure_model(task: Task, folder: Path) -> Artifact:
    """An untrained model of a task, whose logits are far from 0."""
    model = untrained_model(task, seed=5)
    with torch.no_grad():
        model.classifier.weight.mul_(80 if task.problem.places_are_labels else 20)
    return save_artifact(model.eval(), task, folder)


def labelled_by(artifact: Artifact, task: Task, texts: Sequence[Any]) -> Task:
    """The task with texts whose labels are drawn as the model has them at a temperature."""
    generator, classifier = np.random.default_rng(1), open_classifier(artifact)
    labels, targets = len(task.labels), list[Any]()
    for own in predict_outputs(classifier, texts):
        logits = own.logits.astype(np.float64) / TEMPERATURE
        if task.problem_type == "multi_label_classification":
            there = generator.random(labels) < 1 / (1 + np.exp(-logits[0]))
            targets.append(tuple(np.flatnonzero(there).tolist()))
            continue
        drawn = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1).tolist()
        targets.append(tuple(drawn) if task.problem.labels_words else drawn[0])
    whole, half = Split(tuple(texts), tuple(targets)), len(texts) // 2
    return replace(task, selection=whole.first(half), dev=whole.after(half))


MANY = {each.problem_type: each for each in (toy_task(600), set_task(1200), choice_task(600))}
"""Tasks of enough texts to find the temperature."""


@pytest.fixture(scope="module", params=KINDS)
def task(request: pytest.FixtureRequest) -> Task:
    return {**TASKS, **MANY}[request.param]


@pytest.fixture(scope="module")
def made(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Task]:
    artifact = sure_model(task, tmp_path_factory.mktemp("calibration") / "model")
    return artifact, labelled_by(artifact, task, task.train.examples)


@pytest.fixture(scope="module")
def calibrated(made: tuple[Artifact, Task], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    artifact, task = made
    out = tmp_path_factory.mktemp("calibrated") / "model"
    return calibrate(artifact, task, CalibrateConfig(), out)


def test_probabilities_are_right_as_often_as_they_say(
    made: tuple[Artifact, Task], calibrated: Artifact
) -> None:
    artifact, task = made
    found = calibrated.card.findings.calibration
    assert found is not None and found.method == task.problem.calibrated_by[0]
    assert found.after.ece < found.before.ece / 2
    own = calibrated.card.task.calibration
    assert own is not None and own.texts == len(task.selection)
    if task.problem_type in ("single_label_classification", "token_classification"):
        assert own.temperature == pytest.approx(TEMPERATURE, rel=0.2)
    assert found.changes["nll"].words == "better" and not found.worse
    # the model and what it predicts are as before
    assert calibrated.card.files == artifact.card.files
    outputs = [
        predict_outputs(open_classifier(each), task.dev.examples) for each in (artifact, calibrated)
    ]
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
    problem = open_classifier(calibrated).problem
    assert reliability_of(problem, outputs[1], task.dev, task.labels) == found.after
    sure = [
        each.confidence(outputs[1], task.labels).mean()
        for each in (problem.with_calibration(None), problem)
    ]
    assert sure[1] < sure[0] < 1


def test_another_calibration_starts_from_the_model(
    made: tuple[Artifact, Task], calibrated: Artifact, tmp_path: Path
) -> None:
    artifact, task = made
    again = calibrate(calibrated, task, CalibrateConfig(), tmp_path / "again")
    assert again.card == calibrated.card
    assert again.digest == calibrated.digest != artifact.digest
    assert calibrated.has_own_calibration


@pytest.mark.parametrize("task", ["multi_label_classification"], indirect=True)
def test_an_isotonic_curve_for_each_label(made: tuple[Artifact, Task], tmp_path: Path) -> None:
    artifact, task = made
    config = CalibrateConfig(method="isotonic")
    calibrated = calibrate(artifact, task, config, tmp_path / "out")
    own = calibrated.card.task.calibration
    assert own is not None and set(own.points) == set(task.labels) and not own.lines
    found = calibrated.card.findings.calibration
    assert found is not None and found.after.ece < found.before.ece


SINGLE = pytest.mark.parametrize("task", ["single_label_classification"], indirect=True)


@SINGLE
def test_what_is_made_of_a_calibrated_model_inherits(
    made: tuple[Artifact, Task], calibrated: Artifact, tmp_path: Path
) -> None:
    _, task = made
    few = {name: getattr(task, name).first(48) for name in ("train", "dev", "selection")}
    task = replace(task, **few)
    graph = export(calibrated, task, ExportConfig(parity_texts=8), tmp_path / "graph")
    small = quantize(
        *(graph, task, QuantizeConfig(scheme="dynamic", max_drop=100.0, parity_texts=8)),
        tmp_path / "int8",
    )
    config = PruneConfig(heads=0.25, ffn=0.25, recover=False, max_drop=100.0, allow_constant=True)
    pruned = STAGES["prune"].make([calibrated], task, config, tmp_path / "pruned")
    for each in (graph, small, pruned):
        assert each.card.task.calibration == calibrated.card.task.calibration
        assert not each.has_own_calibration
    again = calibrate(small, task, CalibrateConfig(), tmp_path / "again")
    assert again.has_own_calibration and again.card.findings.quantization is not None


@SINGLE
@pytest.mark.parametrize(
    ("stage", "config"),
    [
        ("prune", PruneConfig(ffn=0.25, epochs=1, max_drop=100.0, allow_constant=True)),
        ("quantize", QuantizeConfig(scheme="qat", epochs=1, max_drop=100.0, allow_constant=True)),
    ],
)
def test_a_trained_model_has_no_calibration_of_the_one_before(
    stage: str,
    config: Any,
    made: tuple[Artifact, Task],
    calibrated: Artifact,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, task = made
    few = {name: getattr(task, name).first(48) for name in ("train", "dev", "selection")}
    out = STAGES[stage].make([calibrated], replace(task, **few), config, tmp_path / "out")
    assert out.card.task.calibration is None
    assert f"the calibration of {calibrated.place} is left out" in caplog.text


def all_right(artifact: Artifact, task: Task, *, but: int) -> Task:
    """The task with validation texts that the model predicts right, without the first few."""
    outputs = predict_outputs(open_classifier(artifact), task.selection.examples)
    right = [int(each.logits.argmax()) for each in outputs]
    labels = (*(1 - each for each in right[:but]), *right[but:])
    return replace(task, selection=Split(task.selection.examples, labels))


@SINGLE
def test_worse_is_said(
    made: tuple[Artifact, Task], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact, task = made
    easy = all_right(artifact, task, but=1)
    with caplog.at_level(logging.WARNING):
        made_worse = calibrate(artifact, easy, CalibrateConfig(), tmp_path / "out")
    found = made_worse.card.findings.calibration
    assert found is not None and set(found.worse) >= {"nll"}
    assert "less reliable on the held-out texts" in caplog.text


@SINGLE
def test_what_cannot_be_calibrated_is_named(made: tuple[Artifact, Task], tmp_path: Path) -> None:
    artifact, task = made
    nothing = replace(task, selection=Split((), ()))
    with pytest.raises(ConfigError, match=r"no validation texts.*or too few texts.*--train FILE"):
        calibrate(artifact, nothing, CalibrateConfig(), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"predicts all .* validation texts right"):
        calibrate(artifact, all_right(artifact, task, but=0), CalibrateConfig(), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"method=platt: .* is calibrated by temperature"):
        calibrate(artifact, task, CalibrateConfig(method="platt"), tmp_path / "out")
    other = replace(task, labels=("a", "b"))
    with pytest.raises(ConfigError, match=r"predicts .* the labels of task 'toy' are 'a', 'b'"):
        calibrate(artifact, other, CalibrateConfig(), tmp_path / "out")


@SINGLE
def test_labels_are_matched_by_name(made: tuple[Artifact, Task], tmp_path: Path) -> None:
    artifact, task = made

    def turned(split: Split) -> Split:
        return replace(split, label_ids=tuple(1 - each for each in split.label_ids))

    other = replace(
        task,
        labels=task.labels[::-1],
        train=turned(task.train),
        dev=turned(task.dev),
        selection=turned(task.selection),
    )
    found, again = (
        calibrate(artifact, each, CalibrateConfig(), tmp_path / name).card
        for name, each in {"one": task, "two": other}.items()
    )
    assert found.task.calibration == again.task.calibration


@pytest.mark.parametrize("kind", ["regression", "ranking", "sentence_embedding"])
def test_kinds_without_probabilities_are_refused(kind: str, tmp_path: Path) -> None:
    task = TASKS[kind]
    artifact = sure_model(task, tmp_path / "model") if kind == "regression" else None
    with pytest.raises(ConfigError, match=f"'{kind}'"):
        STAGES["calibrate"].accepts(task)
    if artifact is not None:
        with pytest.raises(ConfigError, match="has no probabilities"):
            calibrate(artifact, task, CalibrateConfig(), tmp_path / "out")
