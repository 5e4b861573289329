"""Settings of `bertender tune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from bertender.core.config import Rule, parts_of
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, RuntimeName
from serve.loadtest.config import LoadConfig
from serve.loadtest.texts import TextsConfig
from serve.tuning.objectives import OBJECTIVES
from serve.tuning.rounds import LEAST_ROUNDS, MOST_ROUNDS
from serve.tuning.settings import DEFAULT_SETTING, SETTINGS

__all__ = ["TUNE_RULES", "TuneConfig"]

TIMEOUT_S = 120.0
"""Of a request: a slow model on a slow machine is tuned, too."""

Positive = Annotated[int, Field(ge=1, le=500)]
Counts = Annotated[tuple[Positive, ...], BeforeValidator(parts_of), Field(min_length=1)]


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        SETTINGS[name]
    return names


TUNE_RULES: Mapping[str, Rule[Any]] = {
    "a limit that nothing reads": Rule(
        lambda config: config.objective != "p99",
        "it is what --objective p99 holds. Give that as well, or leave this out.",
        settings=frozenset({"slo_p99_ms"}),
    ),
}
"""Conflicts of settings."""


class TuneConfig(TextsConfig):
    """What is tried, under which load, and what makes it better."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = TUNE_RULES

    settings: Annotated[tuple[str, ...], BeforeValidator(parts_of), AfterValidator(_known)] = Field(
        tuple(SETTINGS),
        description=f"what to try; {DEFAULT_SETTING}, the default of `serve`, always is",
    )
    objective: Annotated[str, OBJECTIVES.validator()] = Field(
        "throughput",
        description="; ".join(f"{name}: {row.summary}" for name, row in OBJECTIVES.items()),
    )
    slo_p99_ms: float = Field(50.0, gt=0, description="p99 that must hold, in milliseconds")
    concurrency: Counts = Field((1, 8), description="clients at a time, by commas")
    texts_per_request: Counts = Field((1, 16), description="texts in each request, by commas")
    rounds: int = Field(
        5,
        ge=LEAST_ROUNDS,
        le=MOST_ROUNDS,
        description="how often each setting is served and measured, in turns with the others",
    )
    duration_s: float = Field(1.5, gt=0, description="measured seconds of each load in a round")
    warmup_s: float = Field(0.5, ge=0, description="seconds of the same load before them")
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME, description=f"the runtime of the model: {', '.join(RUNTIMES)}"
    )
    seed: int = Field(0, ge=0, description="which texts are drawn")
    noisy: bool = Field(
        False, description="measure on a busy machine as well, and mark the profile as noisy"
    )

    def loads(self) -> list[LoadConfig]:
        """Return the loads of a round, each of which a setting gets."""
        return [
            LoadConfig(
                concurrency=concurrency,
                texts_per_request=texts,
                duration_s=self.duration_s,
                warmup_s=self.warmup_s,
                timeout_s=TIMEOUT_S,
                seed=self.seed,
            )
            for texts in self.texts_per_request
            for concurrency in self.concurrency
        ]

    def tried(self, cores: int) -> tuple[str, ...]:
        """Return the settings to try with so many cores, the default first."""
        names = dict.fromkeys((DEFAULT_SETTING, *self.settings))
        return tuple(name for name in names if SETTINGS[name].least_cores <= cores)
