"""A ModernBERT teacher through every method, to an endpoint's predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import open_classifier
from bertender.models.family import BEFORE_5
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distiller import distill
from distill.distillation.general import GeneralTeacher, distill_general
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune
from distill.methods import METHODS
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.students import StudentShape
from distill.teachers.encoders import load_classifier
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.distill.architectures import ARCHITECTURES
from tests.distill.distillation.general_settings import settings_of
from tests.toy_models import tiny_classifier, tiny_language_model
from tests.toys import passages, tiny_tokenizer

QUICK: dict[str, Any] = {"batch_size": 16, "learning_rate": 3e-3, "precision": "fp32"}

COPIES = {"hard", "distilbert", "internal", "internal-all", "internal-progressive", "pkd"}
COPIES |= {"minilm", "minilm-v2", "modernbert", "tinybert"}
"""Methods whose student is a shorter ModernBERT where it is as wide as its teacher."""
REPLACING = {"theseus", "theseus-constant"}
"""Methods that replace layers during training."""
OF_ANOTHER_CLASS: dict[str, dict[str, Any]] = {
    "bilstm": {},
    "minibert": {"hidden_size": 24, "heads": 4},
    "mobilebert": {},
    "mobilebert-tiny": {},
    "static": {},
    "tinybert": {"hidden_size": 24, "heads": 4, "layers": 2},
}
"""Method -> settings of a student that cannot start from its layers."""
FROM_ITS_OWN_START = ("pd", "small-vocab")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 wide, for the relation heads of MiniLMv2."""
    torch.manual_seed(5)
    folder, row = tmp_path_factory.mktemp("encoder"), ARCHITECTURES["modernbert"]
    tokenizer = row.tokenizer()
    shape = {**row.shape, "hidden_size": 48, "vocab_size": len(tokenizer)}
    AutoModel.from_config(AutoConfig.for_model("modernbert", **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(encoder: Path, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    model, tokenizer = load_classifier(str(encoder), task.labels)
    config = FinetuneConfig(**{**QUICK, "epochs": 5})
    return finetune(model, tokenizer, task, config, tmp_path_factory.mktemp("tuned") / "teacher")


def test_every_method_is_tried() -> None:
    tried = {*COPIES, *REPLACING, *OF_ANOTHER_CLASS, *FROM_ITS_OWN_START, "albert"}
    assert set(METHODS) == tried


@pytest.mark.one_path
@pytest.mark.parametrize("method", sorted(COPIES | REPLACING if BEFORE_5 else COPIES))
def test_a_shorter_modernbert_learns(
    method: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig(method=method, layers=2, **{**QUICK, "epochs": 2})
    student = distill(teacher, task, config, tmp_path / "student")
    assert student.card.family == "modernbert"
    predictions = open_classifier(student).logits(task.dev.examples).argmax(-1)
    assert (predictions == np.array(task.dev.label_ids)).mean() > 0.8


def test_a_start_without_heads_gives_none() -> None:
    start = tiny_classifier("bertender-static")
    with pytest.raises(ModelError, match=r"no heads to take over\. Give heads: .*hidden_size=24"):
        METHODS["modernbert"].build(start, StudentShape(1))


@pytest.mark.skipif(BEFORE_5, reason="a layer gets both masks there")
@pytest.mark.parametrize("method", sorted(REPLACING))
def test_no_layer_runs_with_the_mask_of_another(
    method: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig(method=method, layers=2, **QUICK)
    with pytest.raises(ModelError, match=r"mask and the positions of its kind.*distilbert"):
        distill(teacher, task, config, tmp_path / "student")


@pytest.mark.one_path
@pytest.mark.parametrize("method", OF_ANOTHER_CLASS)
def test_students_of_another_class_have_its_words(
    method: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig(method=method, **{**QUICK, "epochs": 1, **OF_ANOTHER_CLASS[method]})
    student = distill(teacher, task, config, tmp_path / "student")
    assert student.card.family != "modernbert"
    assert np.isfinite(open_classifier(student).logits(task.dev.examples)).all()


@pytest.mark.parametrize("method", FROM_ITS_OWN_START)
def test_it_is_a_start_too(
    method: str, encoder: Path, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig(method=method, student=str(encoder), **{**QUICK, "epochs": 1})
    assert distill(teacher, task, config, tmp_path / "student").card.family == "modernbert"


def test_an_albert_has_no_place_for_its_layers(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="'modernbert' model are of its own kind"):
        distill(teacher, task, DistillConfig(method="albert", **QUICK), tmp_path / "student")


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("optimize", ["none", "fused"])
@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_a_student_goes_the_whole_way(
    scheme: str, optimize: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """Its products are four a layer, one of the head and one of the classifier."""
    config = DistillConfig(method="minilm-v2", layers=2, **{**QUICK, "epochs": 2})
    student = distill(teacher, task, config, tmp_path / "student")
    graph = export(student, task, ExportConfig.parse({"optimize": optimize}), tmp_path / "onnx")
    settings = {"scheme": scheme, **({"calibration_texts": 32} if scheme == "static" else {})}
    int8 = quantize(graph, task, QuantizeConfig(**settings), tmp_path / "int8")
    findings = int8.card.findings.quantization
    assert findings is not None and findings.product_check is not None
    assert findings.products == findings.running_in_integers == 4 * 2 + 2
    assert findings.product_check.checked > findings.products  # the table of words too
    ours, theirs = (open_classifier(each).logits(task.dev.examples) for each in (int8, student))
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.95


def test_layers_heads_neurons_and_words_go(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    """In one run, and again with the scales that make up for them."""
    parts: dict[str, Any] = {"layers": 1, "heads": 0.5, "ffn": 0.5, "vocab": "task"}
    config = PruneConfig(**parts, **{**QUICK, "epochs": 2, "scored_texts": 40})
    pruned = prune(teacher, task, config, tmp_path / "pruned")
    assert pruned.card.family == "bertender-pruned-modernbert"
    findings = pruned.card.findings.pruning
    assert findings.layers[0] == 0 and len(findings.layers) == 3
    assert findings.vocabulary.after.entries < findings.vocabulary.before.entries
    assert sum(findings.rounds[0].heads) == 6 and findings.rounds[0].score > 0.8
    graph = open_classifier(export(pruned, task, ExportConfig(), tmp_path / "onnx"))
    ours, theirs = (each.logits(task.dev.examples) for each in (graph, open_classifier(pruned)))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    free = PruneConfig(heads=0.5, retraining_free=True, batch_size=8, scored_texts=40)
    rescaled = (
        prune(teacher, task, free, tmp_path / "free").card.findings.pruning.rounds[0].rescaled
    )
    assert all(each.error_after <= each.error_before for each in rescaled) and rescaled


def test_it_is_distilled_on_a_corpus(tmp_path: Path) -> None:
    tiny_language_model("modernbert").save_pretrained(tmp_path / "teacher")
    tiny_tokenizer().save_pretrained(tmp_path / "teacher")
    for method in ("distilbert", "tinybert"):
        config = GeneralConfig(**settings_of(method, epochs=1))
        source = GeneralTeacher.load(str(tmp_path / "teacher"), config.changed_method())
        student = distill_general(source, passages(60), config, tmp_path / method)
        assert student.card.family == "modernbert"
