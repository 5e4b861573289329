"""Target speed of a pruned model, and its measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from bertender.core.build_once import directory_once
from bertender.core.environment import environment
from bertender.core.errors import ConfigError
from bertender.core.findings import LatencyFindings, LatencyLoad
from bertender.models.pruned import heads_of, neurons_of
from distill.pruning.choice import shares_of_rounds
from distill.pruning.config import PruneConfig
from distill.pruning.latency import LatencyTable, Stopwatches
from distill.pruning.search import fastest_ms

__all__ = ["Target", "find_target"]

TABLE_NAME = "table.json"


@dataclass(frozen=True)
class Target:
    """A model's time now, and its target."""

    factor: float
    """How many times as fast."""
    table: LatencyTable
    before: PreTrainedModel

    @property
    def before_ms(self) -> float:
        """Latency that the table predicts for the model as it is."""
        return self._predicted_ms(self.before)

    def limits_ms(self, rounds: int) -> list[float]:
        """Return what the model may take after each round; each round saves the same share."""
        shares = shares_of_rounds(1 - 1 / self.factor, rounds)
        return [self.before_ms * (1 - share) for share in shares]

    def reached(self, model: PreTrainedModel, stopwatches: Stopwatches) -> LatencyFindings:
        """Return how fast a model is, as predicted and as measured, and what was measured first."""
        return LatencyFindings(
            target=self.factor,
            predicted=self.before_ms / self._predicted_ms(model),
            measured=stopwatches.speedup(self.before, model, self.table.load),
            table=self.table,
        )

    def _predicted_ms(self, model: PreTrainedModel) -> float:
        return self.table.predicted_ms(heads_of(model.config), neurons_of(model.config))


def find_target(
    model: PreTrainedModel,
    lengths: Sequence[int],
    config: PruneConfig,
    stopwatches: Stopwatches,
    work: Path,
) -> Target | None:
    """Time a model's parts, once a run, for the target of a config; None where it has none.

    Args:
        model: as it is before anything is pruned.
        lengths: tokens of the task's training texts.
        config: what is asked for.
        stopwatches: where times come from.
        work: where the table is stored, so that a resumed run reads the same one.

    Raises:
        ConfigError: no pruning makes the model so fast.
    """
    if config.target_latency is None:
        return None
    tokens = config.latency_tokens or max(round(sum(lengths) / len(lengths)), 1)
    load = LatencyLoad(texts=config.latency_texts, tokens=tokens, threads=environment().cores)
    write = partial(_write_table, model, load, stopwatches)
    directory = directory_once(work / "latency", load.model_dump(mode="json"), write)
    table = LatencyTable.model_validate_json((directory / TABLE_NAME).read_bytes())
    target = Target(config.target_latency, table, model)
    _check_reachable(target, model.config.num_hidden_layers - config.layers)
    return target


def _write_table(
    model: PreTrainedModel, load: LatencyLoad, stopwatches: Stopwatches, directory: Path
) -> None:
    table = stopwatches.table(model, load)
    (directory / TABLE_NAME).write_text(table.model_dump_json(), encoding="utf-8")


def _check_reachable(target: Target, layers: int) -> None:
    """Raise ConfigError where one head and one neuron in each layer take longer."""
    best, load = target.before_ms / fastest_ms(target.table, layers), target.table.load
    if target.factor > best:
        raise ConfigError(
            f"target_latency={target.factor:g}x: with one head and one neuron in each of its "
            f"{layers} layers the model is {best:.2f}x as fast as before, for {load.texts} texts "
            f"of {load.tokens} tokens on this machine. Ask for less, or drop layers as well "
            f"(layers=1 or more)."
        )
