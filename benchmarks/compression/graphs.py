"""The graphs of a model, in float32 and in dynamic 8 bits, made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.making import made_once
from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, GateError, ModelError, ParityError
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize

__all__ = ["Graphs", "graphs_of"]

REFUSALS = (AccuracyError, GateError, ModelError, ParityError)
GATE_TEXTS = 64
"""Of each gate, whose time would be most of all; all held-out texts score the graphs."""


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
    place = work / f"{model.name}-onnx"
    try:
        brief = ExportConfig(parity_texts=GATE_TEXTS)
        exported = made_once(place, brief, task, model, partial(export, model, task))
    except (ModelError, ParityError) as error:
        return Graphs({}, str(error))
    config = QuantizeConfig(scheme="dynamic", parity_texts=GATE_TEXTS)
    place = work / f"{model.name}-int8"
    try:
        small = made_once(place, config, task, exported, partial(quantize, exported, task))
    except REFUSALS as error:
        return Graphs({"float32": exported}, str(error))
    return Graphs({"float32": exported, "int8": small})
