"""The graphs of a model, in float32 and in dynamic 8 bits, made once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.making import made_once
from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, GateError, ModelError, ParityError
from bertender.gate.config import GateConfig
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.quantize_config import QuantizeConfig
from quantize.quantizer import quantize

__all__ = ["Graphs", "graphs_of"]

Make = Callable[[Artifact, Task, Any, Path], Artifact]
"""`export` or `quantize`."""

REFUSALS = (AccuracyError, GateError, ModelError, ParityError)
GATE_TEXTS = 64
"""Of a gate, whose time would be most of all; all held-out texts score the graphs."""


@dataclass(frozen=True)
class Graphs:
    """The graphs of one model."""

    by_precision: dict[str, Artifact]
    refused: str | None = None
    """Why one is missing."""

    @property
    def names(self) -> dict[str, str]:
        return {precision: each.name for precision, each in self.by_precision.items()}


def graphs_of(model: Artifact, task: Task, work: Path) -> Graphs:
    """Return the graphs of a model, made now or before; a graph is its own."""
    if model.card.kind == "onnx":
        return Graphs({model.card.precision: model})
    try:
        exported = _gated(ExportConfig(), export, model, task, work / f"{model.name}-onnx")
    except (ModelError, ParityError) as error:
        return Graphs({}, str(error))
    config = QuantizeConfig(scheme="dynamic")
    try:
        small = _gated(config, quantize, exported, task, work / f"{model.name}-int8")
    except REFUSALS as error:
        return Graphs({"float32": exported}, str(error))
    return Graphs({"float32": exported, "int8": small})


def _gated(config: GateConfig, make: Make, source: Artifact, task: Task, place: Path) -> Artifact:
    """Return a graph that few texts let pass, or as many as the gate usually asks.

    Of many graphs that are sound, some would be refused by chance, and the fewer texts the gate
    asks, the further one of them can seem from its source.
    """
    few = config.changed({"parity_texts": GATE_TEXTS})
    again = place.with_name(f"{place.name}-of-{config.parity_texts}-texts")
    with suppress(ParityError):  # of logits; others do not depend on how many texts are asked
        if not again.exists():
            return made_once(place, few, task, source, partial(make, source, task))
    return made_once(again, config, task, source, partial(make, source, task))
