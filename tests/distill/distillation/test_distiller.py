"""Every row of METHODS from end to end on a tiny teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from transformers import AutoModelForSequenceClassification

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact, read_timing
from bertender.core.card import TIMING_NAME
from bertender.core.errors import ArtifactError
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.own_models import OWN_MODELS
from bertender.models.runtimes import RUNTIMES, Predictor
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.methods import METHODS
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.distill.distillation.settings import OF_METHOD, QUICK, SHORT
from tests.quick import quick
from tests.served import ask_one_by_one, one_by_one, served
from tests.toy_models import save_artifact, save_encoder, tiny_classifier
from tests.toys import pair_task

BY_CHANCE = "replacing"
"""The phase whose loss depends on the modules that a step draws more than on learning."""
NEARLY_NOTHING = 0.2
"""About the teacher's own loss, below which a student with its frozen head does not come."""
PASSES = 20
OPENS_AS = {
    "distilbert": "DistilBertForSequenceClassification",
    "hard": "DistilBertForSequenceClassification",
    "albert": "AlbertForSequenceClassification",
    "mobilebert": "MobileBertForSequenceClassification",
    "mobilebert-tiny": "MobileBertForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
}
"""The class of a method's students; the toy teacher's own where it is not here."""


QUICK_METHODS = (
    "albert",
    "bilstm",
    "distilbert",
    "static",
    "theseus",
    "tinybert",
)
"""Of each kind of student, and of each kind of phases."""


