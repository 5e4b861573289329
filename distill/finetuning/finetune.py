"""Teachers: fine-tuning an encoder on a task."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, check_writable
from bertender.core.findings import Findings
from bertender.measure.constant import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.problems import SINGLE_LABEL
from bertender.tasks.task import Task
from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.findings import training_findings
from bertender.training.heads import HEADS, Head
from bertender.training.lengths import cut_at, usual_length
from bertender.training.loop import train
from bertender.training.objective import LossParts
from bertender.training.trained import Writer, trained_artifact
from bertender.training.weights import weights_digest
from distill.data import token_dataset
from distill.finetuning.config import FinetuneConfig
from distill.scoring import epoch_score, final_score
from distill.teachers.encoders import find_encoder, load_classifier
from distill.writing import TrainedModel, artifact_at

__all__ = [
    "FinetuneConfig",
    "advice",
    "finetune",
    "finetune_by_name",
    "label_objective",
]


def finetune_by_name(task: Task, config: FinetuneConfig, out: Path) -> Artifact:
    """Find and load the encoder that `config.teacher` names, then `finetune` it."""
    source = find_encoder(config.teacher)
    parent = artifact_at(source)
    check_writable(out, parent)
    torch.manual_seed(config.seed)  # the new head is random
    model, tokenizer = load_classifier(source, task.labels, task.problem)
    return finetune(model, tokenizer, task, config, out, parent=parent)


def finetune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: FinetuneConfig,
    out: Path,
    *,
    parent: Artifact | None = None,
) -> Artifact:
    """Fine-tune a classifier of texts or words on a task and write it as a torch artifact.

    Args:
        model: any that the task's row of HEADS loads, with a head over the task's labels.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        config: see FinetuneConfig; `config.teacher` is only recorded here.
        out: directory of the artifact.
        parent: the pre-trained artifact that the model came from, if it was one.

    Raises:
        ConfigError: settings that conflict, or more tokens than the model has positions for;
            found before anything is trained.
        ConstantError: it has learned nothing but one label. Its checkpoints stay.
    """
    config.check_rules()
    max_length = config.max_length or usual_length([task], tokenizer)
    tokenizer = cut_at(tokenizer, max_length, model.config)
    examples = token_dataset(task.train, tokenizer, task.problem_type)
    identity = (task.fingerprint(), weights_digest(model), parent and parent.digest)
    settings: dict[str, Any] = {"tokenizer": tokenizer, "task": task}

    def trained(work: Path) -> Writer:
        report = train(
            model,
            examples,
            partial(label_objective, head=HEADS[task.problem_type]),
            config,
            work,
            description=f"fine-tune {out.name}",
            at_epoch_end=partial(epoch_score, config=config, **settings),
        )
        scores = final_score(model, **settings)
        check_varied(scores, task, config, SETTINGS_OF_RUN, advice(config))
        findings = Findings(training=training_findings({"labels": report}), scores=scores)
        return TrainedModel.classifier(model, tokenizer, task, findings).write

    return trained_artifact(out, "finetune", config, trained, identity=identity, parent=parent)


def advice(config: FinetuneConfig) -> str:
    """Return what to try where a model has learned nothing."""
    return f"{another_rate(config)}, more epochs, or another seed"


def label_objective(
    model: torch.nn.Module, batch: TensorBatch, step: int, *, head: Head = HEADS[SINGLE_LABEL.name]
) -> LossParts:
    """Cross-entropy with the labels."""
    return {"hard": head.hard_loss(head.logits(model(**model_inputs(model, batch))), batch)}
