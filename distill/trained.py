"""Artifacts of trained models, shared by all stages that train."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.card import CARD_NAME, Calibration, TaskRecord
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.tasks.task import Task
from bertender.text.tokenizer import save_tokenizer
from bertender.training.config import TrainingConfig
from bertender.training.examples import length_findings

logger = logging.getLogger(__name__)


def artifact_at(source: str) -> Artifact | None:
    """Return the artifact of an encoder; None for a plain folder or a hub name."""
    return Artifact.load(source) if (Path(source) / CARD_NAME).is_file() else None


def write_trained(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | TaskRecord,
    findings: Findings,
    *,
    out: Path,
    stage: str,
    config: TrainingConfig,
    parent: Artifact | None,
    projections: Tensors | None = None,
    method: str = "",
    calibration: Calibration | None = None,
) -> None:
    """Write a torch artifact, with `save_pretrained` of model and tokenizer.

    Args:
        model: trained model.
        tokenizer: tokenizer with the truncation of the training.
        task: a classifier's task, which gives the label names and text lengths; an encoder's record
            of its corpus.
        findings: findings without parameters and text lengths, which are added.
        out: directory of the artifact.
        stage: name of the stage.
        config: settings of the stage.
        parent: artifact that the model was made from.
        projections: an encoder's projections, for the next stage.
        method: method that learned the projections.
        calibration: the parent's calibration, where the model was not trained.
    """
    max_length = None
    if isinstance(task, Task):
        outputs = task.problem.output_names(task.labels)
        model.config.id2label = dict(enumerate(outputs))
        model.config.label2id = {name: index for index, name in enumerate(outputs)}
        for name, value in task.problem.model_settings.items():
            setattr(model.config, name, value)
        lengths = length_findings(task, tokenizer)
        findings = findings.model_copy(update={"lengths": lengths})
        max_length = lengths.max_length
        task = task.record().model_copy(update={"calibration": calibration})
        if findings.scores is not None:
            task = task.model_copy(update={"fitted": findings.scores.fitted or {}})
    with new_artifact(
        out,
        kind="torch",
        family=model.config.model_type,
        task=task,
        stage=stage,
        config=config,
        seed=config.seed,
        max_length=max_length,
        parent=parent,
    ) as draft:
        # settings of a task that the encoder was used for before
        model.config.finetuning_task = model.config.task_specific_params = None
        if not task.labels:
            model.config.problem_type = None
        model.save_pretrained(draft.directory)
        save_projections(projections or {}, draft.directory, method)
        # a tokenizer keeps padding and truncation of its last call, which differs in a resumed run
        if isinstance(tokenizer, PreTrainedTokenizerFast):
            tokenizer.backend_tokenizer.no_padding()
            tokenizer.backend_tokenizer.no_truncation()
        save_tokenizer(tokenizer, draft.directory)
        draft.findings = findings.model_copy(update={"parameters": model.num_parameters()})


def corpus_record(
    corpus: str, text_column: str, metric: str, problem_type: str = "masked_language_model"
) -> TaskRecord:
    """Return the artifact's record of an encoder's training corpus."""
    return TaskRecord(
        name=",".join(Path(part.strip()).name for part in corpus.split(",")),
        problem_type=problem_type,
        labels=(),
        text_columns=(text_column,),
        metric=metric,
    )


# Projections of a student's states to its teacher's width are learned with the student. A general
# stage saves them next to its weights, and a distillation by the same method that starts from there
# continues with them, like TinyBERT's published code. Projections of another method were learned
# for other terms.

PROJECTIONS_NAME = "projections.safetensors"
METHOD = "method"
"""Key of the method in the file's metadata."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""Projections by their name in `TrainingModule.projections`."""


def save_projections(projections: Tensors, directory: Path, method: str) -> None:
    """Write projections, if any, and their method into an artifact's directory."""
    if projections:
        tensors = {name: each.detach().cpu().contiguous() for name, each in projections.items()}
        save_file(tensors, directory / PROJECTIONS_NAME, {METHOD: method})


def load_projections(source: str, method: str) -> Tensors:
    """Return the projections in a folder; none for a hub model or another method.

    Raises:
        ModelError: the file is damaged.
    """
    file = Path(source) / PROJECTIONS_NAME
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            theirs = (opened.metadata() or {}).get(METHOD)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read {file}: {error}. Restore the file; or delete it, and the projections "
            "start at random."
        ) from None
    if theirs != method:
        logger.info(
            "the projections of %s start at random: its own were learned by method %s, not by %s",
            source,
            theirs or "unknown",
            method,
        )
        return {}
    logger.info("the projections of %s go on from those that it was distilled with", source)
    return tensors
