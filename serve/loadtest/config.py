"""Settings of `bertender loadtest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule
from serve.loadtest.texts import TextsConfig
from serve.wire import MODEL_NAME

__all__ = ["LOWEST_RATE", "RULES", "LoadConfig"]

LOWEST_RATE = 0.5
"""Requests a second below which no limit is looked for."""


def _kinds(config: LoadConfig) -> int:
    return (config.concurrency is not None) + (config.rate is not None or config.find_limit)


RULES: Mapping[str, Rule[Any]] = {
    "not one kind of load": Rule(
        lambda config: _kinds(config) != 1,
        "--rate sends at so many requests a second, --concurrency so many at a time, --find-limit "
        "looks for the highest rate. Give one; with --find-limit, --rate is the first.",
    ),
    "a limit that nothing reads": Rule(
        lambda config: not config.find_limit,
        "it is what --find-limit looks for. Give it as well, or leave this out.",
        settings=frozenset({"slo_p99_ms"}),
    ),
    "a search that begins too low": Rule(
        lambda config: config.find_limit and config.rate < LOWEST_RATE,
        f"--find-limit looks for no rate below {LOWEST_RATE:g} requests/s. Give a higher --rate "
        "to begin with, or leave it out.",
        settings=frozenset({"rate"}),
    ),
}
"""Conflicts of settings."""


class LoadConfig(TextsConfig):
    """How requests arrive, what they hold, and how long that is measured."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    rate: float | None = Field(
        None,
        gt=0,
        description="open loop: requests a second, at random times that are drawn before",
    )
    concurrency: int | None = Field(
        None, ge=1, le=500, description="closed loop: clients that each wait for their response"
    )
    find_limit: bool = Field(
        False, description="look for the highest rate whose p99 holds --slo-p99-ms"
    )
    slo_p99_ms: float = Field(50.0, gt=0, description="p99 that must hold, in milliseconds")
    model: str = Field(MODEL_NAME, description="name of the model on the server")
    texts_per_request: int = Field(1, ge=1, description="texts in each request")
    duration_s: float = Field(10.0, gt=0, description="measured seconds of each rate")
    warmup_s: float = Field(2.0, ge=0, description="seconds of the same load before them")
    timeout_s: float = Field(10.0, gt=0, description="longest wait for a response; none is retried")
    seed: int = Field(0, ge=0, description="which texts and times are drawn")
    noisy: bool = Field(
        False, description="measure on a busy machine as well, and mark the figures as noisy"
    )
