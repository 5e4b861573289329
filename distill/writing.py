"""Writing what was trained as a torch artifact."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.card import CARD_NAME, TaskRecord
from bertender.core.findings import Findings
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from bertender.training.lengths import length_findings
from distill.losses.projections import Tensors, save_projections

__all__ = ["TrainedModel", "artifact_at", "corpus_record"]


def artifact_at(source: str) -> Artifact | None:
    """Return the artifact that an encoder lies in; None where it is a plain folder or a name."""
    return Artifact.load(source) if (Path(source) / CARD_NAME).is_file() else None


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, its tokenizer, and its findings for the card."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: TaskRecord
    """Task that it predicts."""
    findings: Findings
    """Without the number of parameters."""
    max_length: int | None = None
    """Tokens that it reads of a text; None of an encoder, which has no task."""
    projections: Tensors = field(default_factory=dict)
    """Those that the next stage takes up, of an encoder; see `distill.losses.projections`."""
    method: str = ""
    """By which the projections were learned."""

    @classmethod
    def classifier(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        findings: Findings,
    ) -> Self:
        """Return a classifier of texts or words, with the names of its labels.

        Args:
            model: as it was trained.
            tokenizer: truncates texts as it did in training.
            task: has the texts that it was trained and scored on.
            findings: without the number of parameters and the lengths of these texts.
        """
        model.config.id2label = dict(enumerate(task.labels))
        model.config.label2id = {label: index for index, label in enumerate(task.labels)}
        for name, value in task.problem.model_settings.items():
            setattr(model.config, name, value)
        lengths = length_findings(task, tokenizer)
        findings = findings.model_copy(update={"lengths": lengths})
        return cls(model, tokenizer, task.record(), findings, lengths.max_length)

    def write(
        self, *, out: Path, stage: str, config: TrainingConfig, parent: Artifact | None
    ) -> None:
        """Write it as a torch artifact, model and tokenizer by the `save_pretrained` of each.

        Args:
            out: directory of the artifact.
            stage: the stage's name.
            config: the stage's.
            parent: the artifact that it was made from.
        """
        with new_artifact(
            out,
            kind="torch",
            family=self.model.config.model_type,
            task=self.task,
            stage=stage,
            config=config,
            seed=config.seed,
            max_length=self.max_length,
            parent=parent,
        ) as draft:
            _drop_leftovers(self.model.config, self.task)
            self.model.save_pretrained(draft.directory)
            save_projections(self.projections, draft.directory, self.method)
            _save_tokenizer(self.tokenizer, draft.directory)
            parameters = self.model.num_parameters()
            draft.findings = self.findings.model_copy(update={"parameters": parameters})


def corpus_record(
    corpus: str, text_column: str, metric: str, problem_type: str = "masked_language_model"
) -> TaskRecord:
    """Return what an artifact keeps of the corpus that an encoder was trained on."""
    return TaskRecord(
        name=",".join(Path(part.strip()).name for part in corpus.split(",")),
        problem_type=problem_type,
        labels=(),
        text_columns=(text_column,),
        metric=metric,
    )


def _drop_leftovers(config: PretrainedConfig, task: TaskRecord) -> None:
    """Take away what a config says of a task that an encoder was used for before."""
    config.finetuning_task = config.task_specific_params = None
    if not task.labels:
        config.problem_type = None


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save a tokenizer without the padding and truncation that its last call has left in it.

    A resumed run may have called it otherwise, and would write another file.
    """
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(directory)
