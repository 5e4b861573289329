"""Settings of `baseline` and `finetune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from bertender.core.config import Rule, parts_of
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.named import TASKS
from bertender.tasks.task import Task
from bertender.training.config import JudgedConfig, TaskTrainingConfig

RATE_OF_HEAD = 1e-3
"""Learning rate of a new head on a frozen encoder, which cannot forget anything."""


class BagOfWordsConfig(JudgedConfig):
    """Settings of `baseline`."""

    panel: ClassVar[str] = "Training"

    longest_ngram: int = Field(2, ge=1, description="count runs of up to so many words")
    inverse_regularisation: float = Field(
        10.0,
        gt=0,
        description="C of the logistic regression, 1 over alpha of the ridge regression of numbers",
    )
    seed: int = Field(0, ge=0, description="seed of the solver")


Pooling = Literal["mean", "max"]


class FinetuneConfig(JudgedConfig, TaskTrainingConfig):
    """Settings of fine-tuning."""

    panel: ClassVar[str] = "Training"
    main: ClassVar[tuple[str, ...]] = (
        "teacher",
        "epochs",
        "learning_rate",
        "batch_size",
        "max_length",
    )
    judging: ClassVar[frozenset[str]] = frozenset({"allow_constant"})
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "adversarial": Rule(
            lambda config: config.adversarial is None,
            "only adversarial training reads it. Give --adversarial freelb, or leave it out.",
            frozenset({"adversarial_steps", "adversarial_radius"}),
        )
    }
    shown_defaults: ClassVar[Mapping[str, str]] = {
        **TaskTrainingConfig.shown_defaults,
        "max_length": "what 99 % of the training texts have, 128 or more, within the model's "
        "positions",
    }

    teacher: str = Field(
        "all-MiniLM-L6-v2",
        description="folder, artifact of `pretrain`, packaged encoder, or hub name to start from",
    )
    windows: Pooling | None = Field(
        None,
        description="read texts that are longer than max_length in windows that overlap, and join "
        "their logits by this, instead of cutting them",
    )
    freeze: Literal["encoder", "gradual"] | None = Field(
        None,
        description="encoder: train the head alone, on what the encoder gives as it is; the "
        "learning rate is 1e-3 then, where none is set. gradual: one more layer from the top in "
        "each equal share of the steps (ULMFiT)",
    )
    adversarial: Literal["freelb"] | None = Field(
        None,
        description="learn under perturbations of the word embeddings (FreeLB); training takes "
        "adversarial_steps times as long",
    )
    adversarial_steps: int = Field(
        3, ge=2, description="perturbations of a batch, each from the gradient of the one before"
    )
    adversarial_radius: float = Field(
        0.3, gt=0, description="greatest norm of a perturbation, over all tokens of a text"
    )

    def paced(self) -> Self:
        """Return the settings, with the default learning rate of a head trained alone."""
        if self.freeze != "encoder" or self.is_explicit("learning_rate"):
            return self
        return self.changed({"learning_rate": RATE_OF_HEAD})


def _known_and_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in TASKS:
            raise UnknownNameError("task", name, TASKS, setting="more_tasks")
    check_distinct(names)
    return names


def check_distinct(names: Sequence[str]) -> None:
    """Raise ConfigError where a task is named more than once."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"more_tasks: task {name!r} is there twice among {', '.join(names)}, and each has "
                "one head and one artifact. Name it once, the main task not again."
            )


class MultiTaskConfig(FinetuneConfig):
    """Settings of `finetune`, which may train on several tasks in one run."""

    panel: ClassVar[str] = "Training"
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "windows of several tasks": Rule(
            lambda config: bool(config.more_tasks),
            "the texts of several tasks are cut. Leave it out, or fine-tune on each alone.",
            frozenset({"windows"}),
            beyond_default=True,
        )
    }

    more_tasks: Annotated[
        tuple[str, ...], BeforeValidator(parts_of), AfterValidator(_known_and_distinct)
    ] = Field(
        (),
        description="train on these tasks too, by commas (names from `bertender tasks`), one "
        "encoder for all; each is written next to --out, as OUT-TASK",
    )


def check_task(task: Task, config: FinetuneConfig) -> None:
    """Raise ConfigError for settings that do not fit this kind of task."""
    if config.windows and not (task.problem.takes_windows and len(task.text_columns) == 1):
        raise ConfigError(
            f"windows={config.windows}: for examples of one text each, and task {task.name!r} is "
            f"one of {task.problem_type!r} with {', '.join(task.text_columns)}. Leave it out."
        )
    if config.freeze and task.problem.gives_vectors:
        raise ConfigError(
            f"freeze={config.freeze}: the vectors of task {task.name!r} are the encoder's own, "
            "with no head that could learn. Leave it out."
        )


def check_word_labels(task: Task, config: MultiTaskConfig) -> None:
    """Raise ConfigError unless all of several tasks have one label per text."""
    for name in config.more_tasks:
        if (other := TASKS[name].problem_type) != SINGLE_LABEL.name:
            raise ConfigError(
                f"more_tasks={name}: a task of {other!r}, and these have one label a text. "
                "Fine-tune on it alone."
            )
    if config.more_tasks and task.problem is not SINGLE_LABEL:
        raise ConfigError(
            f"more_tasks={', '.join(config.more_tasks)}: these have one label a text, "
            f"and task {task.name!r} is one of {task.problem_type!r}. Fine-tune on each alone."
        )


def sibling_paths(config: MultiTaskConfig, out: Path) -> tuple[Path, ...]:
    """Return where the artifacts of `more_tasks` are written: next to the main one."""
    out = out.resolve()  # "." has no name
    return tuple(out.with_name(f"{out.name}-{name}") for name in config.more_tasks)
