"""Artifacts are plain transformers and Optimum folders, in a process without bertender.

Where Optimum is not installed, as none of its versions takes transformers 5, ONNX Runtime alone
opens the graphs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import open_classifier
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.quick import quick
from tests.toy_models import tiny_classifier
from tests.toys import pair_task, tiny_tokenizer

READER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import numpy, torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

class PlainGraph:
    def __init__(self, folder):
        from onnxruntime import InferenceSession
        (graph,) = Path(folder).glob("*.onnx")
        self.session = InferenceSession(graph)
        self.config = AutoConfig.from_pretrained(folder)

    from_pretrained = classmethod(lambda cls, folder: cls(folder))

    def __call__(self, **tokens):
        names = [each.name for each in self.session.get_inputs()]
        (logits,) = self.session.run(["logits"], {name: tokens[name].numpy() for name in names})
        return SimpleNamespace(logits=torch.from_numpy(logits))

try:
    from optimum.onnxruntime import ORTModelForSequenceClassification as Graph
except ImportError:
    Graph = PlainGraph
READERS = {"torch": AutoModelForSequenceClassification, "onnx": Graph}
job = json.load(sys.stdin)
answers = {}
for name, kind in job["models"].items():
    folder = f"{job['folder']}/{name}"
    model = READERS[kind].from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    columns = [list(column) for column in zip(*job["examples"])]
    tokens = tokenizer(*columns, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**tokens).logits
    labels = [model.config.id2label[int(row)] for row in logits.argmax(dim=-1)]
    answers[name] = {"class": type(model).__name__, "logits": logits.tolist(), "labels": labels}
ours = {"bertender", "distill", "export", "quantize", "serve"}
answers["imported"] = sorted(ours & {name.split(".")[0] for name in sys.modules})
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module", params=quick(("teacher", "student"), "teacher"))
def artifacts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Artifact]:
    """A teacher, its student, and what one is exported and quantized to, for pairs of texts.

    A parted graph has fused operators in float16, and its weights in a file of their own.
    """
    folder, task = tmp_path_factory.mktemp("models"), pair_task()
    pace = {"epochs": 6, "learning_rate": 3e-3, "batch_size": 16, "precision": "fp32"}
    model, config = tiny_classifier("bert"), FinetuneConfig(**pace)
    teacher = finetune(model, tiny_tokenizer(), task, config, folder / "teacher")
    student = distill(teacher, task, DistillConfig(layers=2, **pace), folder / "student")
    made = {"teacher": teacher, "student": student}
    source = made[request.param]
    made["onnx"] = onnx = export(source, task, ExportConfig(), folder / "onnx")
    parted = ExportConfig(precision="float16", optimize="fused", external_above_mb=0)
    made["parted"] = export(source, task, parted, folder / "parted")
    made["int8"] = quantize(onnx, task, QuantizeConfig(), folder / "int8")
    return made


@pytest.fixture(scope="module")
def foreign_answers(
    artifacts: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What a process without bertender reads from all of them: one process, for its imports."""
    folder = next(iter(artifacts.values())).path.parent
    request = {
        "folder": str(folder),
        "models": {name: artifact.card.kind for name, artifact in artifacts.items()},
        "examples": pair_task().dev.examples,
    }
    result = subprocess.run(
        [sys.executable, "-I", "-c", READER],
        input=json.dumps(request),
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers


GRAPH = "ORTModelForSequenceClassification" if find_spec("optimum") else "PlainGraph"
NAMES = {
    "teacher": "BertForSequenceClassification",
    "student": "DistilBertForSequenceClassification",
    **dict.fromkeys(("onnx", "int8", "parted"), GRAPH),
}


def test_no_module_of_ours_was_imported(foreign_answers: dict[str, Any]) -> None:
    assert foreign_answers["imported"] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_are_the_same(
    name: str, artifacts: dict[str, Artifact], foreign_answers: dict[str, Any]
) -> None:
    classifier, task = open_classifier(artifacts[name]), pair_task()
    logits = classifier.logits(task.dev.examples)
    theirs = foreign_answers[name]
    assert theirs["class"] == NAMES[name]
    # their session fuses other operators: sums in another order move an activation to the next of
    # 256 steps now and then, which a float model does not have
    most = 5e-3 if name == "int8" else 1e-5
    np.testing.assert_allclose(theirs["logits"], logits, atol=most)
    assert np.median(np.abs(np.array(theirs["logits"]) - logits)) < 1e-5
    assert theirs["labels"] == [task.labels[row] for row in logits.argmax(axis=1)]
    assert set(theirs["labels"]) == set(task.labels)  # or the names would prove little


def test_the_folders_hold_no_pickle_and_no_code(artifacts: dict[str, Artifact]) -> None:
    endings = {Path(name).suffix for artifact in artifacts.values() for name in artifact.card.files}
    assert endings <= {".json", ".txt", ".safetensors", ".onnx", ".onnx_data"}
