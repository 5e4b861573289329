"""EXPORT: a classifier as an ONNX graph."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import FileLock

from bertender.core.artifact import Artifact, digest_of
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.files import cache_directory
from bertender.recipes.stage import TORCH_CLASSIFIER, Inputs, Product, Stage, Want
from bertender.tasks.task import Task
from export.config import ExportConfig


def _export(inputs: Inputs, config: ExportConfig, out: Path) -> Artifact:
    from export.exporter import export

    return export(inputs.sources[0], inputs.task, config, out)


def _write(source: Artifact, task: Task, directory: Path) -> None:
    """Write the graph of a torch artifact with the default settings."""
    from export.exporter import write_onnx

    write_onnx(source, task, ExportConfig(), directory)


def _cached(source: Artifact, task: Task) -> Artifact:
    """Return the export of a torch artifact with the default settings, from the cache folder where
    it is there; what is made of it finds it there again."""
    from export.exporter import export

    record = task.record().model_dump(mode="json")
    identity = [source.digest, record, EXPORT.code_version(), library_versions()]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    out = cache_directory() / "exported" / key / f"{source.name}-onnx"
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.with_name(f".{out.name}.lock")):
        build_once([out], identity, lambda: export(source, task, ExportConfig(), out), digest_of)
    return Artifact.load(out)


def _wants(config: ExportConfig, position: int) -> Want:
    from export.exporter import check_architecture

    return replace(TORCH_CLASSIFIER, class_checks=(partial(check_architecture, config=config),))


EXPORT = Stage(
    name="export",
    config=ExportConfig,
    function=_export,
    provides={"write": _write, "cached": _cached},
    source="artifact",
    wants=_wants,
    model=lambda config, earlier: earlier.sources[0],
    makes=lambda config: Product(
        "export", "onnx", precision=config.precision, fused=config.optimize == "fused"
    ),
)
