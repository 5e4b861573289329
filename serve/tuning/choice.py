"""The choice of a setting, and whether fresh rounds confirm it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pydantic import Field

from bertender.core.config import Record
from bertender.core.speedup import Speedup
from serve.tuning.config import TuneConfig
from serve.tuning.objectives import OBJECTIVES
from serve.tuning.rounds import ratio_over_rounds
from serve.tuning.settings import DEFAULT_SETTING
from serve.tuning.visits import Visit

__all__ = ["Choice", "Failures", "Scores", "Tried", "choose", "confirmed", "scores_of", "tried"]

Scores = Mapping[str, Sequence[float]]
"""Name of a setting -> its score in each round."""

Failures = Mapping[str, str]
"""Name of a setting that could not be served -> why."""


class Tried(Record):
    """A setting, over all rounds."""

    name: str
    texts_per_second: float | None = Field(
        description="by the objective, the geometric mean over rounds; None where the p99 does not "
        "hold in some round, or where it could not be served"
    )
    against_default: Speedup | None = Field(
        description="over the default's in the same round; None of the default itself, and where "
        "one of the two has none"
    )
    failure: str | None = Field(None, description="why it could not be served")


class Choice(Record):
    """A row of SETTINGS, and a sentence that says why."""

    setting: str
    reason: str


def scores_of(visits: Sequence[Visit], names: Sequence[str], config: TuneConfig) -> Scores:
    """Return the scores of settings, in the order of the rounds."""
    objective = OBJECTIVES[config.objective]
    ordered = sorted(visits, key=lambda visit: visit.round)
    return {
        name: [
            objective.score(visit.cells, config.slo_p99_ms)
            for visit in ordered
            if visit.setting == name
        ]
        for name in names
    }


def tried(scores: Scores, failures: Failures) -> list[Tried]:
    """Return the settings in their order; those that failed have no score."""
    return [
        Tried(name=name, texts_per_second=None, against_default=None, failure=failures[name])
        if name in failures
        else Tried(
            name=name,
            texts_per_second=statistics.geometric_mean(own) if all(own) else None,
            against_default=_ratio(scores, name),
        )
        for name, own in scores.items()
    ]


def _ratio(scores: Scores, name: str) -> Speedup | None:
    default, own = scores[DEFAULT_SETTING], scores[name]
    if name == DEFAULT_SETTING or not all((*default, *own)):
        return None
    return ratio_over_rounds(default, own)


def choose(rows: Sequence[Tried], config: TuneConfig) -> Choice:
    """Return the fastest setting that is faster than the default beyond chance, or the default."""
    faster = [row for row in rows if row.against_default and row.against_default.low > 1]
    if faster:
        best = max(faster, key=lambda row: row.texts_per_second or 0.0)
        ratio = best.against_default
        assert ratio is not None
        return Choice(
            setting=best.name,
            reason=f"{ratio} the texts/s of {DEFAULT_SETTING}",
        )
    if rows[0].texts_per_second is None:
        return _without_default(rows, config)
    return Choice(
        setting=DEFAULT_SETTING,
        reason="no other setting is faster beyond what differs from round to round: the default "
        "stays",
    )


def confirmed(
    choice: Choice, rows: Sequence[Tried], fresh: Sequence[Tried], config: TuneConfig
) -> Choice:
    """Return what fresh rounds say of a chosen setting: their ratio, or that the default stays.

    The rounds that chose a setting flatter it: it is the best of several there, by chance too.

    Args:
        choice: a setting, not the default.
        rows: all settings in the rounds that chose it, the default first.
        fresh: the default and that setting, in rounds that had no part in the choice.
        config: as for the choice.
    """
    again = choose(fresh, config)
    own = fresh[-1]
    if again.setting == choice.setting:
        reason = f"{again.reason}, in rounds that did not choose it"
        return again.model_copy(update={"reason": reason})
    if rows[0].texts_per_second is None and own.texts_per_second is not None:
        # the default has missed the p99 before, whatever it did by chance since
        return choice
    return Choice(
        setting=DEFAULT_SETTING,
        reason=f"{choice.setting} was the best, but {_unconfirmed(own, config)} when both were "
        "measured once more: the default stays",
    )


def _unconfirmed(own: Tried, config: TuneConfig) -> str:
    """Return in words why fresh rounds do not confirm a setting."""
    if own.failure:
        return "it could not be served"
    if own.texts_per_second is None:
        return f"it missed a p99 of {config.slo_p99_ms:g} ms"
    return "not beyond chance"


def _without_default(rows: Sequence[Tried], config: TuneConfig) -> Choice:
    """Return the fastest setting that holds the p99, which the default does not."""
    holding = [row for row in rows if row.texts_per_second is not None]
    if not holding:
        return Choice(
            setting=DEFAULT_SETTING,
            reason=f"no setting holds a p99 of {config.slo_p99_ms:g} ms in every round: the "
            "default stays. Allow more with --slo-p99-ms",
        )
    best = max(holding, key=lambda row: row.texts_per_second or 0.0)
    return Choice(
        setting=best.name,
        reason=f"it holds a p99 of {config.slo_p99_ms:g} ms in every round, and "
        f"{DEFAULT_SETTING} does not",
    )
