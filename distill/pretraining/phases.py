"""Training on rows of one length, or on short ones first and long ones at the end.

BERT trains on rows of 128 tokens for nine tenths of the steps and on 512 for the rest, to learn
the later positions (Devlin et al. 2018, arXiv 1810.04805, appendix A.2). The steps of the run are
those that the passes of the config take over short rows.
Departure: each phase has an optimizer and a schedule of its own, and batches that hold as many
tokens, not as many rows, where `tokens_per_batch` is what bounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bertender.core.work import in_order
from bertender.training.examples import TokenDataset
from bertender.training.loop import planned, train
from bertender.training.objective import Objective, TrainingReport
from distill.corpora.held_out import held_out_loss
from distill.objectives.pretraining_module import PretrainingModule
from distill.pretraining.config import PretrainConfig

__all__ = ["Pretraining", "Rows"]


@dataclass(frozen=True)
class Rows:
    """Rows of one length."""

    training: TokenDataset
    held_out: TokenDataset


@dataclass(frozen=True)
class Pretraining:
    """The model to pre-train, its rows, and how it is measured."""

    module: PretrainingModule
    """It is trained in place."""
    objective: Objective
    rows_of_length: Callable[[int], Rows]
    """most tokens of a row -> rows"""
    perplexity_of: str | None
    """The part of the held-out loss to give the perplexity of."""

    def run(
        self, config: PretrainConfig, work: Path, description: str
    ) -> dict[str, TrainingReport]:
        """Train through the phases of a config in turn; return a report of each.

        An interrupted run continues in the phase it was in: the end of an earlier one is saved as a
        checkpoint too.

        Args:
            config: how long and fast, and at which lengths.
            work: directory of the checkpoints.
            description: text of the progress bar.
        """
        reports: dict[str, TrainingReport] = {}
        for phase, folder, is_last in in_order(config.phases(), work):
            rows = self.rows_of_length(phase.max_length)
            if not reports:
                whole = len(planned(rows.training, config))
            left = whole - sum(report.steps for report in reports.values())
            steps = max(1, left if is_last else round(phase.share * whole))
            reports[phase.name] = train(
                self.module,
                rows.training,
                self.objective,
                _long_enough(config, rows.training, steps),
                folder,
                description=description if is_last else f"{description}: {phase.name}",
                at_epoch_end=partial(
                    held_out_loss,
                    objective=self.objective,
                    examples=rows.held_out,
                    perplexity_of=self.perplexity_of,
                ),
                steps=steps,
            )
        return reports


def _long_enough(config: PretrainConfig, examples: TokenDataset, steps: int) -> PretrainConfig:
    """Return the config with the number of epochs that some steps take."""
    epoch = len(planned(examples, config.model_copy(update={"epochs": 1})))
    epochs = max(config.epochs, math.ceil(steps / epoch) + 1)  # one may be a batch shorter
    return config.model_copy(update={"epochs": epochs})
