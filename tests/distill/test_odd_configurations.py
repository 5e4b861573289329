"""Encoders with unusual and legal configs, from a new head to a graph of 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, pipeline

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import open_classifier
from bertender.models.family import BEFORE_5
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.methods.albert import AlbertStudent
from distill.methods.distilbert import DistilBertStudent
from distill.methods.mobilebert import MobileBertStudent
from distill.students import StudentShape
from distill.students.weights import masked_language_model
from export.config import ExportConfig
from export.exporter import export
from quantize.quantizer import quantize
from tests.quantize.contexts import HERE, config_of
from tests.quick import quick
from tests.toy_models import DISTANCES, ODD, save_encoder, tiny_classifier
from tests.toys import pair_task

QUICK: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "precision": "fp32",
}
QUICK_ODD = (*["distances"][: int(BEFORE_5)], "one segment", "another task's")


@pytest.fixture(scope="module", params=quick(ODD, *QUICK_ODD))
def odd(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pairs() -> Task:
    """Of these, some encoders have no rows for the second text's token type."""
    return pair_task(32, 16)


@pytest.fixture(scope="module")
def teacher(odd: str, pairs: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    model_type, changes = ODD[odd]
    folder = tmp_path_factory.mktemp("odd")
    # weights so large that texts have different logits
    encoder = save_encoder(model_type, folder / "encoder", **changes, initializer_range=0.2)
    config = FinetuneConfig(teacher=str(encoder), **QUICK)
    return finetune_by_name(pairs, config, folder / "teacher")


def check_agree(one: Artifact, other: Artifact, task: Task) -> None:
    """The logits of two artifacts on texts of different lengths, in one batch."""
    ours, theirs = (open_classifier(each).logits(task.dev.examples) for each in (one, other))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("odd", quick(ODD, *QUICK_ODD[:-1]), indirect=True)
def test_it_is_trained_distilled_exported_and_quantized(
    odd: str, teacher: Artifact, pairs: Task, tmp_path: Path
) -> None:
    config = DistillConfig(layers=2, **QUICK)
    student = distill(teacher, pairs, config, tmp_path / "student")
    for source in (teacher, student):
        onnx = export(source, pairs, ExportConfig(), tmp_path / f"{source.path.name}-onnx")
        check_agree(source, onnx, pairs)
        small = config_of("dynamic", target=HERE)  # some share weights
        quantized = quantize(onnx, pairs, small, tmp_path / f"{source.path.name}-int8")
        assert open_classifier(quantized).logits(pairs.dev.examples).shape == (16, 2)


def test_the_artifact_says_what_it_is(odd: str, teacher: Artifact) -> None:
    """And nothing of a task that its encoder was used for before."""
    config = AutoConfig.from_pretrained(teacher.path)
    assert config.problem_type == "single_label_classification"
    assert config.id2label == {0: "first", 1: "second"}
    assert config.label2id == {"first": 0, "second": 1}
    assert not (config.finetuning_task or config.task_specific_params)
    assert len(config.architectures) == 1
    assert config.architectures[0].endswith("ForSequenceClassification")


def test_a_pipeline_of_transformers_gives_probabilities(tmp_path: Path, task: Task) -> None:
    for problem_type in ("multi_label_classification", "regression"):
        encoder = save_encoder("bert", tmp_path / problem_type, problem_type=problem_type)
        config = FinetuneConfig(teacher=str(encoder), **QUICK)
        trained = finetune_by_name(task, config, tmp_path / f"{problem_type}-trained")
        scores = pipeline("text-classification", str(trained.path), top_k=None)("apple pear")
        (scores,) = scores if isinstance(scores[0], list) else [scores]
        assert sum(each["score"] for each in scores) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ODD)
def test_a_student_of_full_depth_computes_what_its_teacher_does(name: str) -> None:
    """The usual kind of student is of another class only where that can hold all of the teacher."""
    model_type, changes = ODD[name]
    teacher = tiny_classifier(model_type, **{**changes, "return_dict": True})
    student = DistilBertStudent().build(teacher, StudentShape(4)).eval()
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    pad = teacher.config.pad_token_id or 0
    ids = torch.arange(5, 23).reshape(2, 9).where(mask.bool(), torch.tensor(pad))
    ours, theirs = (
        model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
        for model in (student, teacher)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not BEFORE_5, reason="transformers 5 has no such attention")
def test_an_albert_refuses_a_teacher_whose_positions_it_would_lose() -> None:
    teacher = tiny_classifier("bert", position_embedding_type="relative_key")
    with pytest.raises(ModelError, match=r"'relative_key', .* an ALBERT student would lose"):
        AlbertStudent().build(teacher, StudentShape(2))


@pytest.mark.skipif(not BEFORE_5, reason="transformers 5 has no such attention")
def test_a_position_table_that_nothing_reads_is_no_start() -> None:
    teacher = tiny_classifier("bert", position_embedding_type="relative_key")
    student = MobileBertStudent().build(teacher, StudentShape(2))
    positions = student.mobilebert.embeddings.position_embeddings.weight
    torch.testing.assert_close(positions, positions[:1].expand_as(positions))


@pytest.mark.skipif(BEFORE_5, reason="transformers before 5 has this attention")
@pytest.mark.parametrize("name", DISTANCES)
def test_attention_that_transformers_has_no_more_is_refused(
    name: str, tmp_path: Path, task: Task
) -> None:
    family, changes = DISTANCES[name]
    encoder = save_encoder(family, tmp_path / "encoder", **changes)
    with pytest.raises(ModelError, match=r"position_embedding_type='relative.*'transformers<5'"):
        finetune_by_name(task, FinetuneConfig(teacher=str(encoder), **QUICK), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("encoder.layer.1.attention.self.query.lora_A.weight", True), ("encoder.layer.9.x", False)],
)
def test_weights_of_a_layer_that_would_not_be_read_are_refused(
    name: str, is_refused: bool, tmp_path: Path, task: Task
) -> None:
    folder = save_encoder("bert", tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, name: torch.ones(4)}, folder / "model.safetensors", {"format": "pt"})
    config = FinetuneConfig(teacher=str(folder), **QUICK)
    if not is_refused:  # the config leaves this layer out
        finetune_by_name(task, config, tmp_path / "out")
        return
    with pytest.raises(ModelError, match=r"weight encoder\.layer\.1\..*Merge an adapter"):
        finetune_by_name(task, config, tmp_path / "out")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(
    bad: float, tmp_path: Path, task: Task
) -> None:
    folder = save_encoder("bert", tmp_path / "encoder")
    name = "encoder.layer.2.output.dense.weight"
    weights = load_file(folder / "model.safetensors")
    weights[name][3, 5] = bad
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"weight bert\.{name} of .* is not a finite number"):
        finetune_by_name(task, FinetuneConfig(teacher=str(folder), **QUICK), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tied_words_or_not_a_student_predicts_words_as_its_teacher(tmp_path: Path) -> None:
    folder = save_encoder("bert", tmp_path / "encoder")
    config = json.loads((folder / "config.json").read_text())
    teacher = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(**{**config, "tie_word_embeddings": False})
    ).eval()
    classifier = tiny_classifier("bert", tie_word_embeddings=False)
    classifier.base_model.load_state_dict(teacher.base_model.state_dict(), strict=False)
    student = masked_language_model(DistilBertStudent().build(classifier, StudentShape(4)), teacher)
    ids = torch.arange(5, 14)[None]
    torch.testing.assert_close(student.eval()(ids).logits, teacher(ids).logits)
