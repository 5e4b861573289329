"""The row of a comparison to deploy within limits, and the sentence about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from bertender.comparison.records import Comparison, ComparisonRow
from bertender.comparison.table import MEGABYTE, in_one_sentence, is_noisy, two_digits
from bertender.core.config import Config


class LimitsConfig(Config):
    """Limits of the model to deploy."""

    panel: ClassVar[str] = "Limits"
    main: ClassVar[tuple[str, ...]] = ("max_ms", "max_mb", "min_score")

    max_ms: float | None = Field(
        None, gt=0, description="most milliseconds for one text of natural length, the median"
    )
    max_mb: float | None = Field(None, gt=0, description="most megabytes on disk")
    min_score: float | None = Field(None, gt=0, le=1, description="least score")

    def flags(self) -> str:
        """Return the limits that are set, as command-line flags."""
        set_ = {name: value for name, value in self if value is not None}
        return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in set_.items())


@dataclass(frozen=True)
class Choice:
    """The row to deploy, and why."""

    row: str | None
    """Name of the row; None if no row is within the limits."""
    sentence: str
    reason: str


def choice_of(comparison: Comparison, limits: LimitsConfig) -> Choice:
    """Choose the fastest row within the limits whose score is in the 95 % interval of the best
    score among these.

    Limits are compared with the figures in the table. Rows that failed parity, predict one label
    everywhere, have no score or have two models are left out.
    """
    metric, flags = comparison.circumstances.metric, limits.flags()
    sound = [row for row in comparison.rows if is_sound(row)]
    fitting = [row for row in sound if not broken(row, limits)]
    if not fitting:
        if not sound:
            return Choice(None, "Deploy none of these.", "No row has a score that can be trusted.")
        near = min(sound, key=lambda row: len(broken(row, limits)))
        return Choice(
            None,
            f"No row holds {flags}.",
            f"Nearest is {near.name}, which has {' and '.join(broken(near, limits))}.",
        )
    best = max(fitting, key=lambda row: row.score.value)
    chosen = min(
        (row for row in fitting if row.score.value >= best.score.low),
        key=lambda row: row.latency.single.p50_ms,
    )
    if chosen is comparison.rows[0]:
        ms, mb = _ms(chosen), _mb(chosen)
        noisy = " (timed on a busy machine)" if is_noisy(comparison) else ""
        sentence = (
            f"{chosen.name}: {two_digits(mb)} MB, {two_digits(ms)} ms a text{noisy}, {metric} "
            f"{chosen.score.value:.2f}"
        )
    else:
        sentence = in_one_sentence(comparison, chosen.name)
    held = f"{len(fitting)} of {len(comparison.rows)}"
    within = f"Of the rows that hold {flags} ({held})" if flags else "Of all rows"
    return Choice(
        chosen.name,
        f"Deploy {sentence}.",
        f"{within}, it is the fastest whose score is in the 95 % interval of the best one's "
        f"({best.name}: {best.score.value:.3f} [{best.score.low:.3f}, {best.score.high:.3f}]).",
    )


def is_sound(row: ComparisonRow) -> bool:
    """Return whether a row may be deployed at all; a cascade has two models, and is not served."""
    if row.cascade is not None:
        return False
    failed = row.parity is not None and not row.parity.passed
    return not (failed or row.constant is not None or row.score.undefined is not None)


def broken(row: ComparisonRow, limits: LimitsConfig) -> list[str]:
    """Return the figures of a row that exceed a limit, as text."""
    found = []
    if limits.max_ms is not None and _ms(row) > limits.max_ms:
        found.append(f"{_ms(row):.3g} ms")
    if limits.max_mb is not None and _mb(row) > limits.max_mb:
        found.append(f"{_mb(row):.3g} MB")
    if limits.min_score is not None and row.score.value < limits.min_score:
        found.append(f"{row.score.metric} {row.score.value:.3f}")
    return found


def _ms(row: ComparisonRow) -> float:
    return row.latency.single.p50_ms


def _mb(row: ComparisonRow) -> float:
    return row.size.artifact_size_bytes / MEGABYTE
