"""Findings of a training run: its losses, and the scores after each epoch."""

from __future__ import annotations

from pydantic import Field

from bertender.core.findings.part import Part

__all__ = ["EarlierPhase", "OtherTask", "TrainingFindings"]

Losses = tuple[dict[str, float], ...]
"""The weighted parts of the loss, as it fell."""
Epochs = tuple[dict[str, float], ...]
"""Scores by metric name, after each epoch."""


class EarlierPhase(Part):
    """A phase of a run before its last one."""

    name: str | None = Field(None, description="of an encoder in earlier cards not recorded")
    steps: int | None = Field(None, description="of earlier cards not recorded")
    losses: Losses
    epochs: Epochs = ()


class OtherTask(Part):
    """Another task that was learned in the same run."""

    artifact: str = Field(description="name of its directory, next to this one")
    epochs: Epochs


class TrainingFindings(Part):
    """A run of training. Steps, losses and epochs are those of its last phase."""

    steps: int | None = Field(None, description="of earlier cards not always known")
    losses: Losses
    epochs: Epochs
    earlier_phases: tuple[EarlierPhase, ...] = ()
    unlabelled_texts: int | None = Field(None, description="that were added to the task's own")
    unlabelled_left_out: dict[str, int] | None = Field(
        None, description="texts that were not added, by the filter that left them out"
    )
    augmented_texts: int | None = Field(None, description="that were made of them")
    together: dict[str, OtherTask] = Field({}, description="by the name of the other task")
