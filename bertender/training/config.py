"""Settings shared by all stages that train: how long and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from bertender.core.config import Config, Rule
from bertender.core.errors import ConfigError
from bertender.core.machine import supports_bf16

POOL_BATCHES = 4
"""The fastest size without a loss on new texts (benchmarks/reports/training.md)."""

RULES: Mapping[str, Rule[TrainingConfig]] = {
    "pool_batches": Rule(
        lambda config: config.batches != "pooled",
        "only batches pooled reads it. Give --batches pooled, or leave pool_batches out.",
        frozenset({"pool_batches"}),
        against="batches",
    ),
}
"""Conflicts of the settings shared by all stages that train."""


class TrainingConfig(Config):
    """Settings shared by all stages that train."""

    panel: ClassVar[str] = "Training"
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    judging: ClassVar[frozenset[str]] = frozenset()
    """Settings of checks after training: other values resume the same run."""

    epochs: int = Field(3, ge=1, description="passes over the training examples")
    learning_rate: float = Field(5e-5, gt=0, description="peak learning rate")
    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="lamb is for batches of thousands of rows, at a higher learning rate"
    )
    batch_size: int = Field(32, ge=1, description="most examples of a batch")
    tokens_per_batch: int = Field(8192, ge=1, description="most tokens of a batch, with padding")
    accumulation: int = Field(
        1,
        ge=1,
        description="batches of this size whose gradients are summed for a step: as one batch so "
        "many times as large, in the memory of one",
    )
    batches: Literal["pooled", "sorted", "random"] = Field(
        "pooled",
        description="of examples of like length inside random pools, one after the other; of like "
        "length, which is fastest; or at random",
    )
    pool_batches: int = Field(
        POOL_BATCHES, ge=1, description="batches of a pool, about, where batches is pooled"
    )
    max_length: int | None = Field(
        None,
        ge=8,
        description="longer texts are truncated to so many tokens, here and wherever the model is "
        "used",
    )
    warmup_ratio: float = Field(0.06, ge=0, le=1, description="share of the steps to warm up in")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="the learning rate after the warm-up: falling to 0, or staying"
    )
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="compute in bf16 where CPU or GPU has it (auto), always, or never"
    )
    checkpoint_steps: int = Field(500, ge=1, description="steps between resumable checkpoints")
    no_dropout: bool = Field(
        False, description="drop no values at random, whatever the model's config says"
    )
    seed: int = Field(0, ge=0, description="seed of initialisation, order, dropout and masking")

    def shaping(self) -> dict[str, Any]:
        """Return the settings that affect the trained model."""
        return self.identity(exclude={"checkpoint_steps", *self.judging})


class Keeping(NamedTuple):
    """The epoch of a run to keep."""

    best: bool = False
    """Keep the first epoch with the best score, not the last; of several scores, the best mean."""
    patience: int | None = None
    """End after this many epochs in a row without a better score."""


LAST_EPOCH = Keeping()


class TaskTrainingConfig(TrainingConfig):
    """Settings of stages that learn the labels of a task, and score each epoch."""

    panel: ClassVar[str] = "Training"
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "patience": Rule(
            lambda config: config.keep == "last",
            "the run would end with epochs that score no more, and keep=last keeps the last of "
            "them. Leave one of them out.",
            frozenset({"patience"}),
            against="keep",
        )
    }
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "keep": "best where there are validation texts, else last"
    }

    keep: Literal["best", "last"] | None = Field(
        None, description="which epoch to keep: the one with the best score, or the last"
    )
    patience: int | None = Field(
        None, ge=1, description="end after so many epochs in a row that score no more than before"
    )

    class_weights: Literal["balanced"] | None = Field(
        None,
        description="weigh labels in the loss by how rare they are: balanced gives all of them the "
        "same sum; of sets, a label that is there as much as one that is not",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the true label that the loss spreads over all labels; of sets, over "
        "there and not there",
    )

    @property
    def changes_labels(self) -> tuple[str, ...]:
        """Settings that change the loss with the labels."""
        names = ("class_weights", "label_smoothing")
        return tuple(name for name in names if getattr(self, name))

    def keeping(self, validated: bool) -> Keeping:
        """Return the epoch to keep.

        Args:
            validated: there are validation texts; without them the held-out texts would choose.

        Raises:
            ConfigError: `patience` is set without validation texts, so the last epoch is kept.
        """
        best = self.keep == "best" or (self.keep is None and validated)
        if self.patience is not None and not best:
            raise ConfigError(
                f"patience={self.patience}: there are no validation texts (--select), so "
                "the last epoch is kept. Set a share apart, or add --keep best: then the held-out "
                "texts both choose and score."
            )
        return Keeping(best, self.patience)


class JudgedConfig(Config):
    """Whether a stage may write a model that has learned nothing but one label."""

    panel: ClassVar[str] = "Training"

    allow_constant: bool = Field(
        False,
        description="write a model that predicts one label everywhere too, and learn from such a "
        "teacher",
    )


def computes_in_bf16(config: TrainingConfig) -> bool:
    """Return whether a run computes in bf16; with "auto", if CPU or GPU supports it."""
    return {"auto": supports_bf16(), "bf16": True, "fp32": False}[config.precision]
