"""Every row of METHODS from end to end on a tiny teacher, and what distilling refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, DistilBertForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, UnknownNameError
from bertender.core.predictor import open_classifier
from bertender.core.text import load_tokenizer
from bertender.measure.accuracy import evaluate
from bertender.tasks.task import Task
from distill import teacher as teacher_module
from distill.baseline import BagOfWordsConfig, train_bag_of_words
from distill.distiller import DistillConfig, distill
from distill.methods import METHODS
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize
from tests.distill.toys import pair_task, save_artifact, tiny_classifier

QUICK: dict[str, Any] = {
    "layers": 2,
    "epochs": 6,
    "batch_size": 8,
    "learning_rate": 2e-3,
    "precision": "fp32",
}
SHORT = {**QUICK, "epochs": 1}


@pytest.fixture(scope="module", params=METHODS)
def student(
    request: pytest.FixtureRequest,
    trained_teacher: Artifact,
    task: Task,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """A student by each method."""
    config = DistillConfig(method=request.param, **QUICK)
    return distill(trained_teacher, task, config, tmp_path_factory.mktemp("students") / "student")


def test_each_term_of_the_loss_falls(student: Artifact) -> None:
    terms = METHODS[student.card.config["method"]].terms
    losses = student.card.metrics["losses"]
    assert set(losses[0]) == {term.name for term in terms}
    for term in terms:
        assert losses[-1][term.name] < 0.8 * losses[0][term.name]


def test_the_student_learns_the_task_and_is_saved_as_it_was_scored(
    student: Artifact, task: Task
) -> None:
    score, _ = evaluate(open_classifier(student), task.dev, task.metric)
    assert score.value > 0.9
    assert student.card.metrics["epochs"][-1] == {"accuracy": pytest.approx(score.value)}


def test_the_student_opens_in_transformers_with_the_same_answers(
    student: Artifact, task: Task
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(student.path).eval()
    tokens = load_tokenizer(student.path)(
        [text for (text,) in task.dev.examples], padding=True, return_tensors="pt"
    )
    assert isinstance(model, DistilBertForSequenceClassification)
    assert set(tokens) == {"input_ids", "attention_mask"}
    with torch.inference_mode():
        logits = model(**tokens).logits.numpy()
    ours = open_classifier(student).logits(task.dev.examples)
    np.testing.assert_allclose(logits, ours, atol=1e-6)
    assert model.config.id2label == dict(enumerate(task.labels))


def test_the_student_exports_and_quantizes(student: Artifact, task: Task, tmp_path: Path) -> None:
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    for artifact in (onnx, int8):
        score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
        assert score.value > 0.9


def test_the_card_says_where_the_student_comes_from(
    student: Artifact, trained_teacher: Artifact, task: Task
) -> None:
    card = student.card
    assert card.stage == "distill"
    assert card.family == "distilbert"
    assert card.config["layers"] == 2
    assert card.task == task.record()
    assert card.parent is not None and card.parent.digest == trained_teacher.digest
    assert card.metrics["parameters"] == open_classifier(student).parameters


def test_the_teachers_artifact_does_not_change(
    student: Artifact, trained_teacher: Artifact
) -> None:
    again = Artifact.load(trained_teacher.path)  # reads every file and checks its digest
    assert again.card == trained_teacher.card


def test_no_checkpoints_are_left_behind(student: Artifact) -> None:
    assert [path.name for path in student.path.parent.iterdir()] == [student.name]


@pytest.mark.parametrize(
    ("settings", "runs"),
    [({}, 1), ({"weights": {"soft": 0}}, 0), ({"method": "hard"}, 0)],
    ids=["distilbert", "without soft labels", "hard"],
)
def test_teacher_logits_are_computed_only_where_they_are_read_and_once(
    settings: dict[str, Any],
    runs: int,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    calls = []
    compute = teacher_module._compute_logits
    monkeypatch.setattr(
        teacher_module, "_compute_logits", lambda *given: calls.append(1) or compute(*given)
    )
    for seed in (0, 1):
        config = DistillConfig(**SHORT, **settings, seed=seed)
        distill(trained_teacher, task, config, tmp_path / f"student-{seed}")
    assert len(calls) == runs


def test_the_same_run_gives_the_same_student(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    first, second, other = (
        distill(trained_teacher, task, DistillConfig(**SHORT, seed=seed), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.digest == second.digest != other.digest


def test_pairs_are_distilled_exported_and_quantized(tmp_path: Path) -> None:
    task = pair_task()
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    student = distill(teacher, task, DistillConfig(**SHORT), tmp_path / "student")
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    assert open_classifier(int8).logits(task.dev.examples).shape == (32, 2)
    assert student.card.task.text_columns == ("left", "right")


def test_the_command_lines_forms_of_settings() -> None:
    config = DistillConfig.parse({"weights": "soft=0.7, hard=0.3", "teacher_layers": "1,3,5"})
    assert config.weights == {"soft": 0.7, "hard": 0.3}
    assert config.teacher_layers == (1, 3, 5)
    assert DistillConfig.parse(json.loads(config.model_dump_json())) == config


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "negative weight": ({"weights": "soft=-1"}, r"weights\.soft=.*greater than or equal to 0"),
    "no number": ({"weights": "soft"}, r"weights\.soft=''.*valid number"),
    "temperature": ({"temperature": 0}, "temperature=0: .*greater than 0"),
    "layers": ({"layers": 0}, "layers=0: .*greater than or equal to 1"),
    "teacher layers": ({"teacher_layers": "1,x"}, r"teacher_layers\.1='x'"),
    "unknown key": ({"temprature": 2}, "unknown key 'temprature'. Did you mean 'temperature'"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_refused(case: str) -> None:
    settings, message = BAD_SETTINGS[case]
    with pytest.raises(ConfigError, match=message):
        DistillConfig.parse(settings)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "method": ({"method": "distillbert"}, UnknownNameError, "Did you mean 'distilbert'"),
    "term": ({"weights": {"sofd": 1}}, ConfigError, r"no loss term 'sofd'\. Did you mean 'soft'"),
    "no term of hard": (
        {"method": "hard", "weights": {"soft": 1}},
        ConfigError,
        r"'hard' has no loss term 'soft'.*Its terms: hard",
    ),
    "nothing left": (
        {"weights": {"soft": 0, "hard": 0, "cosine": 0}},
        ConfigError,
        "every term of 'distilbert' has weight 0",
    ),
    "no temperature": (
        {"method": "hard", "temperature": 3.0},
        ConfigError,
        r"temperature=3\.0: method 'hard' has no soft labels",
    ),
    "too deep": ({"layers": 9}, ModelError, "layers=9: the teacher has only 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_method_cannot_do_is_refused_before_anything_is_written(
    case: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        distill(trained_teacher, task, DistillConfig(**{**SHORT, **settings}), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_teacher_of_other_labels_is_refused(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    for labels in (("tool", "fruit"), ("a", "b", "c")):
        with pytest.raises(ConfigError, match="Fine-tune a teacher on this task first"):
            distill(
                trained_teacher, replace(task, labels=labels), DistillConfig(), tmp_path / "out"
            )


def test_only_a_torch_classifier_is_a_teacher(task: Task, tmp_path: Path) -> None:
    words = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    with pytest.raises(ModelError, match=r"kind bag-of-words.*no classifier to learn from"):
        distill(words, task, DistillConfig(), tmp_path / "out")