@pytest.fixture(scope="module", params=quick(METHODS, *QUICK_METHODS))
def student(
    request: pytest.FixtureRequest,
    trained_teacher: Artifact,
    task: Task,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """A student by each method."""
    settings = {**QUICK, **OF_METHOD.get(request.param, {})}
    if METHODS[request.param].student.wants_own_start:
        encoder = tmp_path_factory.mktemp("encoders") / "encoder"
        settings["student"] = str(save_encoder("bert", encoder))
    config = DistillConfig(method=request.param, **settings)
    return distill(trained_teacher, task, config, tmp_path_factory.mktemp("students") / "student")


def test_the_loss_of_each_phase_falls(student: Artifact) -> None:
    training = student.card.findings.training
    phases = METHODS[student.card.config["method"]].at(2).phases
    every = (*(phase.losses for phase in training.earlier_phases), training.losses)
    assert [phase.name for phase in training.earlier_phases] == [each.name for each in phases[:-1]]
    for phase, losses in zip(phases, every, strict=True):
        assert set(losses[0]) == {term.name for term in phase.terms if term.weight}
        first, final = (sum(parts.values()) for parts in (losses[0], losses[-1]))
        assert final < max(first, NEARLY_NOTHING) or phase.name == BY_CHANCE, phase.name


def test_the_student_learns_the_task_and_is_saved_as_it_was_scored(
    student: Artifact, task: Task
) -> None:
    score, _ = evaluate(open_classifier(student), task.dev, task.metric)
    assert score.value > 0.9
    assert student.card.findings.training.epochs[-1] == {"accuracy": pytest.approx(score.value)}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_at_its_own_start_and_rate(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """More passes make up for few texts and a narrow model; all else is what a user gets."""
    row = METHODS[method]
    settings: dict[str, Any] = {"method": method, "epochs": PASSES, "batch_size": 8}
    if heads := OF_METHOD.get(method, {}).get("relation_heads"):
        settings["relation_heads"] = heads  # which divides the toys' width
    if row.has_phases:
        settings["earlier_epochs"] = PASSES
    if row.student.wants_own_start:
        settings["student"] = str(save_encoder("bert", tmp_path / "encoder"))
    student = distill(trained_teacher, task, DistillConfig.parse(settings), tmp_path / "student")
    assert student.card.findings.scores.constant is None
    assert student.card.findings.scores.score > 0.9


def test_the_student_opens_in_transformers_with_the_same_answers(
    student: Artifact, task: Task
) -> None:
    if student.card.family in OWN_MODELS:
        pytest.skip("opens with bertender alone: see tests/models/test_own_models.py")
    model = AutoModelForSequenceClassification.from_pretrained(student.path).eval()
    tokens = load_tokenizer(student.path)(
        [text for (text,) in task.dev.examples], padding=True, return_tensors="pt"
    )
    opened = OPENS_AS.get(student.card.config["method"], "BertForSequenceClassification")
    assert type(model).__name__ == opened
    assert ("token_type_ids" in tokens) is not opened.startswith(("Distil", "Modern"))
    with torch.inference_mode():
        logits = model(**tokens).logits.numpy()
    ours = open_classifier(student).logits(task.dev.examples)
    np.testing.assert_allclose(logits, ours, atol=1e-6)
    assert model.config.id2label == dict(enumerate(task.labels))


@pytest.fixture(scope="module")
def forms(
    student: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Artifact, Artifact]:
    """The student in ONNX: in float32, and in 8 bits."""
    folder = tmp_path_factory.mktemp("forms")
    exported = export(student, task, ExportConfig(), folder / "onnx")
    return exported, quantize(exported, task, QuantizeConfig(), folder / "int8")


@pytest.mark.parametrize("student", quick(METHODS, "bilstm", "distilbert"), indirect=True)
def test_the_student_exports_quantizes_and_survives_float16(
    forms: tuple[Artifact, Artifact], task: Task, tmp_path: Path
) -> None:
    for artifact in forms:
        score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
        assert score.value > 0.9
    exported, _ = forms
    classifier = open_classifier(exported)
    batch = classifier.encode(task.dev.examples)
    logits = classifier.predictor.logits(batch)
    half = as_float16(exported, tmp_path / "half.onnx").logits(batch)
    np.testing.assert_allclose(half, logits, atol=0.02 * np.abs(logits).max())


@pytest.mark.server
@pytest.mark.slow
def test_the_student_in_8_bits_is_served(
    forms: tuple[Artifact, Artifact], task: Task, tmp_path: Path
) -> None:
    _, int8 = forms
    labels, logits = one_by_one(open_classifier(int8, threads=1), task.dev.examples)
    with served(int8, tmp_path) as server:
        answered, found = ask_one_by_one(server.http_url, task.dev.examples)
    assert answered == labels and len(set(labels)) > 1
    np.testing.assert_allclose(found, logits, atol=1e-6)


def as_float16(artifact: Artifact, file: Path) -> Predictor:
    """The graph of an onnx artifact with every number in float16."""
    graph = convert_float_to_float16(onnx.load(onnx_file(artifact)), keep_io_types=True)
    onnx.save(graph, file)
    return RUNTIMES["onnxruntime"].open(file)


def test_the_card_says_where_the_student_comes_from(
    student: Artifact, trained_teacher: Artifact, task: Task
) -> None:
    card = student.card
    assert card.stage == "distill"
    assert card.family in {"albert", "bert", "distilbert", "mobilebert", "modernbert", *OWN_MODELS}
    assert card.config["layers"] == OF_METHOD.get(card.config["method"], {}).get("layers", 2)
    assert card.task == task.record()
    assert card.parent is not None and card.parent.digest == trained_teacher.digest
    assert card.findings.parameters == open_classifier(student).parameters


def test_the_teachers_artifact_does_not_change(
    student: Artifact, trained_teacher: Artifact
) -> None:
    again = Artifact.load(trained_teacher.path)  # reads every file and checks its digest
    assert again.card == trained_teacher.card


@pytest.mark.parametrize("setting", ["student", "more_teachers"])
def test_no_source_is_written_over(
    setting: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    other = save_artifact(tiny_classifier("bert"), task, tmp_path / "other")
    config = DistillConfig.parse(
        {"method": "pd", "student": str(other.path), setting: str(other.path)}
    )
    with pytest.raises(ArtifactError, match="is the artifact to start from"):
        distill(trained_teacher, task, config, other.path)
    assert Artifact.load(other.path).card == other.card
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_no_checkpoints_are_left_behind(student: Artifact) -> None:
    assert [path.name for path in student.path.parent.iterdir()] == [student.name]


def test_the_same_run_gives_the_same_student(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    first, second, other = (
        distill(trained_teacher, task, DistillConfig(**SHORT, seed=seed), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.digest == second.digest != other.digest


@pytest.mark.one_path
@pytest.mark.parametrize("method", ["tinybert", "minilm-v2", "minibert"])
def test_a_narrow_student_learns_from_a_wide_teacher(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    heads = open_classifier(trained_teacher).predictor.model.config.num_attention_heads  # type: ignore[attr-defined]
    width = {"hidden_size": 16, "heads": heads, "feed_forward_size": 24}
    config = DistillConfig(method=method, **{**QUICK, **OF_METHOD.get(method, {}), **width})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    model = AutoModelForSequenceClassification.from_pretrained(student.path)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 2)
    assert not [name for name, _ in model.named_parameters() if "projection" in name]
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("settings", "teaches"),
    [({"method": "pkd"}, True), ({}, True), ({"method": "hard"}, False)],
    ids=["kept", "online", "no teacher"],
)
def test_what_a_run_took_lies_beside_the_card(
    settings: dict[str, Any],
    teaches: bool,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    config = DistillConfig(**{**SHORT, "epochs": 2, **settings})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    timing = read_timing(student)
    assert timing is not None and timing.samples == 2 * len(task.train)
    assert 0 < timing.training_s < timing.wall_s
    assert (timing.teacher_s > 0.01 * timing.wall_s) is teaches
    assert 0 <= timing.teacher_share < 1
    assert TIMING_NAME not in student.card.files


@pytest.mark.slow
def test_pairs_are_distilled_exported_and_quantized(tmp_path: Path) -> None:
    task = pair_task()
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    student = distill(teacher, task, DistillConfig(**SHORT), tmp_path / "student")
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    assert open_classifier(int8).logits(task.dev.examples).shape == (32, 2)
    assert student.card.task.text_columns == ("left", "right")


@pytest.mark.one_path
@pytest.mark.parametrize(
    ("method", "settings"),
    [("bilstm", {"hidden_size": 24}), ("static", {"feed_forward_size": 24, "epochs": 12})],
)
def test_students_without_layers_tell_the_texts_of_a_pair_apart(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """From labels alone, because nobody has trained this teacher."""
    task = pair_task()
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    labels = {"method": method, "layers": None, "weights": {"logits": 0, "hard": 1}}
    alone = {**QUICK, **labels, **settings}
    student = distill(teacher, task, DistillConfig(**alone), tmp_path / "student")
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    for artifact in (student, onnx, int8):
        score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
        assert score.value > 0.9, artifact.name
    again = DistillConfig(**{**alone, "student": str(student.path), "hidden_size": 8, "epochs": 1})
    narrow = distill(student, task, again, tmp_path / "again")
    assert narrow.card.findings.parameters < student.card.findings.parameters
