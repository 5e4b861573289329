"""Writing what was trained as a torch artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.card import TaskRecord
from bertender.training.config import TrainingConfig

__all__ = ["write_model"]


def write_model(
    out: Path,
    stage: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: TaskRecord,
    config: TrainingConfig,
    parent: Artifact | None,
    **metrics: Any,
) -> None:
    """Write a model and its tokenizer, each by the `save_pretrained` of its class.

    Args:
        out: directory of the artifact.
        stage: the stage's name.
        model: what was trained.
        tokenizer: what it reads.
        task: what it answers.
        config: the stage's.
        parent: the artifact that it was made from.
        metrics: for the artifact's card, beside the number of parameters.
    """
    with new_artifact(
        out,
        kind="torch",
        family=model.config.model_type,
        task=task,
        stage=stage,
        config=config,
        seed=config.seed,
        parent=parent,
    ) as draft:
        model.save_pretrained(draft.directory)
        _save_tokenizer(tokenizer, draft.directory)
        draft.metrics.update(parameters=model.num_parameters(), **metrics)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save a tokenizer without the padding and truncation that its last call has left in it.

    A resumed run may have called it otherwise, and would write another file.
    """
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(directory)
