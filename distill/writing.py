"""Writing what was trained as a torch artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.card import CARD_NAME, TaskRecord
from bertender.core.findings import Findings
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from bertender.training.findings import training_findings
from bertender.training.loop import TrainingReport

__all__ = ["artifact_at", "write_classifier", "write_encoder", "write_model"]


def artifact_at(source: str) -> Artifact | None:
    """Return the artifact that an encoder lies in; None where it is a plain folder or a name."""
    return Artifact.load(source) if (Path(source) / CARD_NAME).is_file() else None


def write_classifier(
    out: Path,
    stage: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: TrainingConfig,
    parent: Artifact | None,
    findings: Findings,
) -> None:
    """Write a trained classifier of texts or words as a torch artifact with its labels' names."""
    model.config.id2label = dict(enumerate(task.labels))
    model.config.label2id = {label: index for index, label in enumerate(task.labels)}
    write_model(out, stage, model, tokenizer, task.record(), config, parent, findings)


def write_encoder(
    out: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: Any,
    reports: Mapping[str, TrainingReport],
    *,
    stage: str,
    metric: str,
    parent: Artifact | None = None,
    problem_type: str = "masked_language_model",
) -> None:
    """Write an encoder that was trained on a corpus, by one report a phase, as a torch artifact."""
    task = TaskRecord(
        name=",".join(Path(part.strip()).name for part in config.corpus.split(",")),
        problem_type=problem_type,
        labels=(),
        text_columns=(config.text_column,),
        metric=metric,
    )
    findings = Findings(training=training_findings(reports))
    write_model(out, stage, model, tokenizer, task, config, parent, findings)


def write_model(
    out: Path,
    stage: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: TaskRecord,
    config: TrainingConfig,
    parent: Artifact | None,
    findings: Findings,
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
        findings: for the artifact's card, without the number of parameters.
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
        draft.findings = findings.model_copy(update={"parameters": model.num_parameters()})


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save a tokenizer without the padding and truncation that its last call has left in it.

    A resumed run may have called it otherwise, and would write another file.
    """
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(directory)
