"""Records of a timing: its settings and results, raw samples included."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from bertender.core.config import Config, Record
from bertender.measure.load import MachineLoad
from bertender.measure.samples import Percentiles, Speedup

__all__ = ["Latency", "LatencyConfig", "LatencyReport", "of_one_process"]


class LatencyConfig(Config):
    """Settings of a timing: its size, and the number of threads."""

    single_texts: int = Field(50, ge=1, description="texts timed one by one in a round")
    batch_size: int = Field(32, ge=1, description="texts of the timed batch, of mixed lengths")
    processes: int = Field(
        3,
        ge=1,
        description="repetitions in fresh processes, one for each engine; a speedup's interval is "
        "over them and their rounds; 1: once, in this process",
    )
    rounds: int = Field(4, ge=2, description="timed rounds of each process")
    warmup_rounds: int = Field(1, ge=0, description="whole rounds before the first timed one")
    warmup_texts: int = Field(5, ge=0, description="untimed texts at the start of every turn")
    threads: int = Field(0, ge=0, description="of PyTorch and every runtime alike; 0: every core")
    seed: int = Field(0, ge=0, description="which texts are drawn")
    noisy: bool = Field(
        False, description="time on a busy machine as well, and mark the figures as noisy"
    )


def of_one_process(config: Any) -> Any:
    """Return the settings of an earlier file, when this process timed everything itself."""
    return {"processes": 1, **config} if isinstance(config, dict) else config


def _nested(samples: Any, depth: int) -> Any:
    """Return samples by process; those of an earlier file have one process, and no level for it."""
    first = samples
    for _ in range(depth - 1):
        first = first[0] if first else ()
    return samples if isinstance(first, (list, tuple)) else [samples]


class Latency(Record):
    """One classifier's times. Those by process are raw; everything else is computed from them."""

    name: str
    single: Percentiles = Field(description="one text at its natural length, tokenised and run")
    batch: Percentiles = Field(description="one batch, padded to its longest, tokenised and run")
    texts_per_second: float = Field(description="texts of all timed batches over their time")
    speedup: Speedup = Field(description="over the first row: single texts, by medians of rounds")
    single_ms: Annotated[
        tuple[tuple[tuple[float, ...], ...], ...],
        BeforeValidator(lambda samples: _nested(samples, 3)),
    ] = Field(description="raw: processes x rounds x texts")
    batch_ms: Annotated[
        tuple[tuple[float, ...], ...], BeforeValidator(lambda samples: _nested(samples, 2))
    ] = Field(description="raw: processes x rounds, a batch each")

    @property
    def batch_rounds_ms(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """The batches as single texts are stored: processes x rounds x 1."""
        return tuple(tuple((value,) for value in rounds) for rounds in self.batch_ms)


class LatencyReport(Record):
    """Interleaved measurements, and how they were made."""

    config: Annotated[LatencyConfig, BeforeValidator(of_one_process)]
    threads: int = Field(description="that `config.threads` resolved to")
    batch_texts: int = Field(description="texts in a batch; fewer than asked in a small split")
    rows: tuple[Latency, ...]
    noise_floor: Latency | None = Field(
        None, description="the first row, opened and timed a second time; None where it was not"
    )
    load: MachineLoad | None = Field(
        None, description="of the busiest process; None in files that do not record it"
    )
