"""Record of a training run: its losses, its scores, and which epoch is the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertender.core.findings import EarlierPhase, TrainingFindings
from bertender.training.config import Keeping

logger = logging.getLogger(__name__)


@dataclass
class TrainingReport:
    """Record of a run: the loss as it fell, and the scores at the end of each epoch.

    Samples and seconds are those since the run began or was resumed, scoring left out; two runs
    that differ in them alone are equal.
    """

    steps: int
    losses: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    samples: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    kept_epoch: int | None = None
    """From 1, the epoch whose weights are kept; None where that is the last, however it scores."""

    @property
    def kept(self) -> dict[str, float]:
        """The scores of the epoch that is kept."""
        return self.epochs[(self.kept_epoch or len(self.epochs)) - 1]


def training_findings(reports: Mapping[str, TrainingReport], **more: Any) -> TrainingFindings:
    """Return the findings of a run for its artifact's card.

    Args:
        reports: of each phase by its name, in turn.
        more: other fields of TrainingFindings.
    """
    *earlier, last = reports.values()
    phases = [
        EarlierPhase(name=name, steps=report.steps, losses=report.losses, epochs=report.epochs)
        for name, report in zip(reports, earlier, strict=False)
    ]
    return TrainingFindings(
        steps=last.steps,
        losses=last.losses,
        epochs=last.epochs,
        kept_epoch=last.kept_epoch,
        earlier_phases=phases,
        **more,
    )


def warn_of_idle_losses(report: TrainingReport, description: str, unread: Sequence[str]) -> None:
    """Log a warning of a loss that never moved, or a part that was 0 throughout.

    A divergence from a teacher is 0 where there is nothing to learn from it.
    """
    first, *later = report.losses or [{}]
    if later and all(losses == first for losses in later):
        logger.warning(
            "%s: the loss was %s from the first step to the last: nothing was learned. Try a "
            "higher learning_rate",
            description,
            first,
        )
        return
    for name in first:
        if later and name not in unread and not any(each.get(name, 1.0) for each in report.losses):
            logger.warning(
                "%s: the loss %r was 0 from the first step to the last: nothing was learned from "
                "it",
                description,
                name,
            )


def scores_in(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the scores of each epoch in a log of the Trainer."""
    return [entry["scores"] for entry in history if "scores" in entry]


def best_epoch(epochs: Sequence[Mapping[str, float]]) -> int:
    """Return the epoch, from 1, with the best mean of its scores; the first of equals."""
    means = [math.fsum(scores.values()) / len(scores) for scores in epochs]
    return 1 + means.index(max(means))


def has_ended(epochs: Sequence[Mapping[str, float]], keeping: Keeping) -> bool:
    """Return whether the last epochs were too many that scored no more than the one before."""
    if keeping.patience is None or not epochs:
        return False
    return len(epochs) - best_epoch(epochs) >= keeping.patience
