"""Architectures that a later step refuses: a recipe shows them before its first step runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError
from bertender.models.expected import ExpectedModel, expected_on_disk
from bertender.pipeline.plan import make_plan
from bertender.pipeline.recipe import parse_recipe
from bertender.pipeline.stage import Product
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task
from distill.methods import METHODS
from distill.objectives import OBJECTIVES
from export.fusion import FUSIONS
from export.optimization import OPTIMIZATIONS
from quantize.schemes import SCHEMES
from tests.front import ToyFiles, write_toy_files
from tests.listening import interrupted_at
from tests.toy_models import (
    BERT_SHAPE,
    OWN_SHAPES,
    SHAPES,
    UNKNOWN,
    save_artifact,
    save_encoder,
    tiny_classifier,
)

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 8, "precision": "fp32"}
LATER: dict[str, tuple[str, dict[str, Any]]] = {
    "prune heads": ("prune", {"heads": 0.5, "scored_texts": 8, **QUICK}),
    "prune too few heads": ("prune", {"heads": 0.01, **QUICK}),
    "prune layers": ("prune", {"layers": 1, "scored_texts": 8, **QUICK}),
    "prune all layers": ("prune", {"layers": 4, "scored_texts": 8, **QUICK}),
    "prune tokens": ("prune", {"vocab": "task", **QUICK}),
    **{
        f"quantize {name}": ("quantize", {"scheme": name, **QUICK})
        for name, scheme in SCHEMES.items()
        if scheme.source == "torch"
    },
}
"""Steps that train a model that they start from: in their first step of training, they are
interrupted."""


def refusal(run: Callable[[], object]) -> str | None:
    """Return the message of what refuses, or None where training begins."""
    try:
        with interrupted_at(1):
            run()
    except KeyboardInterrupt:
        return None
    except BertenderError as error:
        return str(error)
    return None


def classifier_of(model_type: str) -> Any:
    shape = BERT_SHAPE if model_type == UNKNOWN else {}
    return tiny_classifier(model_type, pad_token_id=0, **shape)


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES, UNKNOWN])
def test_the_plan_refuses_what_the_step_refuses(
    model_type: str, later: str, task: Task, tmp_path: Path
) -> None:
    name, settings = LATER[later]
    stage = STAGES[name]
    config = stage.config.parse(settings)
    model = classifier_of(model_type)
    source = save_artifact(model, task, tmp_path / "source")
    product = Product("distill", "torch", model=expected_on_disk(source.path))
    planned = refusal(lambda: stage.wants(config, 0).check("source", product))
    real = refusal(lambda: stage.make([source], task, config, tmp_path / "out"))
    assert planned == (real and f"it starts from 'source': {real}")
