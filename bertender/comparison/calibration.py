"""Calibration of an artifact's probabilities, and their reliability on held-out texts.

Temperature scaling is that of Guo et al. (arXiv:1706.04599, section 4.2). It is fitted on the
validation texts and evaluated on the held-out ones. The artifact is copied; only its card changes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from bertender.core.artifact import Artifact, copy_artifact
from bertender.core.card import Calibration
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.core.findings import CalibrationFindings, Reliability
from bertender.metrics.calibration import (
    FEWEST_OF_LABEL,
    TEMPERATURES,
    Judged,
    fit_line,
    fit_points,
    fit_temperature,
    has_enough,
    reliability_changes,
)
from bertender.metrics.metric import FloatArray, IntArray
from bertender.problems.problem import Outputs, Problem
from bertender.tasks.task import Split, Task, with_labels_of

logger = logging.getLogger(__name__)

ENOUGH_FOR_POINTS = 1000
"""Fewest texts for an isotonic curve; Niculescu-Mizil and Caruana (2005) found it worse than a line
with fewer than about this many."""
AT_A_BOUND = 1.01
MEASURES = {"ece": "ECE", "brier": "Brier score", "nll": "negative log-likelihood"}


class CalibrateConfig(Config):
    """Settings of `calibrate`."""

    panel: ClassVar[str] = "Calibration"

    method: Literal["auto", "temperature", "platt", "isotonic"] = Field(
        "auto",
        description="temperature for labels and tags; for sets, by default platt, and isotonic "
        f"from {ENOUGH_FOR_POINTS} texts on",
    )
    seed: int = Field(0, ge=0, description="seed of the intervals' resamples")


class Rows:
    """Logits of some texts, row by row, and the true labels.

    Args:
        problem: kind of problem.
        outputs: model outputs for each text.
        split: split with these texts.
        labels: labels of the model.
    """

    def __init__(
        self, problem: Problem[Any], outputs: Sequence[Outputs], split: Split, labels: Sequence[str]
    ) -> None:
        self.problem = problem
        self.labels = labels
        self.count = len(outputs)
        truths, known, texts, logits = [], [], [], []
        for text, (own, target) in enumerate(zip(outputs, split.label_ids, strict=True)):
            truth, labelled = problem.truth_of(own, target, own.logits.shape[1])
            truths.append(truth)
            known.append(labelled)
            texts.append(np.full(len(truth), text))
            logits.append(own.logits)
        is_labelled = np.concatenate(known)
        self.truth = np.concatenate(truths)[is_labelled]  # (rows, labels)
        self.texts: IntArray = np.concatenate(texts)[is_labelled]  # (rows,)
        self.logits: FloatArray = np.concatenate(logits)[is_labelled].astype(np.float64)

    def judged(self, calibration: Calibration | None) -> Judged:
        """Return the calibrated probabilities, and the truth."""
        problem = self.problem.with_calibration(calibration)
        return Judged(
            problem.probabilities(self.logits, self.labels),
            self.truth,
            self.texts,
            one_of_labels=problem.one_of_labels,
        )


def reliability_of(
    problem: Problem[Any], outputs: Sequence[Outputs], split: Split, labels: Sequence[str]
) -> Reliability | None:
    """Return the reliability of a model's probabilities on a split; None for kinds of problems
    without probabilities."""
    if not problem.calibrated_by:
        return None
    return Rows(problem, outputs, split, labels).judged(problem.calibration).reliability()


def calibrate(artifact: Artifact, task: Task, config: CalibrateConfig, out: Path) -> Artifact:
    """Fit a calibration on the validation texts, and write a copy of the artifact with it.

    An existing calibration is replaced.

    Raises:
        ConfigError: the kind of problem has no probabilities or not this method; or the task has
            other labels than the model, or no validation texts.
    """
    from bertender.comparison.accuracy import predict_outputs
    from bertender.models.classifier import open_classifier

    plain = artifact.uncalibrated
    task = with_labels_of(task, plain)
    method = _method(task, config)
    if not len(task.selection):
        raise ConfigError(
            f"task {task.name!r} has no validation texts to calibrate {artifact.place} on "
            "(select=0, or too few texts), and a model is too sure of its training texts. Give "
            "labelled texts that it has not seen, --train FILE (with --dev FILE to judge by), or "
            "train it again with more texts or a larger --select."
        )
    classifier = open_classifier(plain)
    splits = task.selection.labelled, task.dev.labelled
    fitted_on, held_out = (
        Rows(
            classifier.problem,
            predict_outputs(classifier, split.examples),
            split,
            classifier.labels,
        )
        for split in splits
    )
    # the copy has the task's labels on its card
    calibration = fitted(fitted_on, method, Artifact(plain.path, plain.card).digest)
    before, after = held_out.judged(None), held_out.judged(calibration)
    findings = CalibrationFindings(
        method=method,
        source=dict(task.source),
        chosen_on=fitted_on.count,
        texts=held_out.count,
        before=before.reliability(),
        after=after.reliability(),
        changes=reliability_changes(before, after, held_out.count, config.seed),
    )
    if worse := findings.worse:
        named = ", ".join(MEASURES[name] for name in worse)
        logger.warning(
            "%s: calibrated, its probabilities are less reliable on the held-out texts (%s), "
            "beyond noise. Keep the artifact without it, or calibrate on more texts like those",
            *(artifact.place, named),
        )
    record = plain.card.task.model_copy(update={"calibration": calibration})
    card = plain.card.model_copy(
        update={
            "task": record,
            "findings": plain.card.findings.model_copy(update={"calibration": findings}),
        }
    )
    return copy_artifact(Artifact(artifact.path, card), out)


def warn_of_training(source: Artifact, out: Path) -> None:
    """Log a warning that a trained model loses the calibration of the one that it was made from."""
    if source.card.task.calibration is not None:
        logger.warning(
            "%s: the training has changed its probabilities, so that the calibration of %s is left "
            "out. Fit one again by `bertender calibrate`",
            *(out, source.place),
        )


def _method(task: Task, config: CalibrateConfig) -> str:
    problem = task.problem
    if not problem.calibrated_by:
        of_heads = " Give the artifact of one head." if problem.heads else ""
        raise ConfigError(
            f"{task.name!r} is of {problem.name!r}, which has no probabilities to calibrate. "
            f"Labels, sets of labels, tags and choices have some.{of_heads}"
        )
    if config.method == "auto":
        usual, *others = problem.calibrated_by
        return others[0] if others and len(task.selection) >= ENOUGH_FOR_POINTS else usual
    if config.method not in problem.calibrated_by:
        raise ConfigError(
            f"method={config.method}: {problem.name!r} is calibrated by "
            f"{' or '.join(problem.calibrated_by)}. Leave --method out."
        )
    return config.method


def fitted(rows: Rows, method: str, fitted_for: str) -> Calibration:
    """Return the calibration for some rows by a method.

    Args:
        rows: rows of texts that the model has not seen.
        method: value of `Calibration.method`.
        fitted_for: digest of the artifact.

    Raises:
        ConfigError: no prediction is wrong.
    """
    made = Calibration.model_validate(
        {"method": method, "fitted_for": fitted_for, "texts": rows.count}
    )
    if method == "temperature":
        if rows.truth[np.arange(len(rows.truth)), rows.logits.argmax(axis=1)].all():
            raise ConfigError(
                f"the model predicts all {rows.count} validation texts right, so that no "
                "temperature follows from them. Give more of them (--max-select), or --train FILE "
                "with harder ones."
            )
        temperature = fit_temperature(rows.logits, rows.truth)
        least, most = TEMPERATURES
        if not least * AT_A_BOUND < temperature < most / AT_A_BOUND:
            logger.warning(
                "the temperature is %.3g, at the end of those that are tried (%g to %g): the "
                "validation texts are too few, or too easy, or the model has learned nothing",
                *(temperature, least, most),
            )
        return made.model_copy(update={"temperature": temperature})
    columns = {
        label: (logits, truth)
        for label, logits, truth in zip(rows.labels, rows.logits.T, rows.truth.T, strict=True)
        if has_enough(truth)
    }
    if left := [label for label in rows.labels if label not in columns]:
        logger.warning(
            "%d of %d labels have fewer than %d texts with or without them, and keep their "
            "probabilities: %s",
            *(len(left), len(rows.labels), FEWEST_OF_LABEL, ", ".join(left[:20])),
        )
    if method == "platt":
        return made.model_copy(update={"lines": {k: fit_line(*v) for k, v in columns.items()}})
    return made.model_copy(update={"points": {k: fit_points(*v) for k, v in columns.items()}})
