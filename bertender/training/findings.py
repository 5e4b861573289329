"""Findings of a training run, for an artifact's card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertender.core.findings import EarlierPhase, TrainingFindings
from bertender.training.objective import TrainingReport

__all__ = ["training_findings"]


def training_findings(reports: Mapping[str, TrainingReport], **more: Any) -> TrainingFindings:
    """Return the findings of a run.

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
        earlier_phases=phases,
        **more,
    )
