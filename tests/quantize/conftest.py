"""A float32 graph to quantize."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from tests.distill.toys import save_artifact, tiny_classifier


@pytest.fixture(scope="session")
def float_model(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Artifact:
    """The export of a tiny BERT of random weights."""
    folder = tmp_path_factory.mktemp("quantize")
    source = save_artifact(tiny_classifier("bert"), task, folder / "source")
    return export(source, task, ExportConfig(), folder / "onnx")
