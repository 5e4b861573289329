"""Records of the benchmark of replicas."""

from __future__ import annotations

import os

from pydantic import Field

from bertender.core.config import Record
from bertender.core.environment import Environment
from bertender.core.errors import ConfigError
from bertender.core.machine_load import MachineLoad
from bertender.core.speedup import Speedup
from serve.loadtest.records import Outcome
from serve.tuning.rounds import ratio_over_rounds

__all__ = [
    "COUNTS",
    "Cores",
    "ReplicaBenchmark",
    "ReplicaConfig",
    "ReplicaRun",
    "Restart",
    "RollingRestart",
]

COUNTS = (1, 2)
"""Replicas behind the proxy."""


class Cores(Record):
    """Core of each process, by number; None where it may use all of them."""

    first: int | None = None
    second: int | None = None
    proxy: int | None = None
    generator: int | None = None

    @classmethod
    def by_default(cls) -> Cores:
        """Return a core for each process, as far as there are any: replicas come first.

        Raises:
            ConfigError: this process may use one core alone.
        """
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < len(COUNTS):
            raise ConfigError(f"two replicas on cores {usable}: each needs one of its own.")
        return cls(**dict(zip(cls.model_fields, usable, strict=False)))

    @classmethod
    def parse(cls, words: str) -> Cores:
        """Return the cores of a text such as `first=0,second=1,proxy=2`.

        Raises:
            ConfigError: it is none, or names a core that is not this process's to use.
        """
        pairs = [word.partition("=") for word in words.split(",") if word]
        usable = sorted(os.sched_getaffinity(0))
        for process, _, core in pairs:
            if process not in cls.model_fields or core not in map(str, usable):
                raise ConfigError(
                    f"--cores {words}: write PROCESS=CORE, by commas, with processes of "
                    f"{', '.join(cls.model_fields)} and cores of {usable}."
                )
        return cls(**{process: int(core) for process, _, core in pairs})


class ReplicaConfig(Record):
    """How it is measured."""

    cores: Cores = Cores()
    rounds: int = 5
    duration_s: float = Field(8.0, description="of the load on one and on two replicas, a round")
    warmup_s: float = 1.0
    texts_per_request: int = Field(64, description="many, so that the model has most of the time")
    clients: int = Field(4, description="that each wait for their response, for one and for two")
    restart_s: float = Field(60.0, description="of the load that both are restarted under")
    seed: int = 0
    noisy: bool = False


class ReplicaRun(Record):
    """So many replicas, started once."""

    replicas: int
    round: int
    texts_per_second: float
    p50_ms: float | None
    p99_ms: float | None = Field(description="of all; None where more than 1 % have no response")
    outcomes: dict[Outcome, int]
    cores_used: dict[str, float] = Field(
        description="processor time of generator, proxy and replicas, in cores, while they had load"
    )
    load: MachineLoad


class Restart(Record):
    """A replica that was stopped and started again, in seconds."""

    replica: int
    stop_s: float = Field(description="from SIGTERM until it had ended")
    start_s: float = Field(description="until it was ready again")


class RollingRestart(Record):
    """One replica restarted after the other, under load."""

    outcomes: dict[Outcome, int]
    p50_ms: float | None
    p99_ms: float | None
    restarts: tuple[Restart, ...]
    load: MachineLoad

    @property
    def failed(self) -> int:
        """Requests without a response, rejected ones included."""
        return sum(count for outcome, count in self.outcomes.items() if outcome != "ok")


class ReplicaBenchmark(Record):
    """Every figure, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    config: ReplicaConfig
    runs: tuple[ReplicaRun, ...]
    restart: RollingRestart
    environment: Environment

    def of(self, replicas: int) -> list[ReplicaRun]:
        """Return the runs of so many replicas, in the order of the rounds."""
        own = (each for each in self.runs if each.replicas == replicas)
        return sorted(own, key=lambda each: each.round)

    @property
    def scaling(self) -> Speedup:
        """Throughput of two replicas over that of one, within rounds."""
        one, two = ([each.texts_per_second for each in self.of(count)] for count in COUNTS)
        return ratio_over_rounds(one, two)
