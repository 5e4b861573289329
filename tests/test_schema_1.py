"""Artifacts with cards of schema 1 are used as others are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME
from bertender.models.classifier import open_classifier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from tests.exports import PlainExport

QUICK: dict[str, dict[str, Any]] = {
    "distill": {"method": "hard", "layers": 1, "epochs": 1, "max_length": 32, "precision": "fp32"},
    "prune": {"layers": 1, "recover": False},
    "export": {},
    "quantize": {"scheme": "dynamic", "target": "vnni"},
}


def of_schema_1(artifact: Artifact, out: Path) -> Artifact:
    """Copy an artifact, its card written as schema 1 had it."""
    shutil.copytree(artifact.path, out)
    card = json.loads((out / CARD_NAME).read_text())
    findings = card.pop("findings")
    metrics = {name: findings[name] for name in ("parameters", "parity") if name in findings}
    (out / CARD_NAME).write_text(json.dumps({**card, "schema_version": 1, "metrics": metrics}))
    return Artifact.load(out)


@pytest.fixture
def earlier(plain_export: PlainExport, tmp_path: Path) -> dict[str, Artifact]:
    source, onnx = plain_export("bert")
    kinds = {"torch": source, "onnx": onnx}
    return {kind: of_schema_1(each, tmp_path / each.name) for kind, each in kinds.items()}


def test_the_digest_is_the_same(earlier: dict[str, Artifact], plain_export: PlainExport) -> None:
    assert [each.digest for each in earlier.values()] == [
        each.digest for each in plain_export("bert")
    ]


@pytest.mark.parametrize("stage", QUICK)
def test_a_stage_starts_from_it(
    stage: str, earlier: dict[str, Artifact], task: Task, tmp_path: Path
) -> None:
    source = earlier["onnx" if stage == "quantize" else "torch"]
    config = STAGES[stage].config.parse(QUICK[stage])
    made = STAGES[stage].run([source], task, config, tmp_path / "out")
    assert made.card.schema_version == 2 and made.card.parent is not None
    assert made.card.parent.digest == source.digest


def test_it_is_compared(earlier: dict[str, Artifact], task: Task) -> None:
    config = CompareConfig(
        processes=1, rounds=2, single_texts=2, batch_size=2, warmup_rounds=0, threads=1
    )
    rows = compare([*earlier.values()], task, config).rows
    parameters = open_classifier(earlier["torch"]).parameters
    assert [row.size.parameters for row in rows] == [parameters] * 2
    assert rows[0].parity is None
    assert rows[1].parity is not None and rows[1].parity.reference == "source"
