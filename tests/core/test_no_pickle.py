"""What the stages write can only be data: safetensors, ONNX, JSON and text, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from safetensors import safe_open

from bertender.core.artifact import Artifact
from bertender.core.card import TIMING_NAME
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from tests.front import WRITERS

FEW_STEPS = {"epochs": 1, "checkpoint_steps": 1, "max_length": 32}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "baseline": {},
    "pretrain": {
        **FEW_STEPS,
        "vocabulary_size": 200,
        "layers": 1,
        "hidden_size": 16,
        "heads": 2,
    },
    "finetune": FEW_STEPS,
    "distill": {**FEW_STEPS, "layers": 2},
    "prune": {**FEW_STEPS, "heads": 0.5, "vocab": "task"},
    "distill-general": {"layers": 1, "epochs": 1},
    "export": {},
    "quantize": {},
    "bundle": {"to": "browser"},
    "calibrate": {},
}
"""The least work that each stage can do."""


def read_safetensors(file: Path) -> None:
    with safe_open(file, "np") as tensors:
        assert tensors.keys()


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".safetensors": read_safetensors,
    ".onnx": lambda file: onnx.checker.check_model(onnx.load(file)),
    ".json": lambda file: json.loads(file.read_text(encoding="utf-8")),
    **dict.fromkeys(
        # those of a page for a browser are ours, as is .npmrc, which has no suffix
        ("", ".txt", ".html", ".css", ".mjs"),
        lambda file: file.read_text(encoding="utf-8"),
    ),
}
"""The formats that may be written, by suffix; each reader fails on any other content."""


@pytest.fixture(scope="module")
def sources(
    teacher: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Artifact]]:
    """What each stage starts from, where it starts from something."""
    out = tmp_path_factory.mktemp("sources") / "onnx"
    stage = STAGES["export"]
    exported = stage.make([teacher], task, stage.config(), out)
    return {
        "finetune": [teacher],
        "distill": [teacher],
        "prune": [teacher],
        "distill-general": [teacher],
        "export": [teacher],
        "quantize": [exported],
        "bundle": [exported],
        "calibrate": [exported],
    }


@pytest.mark.parametrize("name", WRITERS)
def test_stages_write_data_only(
    name: str, sources: dict[str, list[Artifact]], task: Task, tmp_path: Path
) -> None:
    stage, settings = STAGES[name], dict(CONFIGS[name])
    if "corpus" in stage.config.model_fields:
        corpus = tmp_path / "corpus" / "toy.txt"
        corpus.parent.mkdir()
        corpus.write_text("\n".join(text for (text,) in task.train.examples))
        settings["corpus"] = str(corpus)
    if name == "calibrate":
        task = replace(task, selection=task.dev)
    config = stage.config.parse(settings)
    artifact = stage.make(sources.get(name, []), task, config, tmp_path / "out" / name)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {".json"} < {file.suffix for file in files} <= READERS.keys()
    for file in files:
        READERS[file.suffix](file)
    names = {file.relative_to(artifact.path).as_posix() for file in files}
    assert names - {TIMING_NAME} == {*artifact.card.files, "artifact.json"}, (
        "the card lists every file but how long it took, and nothing is left beside the artifact"
    )
