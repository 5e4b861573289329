"""Every row of OWN_MODELS: it opens with bertender, and elsewhere says that it needs it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.models.classifier import load_torch_classifier, open_classifier
from bertender.models.own_models import OWN_MODELS, load_pretrained
from bertender.tasks.task import Task
from bertender.training.heads.numbers import output_layer
from distill.teachers.encoders import load_classifier
from export.config import ExportConfig
from export.exporter import export
from tests.toy_models import save_artifact, tiny_classifier

READER = """
import json, sys
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

readers = {AutoModel: "torch", AutoModelForSequenceClassification: "torch"}
try:
    from optimum.onnxruntime import ORTModelForSequenceClassification
    readers[ORTModelForSequenceClassification] = "onnx"
except ImportError:
    pass
job = json.load(sys.stdin)
errors = {}
for reader, kind in readers.items():
    for name, folders in job.items():
        try:
            reader.from_pretrained(folders[kind])
        except ValueError as error:
            errors[f"{name} {reader.__name__}"] = str(error)
        else:
            errors[f"{name} {reader.__name__}"] = "opened"
errors["tokens"] = [AutoTokenizer.from_pretrained(f["torch"]).sep_token for f in job.values()]
errors["imported"] = "bertender" in sys.modules
json.dump(errors, sys.stdout)
"""


@pytest.fixture(params=OWN_MODELS)
def own(request: pytest.FixtureRequest, task: Task, tmp_path: Path) -> Artifact:
    """A torch artifact of each architecture."""
    return save_artifact(tiny_classifier(request.param), task, tmp_path / "own")


def test_an_artifact_opens_with_the_weights_it_was_written_with(own: Artifact, task: Task) -> None:
    model, written = load_torch_classifier(own), tiny_classifier(own.card.family)
    assert type(model) is OWN_MODELS[own.card.family].classifier is type(written)
    ours, theirs = model.state_dict(), written.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not model.training
    classifier = open_classifier(own)
    assert classifier.parameters == sum(weight.numel() for weight in written.parameters())
    together = classifier.logits(task.dev.examples)
    alone = np.concatenate([classifier.logits([example]) for example in task.dev.examples])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_config_says_what_opens_it(own: Artifact) -> None:
    config = json.loads((own.path / "config.json").read_text())
    row = OWN_MODELS[own.card.family]
    assert config["opens_with"] == "bertender" and config["model_type"].startswith("bertender-")
    assert config["architectures"] == [row.classifier.__name__]
    assert not {"auto_map", "torch_dtype"} & set(config)


def test_it_starts_another_classifier_whose_head_is_new(own: Artifact) -> None:
    """Weights that no file holds must be drawn, not left as memory had them."""
    torch.manual_seed(0)
    model, _ = load_classifier(str(own.path), ("a", "b", "c"))
    trained, _ = load_pretrained(AutoModelForSequenceClassification, str(own.path))
    ours, theirs = model.base_model.state_dict(), trained.base_model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    layer = output_layer(model, 3)
    assert layer is not None
    head = layer.weight.detach()
    assert head.shape[0] == model.config.num_labels == 3
    assert torch.isfinite(head).all() and 0 < float(head.std()) < 1


@pytest.mark.parametrize("model_type", ["bert", "camembert"])
def test_the_outputs_are_those_of_the_head_whatever_is_as_wide(model_type: str) -> None:
    """Some architectures have their head before their encoder, whose layers have 32 outputs too."""
    model = tiny_classifier(model_type, num_labels=32)
    layer = output_layer(model, 32)
    assert layer is getattr(model.classifier, "out_proj", model.classifier)


@pytest.mark.slow
def test_a_process_without_bertender_refuses_it_by_name(task: Task, tmp_path: Path) -> None:
    job = {}
    for name in OWN_MODELS:
        source = save_artifact(tiny_classifier(name), task, tmp_path / name)
        exported = export(source, task, ExportConfig(parity_texts=4), tmp_path / f"{name}-onnx")
        job[name] = {"torch": str(source.path), "onnx": str(exported.path)}
    (tmp_path / "elsewhere").mkdir()
    result = subprocess.run(
        [sys.executable, "-I", "-c", READER],
        input=json.dumps(job),
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    errors = json.loads(result.stdout)
    assert errors.pop("imported") is False
    assert errors.pop("tokens") == ["[SEP]"] * len(OWN_MODELS), "the tokenizer is a plain one"
    readers = 3 if find_spec("optimum") else 2
    assert len(errors) == readers * len(OWN_MODELS)
    for opened, error in errors.items():
        assert f"model type `{opened.split()[0]}`" in error, (opened, error)
