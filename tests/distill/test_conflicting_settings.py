"""Conflicts of settings in configs that were built in Python, which nothing has parsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import ConfigError
from bertender.training.config import TrainingConfig
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distiller import distill
from distill.distillation.general import distill_general
from distill.finetuning.config import FinetuneConfig, MultiTaskConfig
from distill.finetuning.finetune import finetune, finetune_tasks
from distill.pretraining.config import PretrainConfig
from distill.pretraining.pretrain import pretrain
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune

TRAINING: dict[Callable[..., Any], tuple[type[TrainingConfig], int]] = {
    finetune: (FinetuneConfig, 3),
    finetune_tasks: (MultiTaskConfig, 3),
    distill: (DistillConfig, 2),
    distill_general: (GeneralConfig, 2),
    pretrain: (PretrainConfig, 1),
    prune: (PruneConfig, 2),
}
"""Every function that trains -> its config, and how many inputs stand before that."""


@pytest.mark.parametrize("function", TRAINING, ids=lambda function: function.__name__)
def test_a_conflict_is_found_before_anything_is_read(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    config, inputs = TRAINING[function]
    unread = [None] * inputs  # to touch one is an AttributeError
    with pytest.raises(ConfigError, match="batches=sorted and pool_batches=3: "):
        function(*unread, config(batches="sorted", pool_batches=3), tmp_path / "out")
    assert not list(tmp_path.iterdir())
