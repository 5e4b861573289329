"""Teachers: fine-tuning an encoder on a task, and a teacher's answers on the training texts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.artifact import CARD_NAME, Artifact, new_artifact
from bertender.core.atomic import replacing
from bertender.core.batching import length_buckets
from bertender.core.cache import cache_directory
from bertender.core.distributed import on_main_process
from bertender.core.examples import TensorBatch, TokenDataset, model_inputs
from bertender.core.predictor import Classifier, TorchPredictor
from bertender.core.progress import track
from bertender.core.text import Tokenize
from bertender.core.training import LossParts, TrainingConfig, TrainingReport, train
from bertender.core.work import work_directory
from bertender.measure.accuracy import evaluate
from bertender.tasks.tagging import TaggingTask
from bertender.tasks.task import Task
from distill.data import token_dataset
from distill.encoders import find_encoder, load_classifier
from distill.losses import hard_labels

__all__ = [
    "FinetuneConfig",
    "dev_score",
    "finetune",
    "finetune_by_name",
    "label_objective",
    "save_tokenizer",
    "teacher_logits",
    "teacher_token_logits",
    "train_on_labels",
    "write_classifier",
]

logger = logging.getLogger(__name__)

TEACHER_TOKENS_PER_BATCH = 8192


class FinetuneConfig(TrainingConfig):
    """How to make a teacher."""

    teacher: str = Field(
        "all-MiniLM-L6-v2",
        description="folder, artifact of `pretrain`, packaged encoder, or hub name to start from",
    )


def finetune_by_name(task: Task, config: FinetuneConfig, out: Path) -> Artifact:
    """Find and load the encoder that `config.teacher` names, then `finetune` it."""
    source = find_encoder(config.teacher)
    torch.manual_seed(config.seed)  # the new head is random
    model, tokenizer = load_classifier(source, task.labels)
    parent = Artifact.load(source) if (Path(source) / CARD_NAME).is_file() else None
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
    """Fine-tune a sequence classifier on a task and write it as a torch artifact.

    Args:
        model: any AutoModelForSequenceClassification, with a head over the task's labels.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        config: see FinetuneConfig; `config.teacher` is only recorded here.
        out: directory of the artifact.
        parent: the pre-trained artifact that the model came from, if it was one.
    """
    examples = token_dataset(task.train, tokenizer, config.max_length)
    score = partial(dev_score, tokenizer=tokenizer, task=task, max_length=config.max_length)
    return train_on_labels(model, tokenizer, task, examples, config, out, score, parent=parent)


def train_on_labels(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | TaggingTask,
    examples: TokenDataset,
    config: FinetuneConfig,
    out: Path,
    score: Callable[[PreTrainedModel], dict[str, float]],
    *,
    parent: Artifact | None = None,
) -> Artifact:
    """Train a model on the labels of a task's tokenised examples; write it as a torch artifact.

    Arguments are those of `finetune`; `score` measures the model after each epoch.
    """
    identity = ("finetune", config.model_dump(mode="json"), task.fingerprint())
    with work_directory(out, *identity, parent.digest if parent else None) as work:
        report = train(
            model,
            examples,
            label_objective,
            config,
            work,
            description=f"fine-tune {out.name}",
            at_epoch_end=score,
        )
        on_main_process(
            lambda: write_classifier(
                out, "finetune", model, tokenizer, task, config, parent, report
            )
        )
    return Artifact.load(out)


def label_objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
    """Cross-entropy with the labels."""
    return {"hard": hard_labels(model(**model_inputs(model, batch)).logits, batch["labels"])}


def write_classifier(
    out: Path,
    stage: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | TaggingTask,
    config: TrainingConfig,
    parent: Artifact | None,
    report: TrainingReport,
    **metrics: Any,
) -> None:
    """Write a trained classifier of texts or words as a torch artifact with its labels' names."""
    model.config.id2label = dict(enumerate(task.labels))
    model.config.label2id = {label: index for index, label in enumerate(task.labels)}
    with new_artifact(
        out,
        kind="torch",
        family=model.config.model_type,
        task=task.record(),
        stage=stage,
        config=config,
        seed=config.seed,
        parent=parent,
    ) as draft:
        model.save_pretrained(draft.directory)
        save_tokenizer(tokenizer, draft.directory)
        draft.metrics.update(
            parameters=model.num_parameters(),
            steps=report.steps,
            losses=report.losses,
            epochs=report.epochs,
            **metrics,
        )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save a tokenizer without the padding and truncation that its last call has left in it.

    A resumed run may have called it otherwise, and would write another file.
    """
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(directory)


def dev_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, max_length: int
) -> dict[str, float]:
    """Return the model's score on the task's held-out examples, by metric name."""
    encode = Tokenize(tokenizer, max_length)
    classifier = Classifier(
        "training", task.labels, encode, TorchPredictor(model), model.num_parameters()
    )
    score, _ = evaluate(classifier, task.dev, task.metric)
    return {task.metric: score.value}


def teacher_logits(
    model: PreTrainedModel, digest: str, examples: TokenDataset, bf16: bool = False
) -> torch.Tensor:
    """Return the teacher's logits (examples, labels), computed once and kept on disk.

    Args:
        model: the teacher.
        digest: the teacher artifact's digest; with the token ids it is the key on disk.
        examples: the training examples, in the teacher's own tokens.
        bf16: compute in bf16, as the run that reads them does.
    """
    return _once(digest, examples, bf16, lambda: _compute_logits(model.eval(), examples, bf16))


def teacher_token_logits(
    model: PreTrainedModel, digest: str, examples: TokenDataset, bf16: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return a tagger's logits (seq, labels) on each example, computed once and kept on disk.

    Arguments are those of `teacher_logits`. The file holds all tokens below one another without
    padding, 4 bytes for each label of each.
    """

    def compute() -> torch.Tensor:
        answers = [torch.empty(0)] * len(examples)
        for bucket, logits in _answers(model.eval(), examples, bf16):
            for row, tokens in zip(bucket, logits, strict=True):
                answers[row] = tokens[: examples.lengths[row]]
        return torch.cat(answers)

    tokens = _once(digest, examples, bf16, compute)
    return torch.split(tokens, list(examples.lengths))


def _once(
    digest: str, examples: TokenDataset, bf16: bool, compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return what is kept of a teacher's answers, or compute and keep them."""
    key = hashlib.sha256(f"{digest} {bf16} {examples.columns['input_ids']}".encode()).hexdigest()
    path = cache_directory() / "teacher-logits" / f"{key}.safetensors"
    if (kept := _kept_logits(path)) is not None:
        return kept
    logits = compute()
    with replacing(path) as temporary:
        save_file({"logits": logits}, temporary)
    return logits


def _kept_logits(path: Path) -> torch.Tensor | None:
    """Read kept logits; None where there are none, or they are damaged and must be made again."""
    if not path.is_file():
        return None
    try:
        return load_file(path)["logits"]
    except (SafetensorError, KeyError) as error:
        logger.warning("%s is damaged and is made again: %s", path, error)
        return None


def _compute_logits(model: PreTrainedModel, examples: TokenDataset, bf16: bool) -> torch.Tensor:
    answers = torch.empty(len(examples), model.config.num_labels)
    for bucket, logits in _answers(model, examples, bf16):
        answers[bucket] = logits
    return answers


def _answers(
    model: PreTrainedModel, examples: TokenDataset, bf16: bool
) -> list[tuple[list[int], torch.Tensor]]:
    """Return batches of examples of like length, and the model's logits on each."""
    answers = []
    buckets = length_buckets(examples.lengths, TEACHER_TOKENS_PER_BATCH)
    device = model.device
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16),
    ):
        for bucket in track(buckets, "teacher's answers", len(buckets)):
            batch = examples.collate([examples[index] for index in bucket])
            inputs = {k: v.to(device) for k, v in model_inputs(model, batch).items()}
            answers.append((bucket, model(**inputs).logits.float().cpu()))
    return answers
