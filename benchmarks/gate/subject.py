"""A teacher's export, and the candidates that are made from it: VARIANTS, sound or with a fault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.common.making import made_once
from benchmarks.gate.faults import Fault
from benchmarks.gate.product_faults import planted
from bertender.core.artifact import Artifact
from bertender.core.config import Table
from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.opening import onnx_file, open_classifier
from bertender.models.predictor import Classifier, Predictor
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from quantize.context import QuantizationContext
from quantize.integers import TARGETS, Range
from quantize.quantize_config import QuantizeConfig
from quantize.schemes import SCHEMES

__all__ = ["VARIANTS", "Cached", "Ranges", "Subject", "subject_of"]

Ranges = Mapping[str, Range]
FloatArray = npt.NDArray[np.float32]

VARIANTS: Table[dict[str, Any]] = Table(
    "variant",
    {
        "float32": {},
        "dynamic": {"scheme": "dynamic"},
        "static-mse": {"scheme": "static", "calibrator": "mse"},
        "static-minmax": {"scheme": "static", "calibrator": "minmax"},
        "static-percentile": {"scheme": "static", "calibrator": "percentile"},
        "static-entropy": {"scheme": "static", "calibrator": "entropy"},
        "mixed": {"scheme": "mixed", "max_drop": 1.0, "sensitivity_texts": 64},
        "four-bit-embeddings": {"scheme": "four-bit-embeddings"},
        "four-bit": {"scheme": "four-bit"},
    },
)
"""Name -> the settings of its quantization; the float graph has none."""


class Cached:
    """A predictor of token arrays that runs once for a batch: all candidates have one reference."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.known: dict[bytes, FloatArray] = {}

    def logits(self, batch: Batch) -> FloatArray:
        """Return the logits (batch, labels) of a batch, computed now or before."""
        key = b"".join(
            f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes()
            for name, array in sorted(batch.arrays.items())
        )
        digest = hashlib.sha256(key).digest()
        if digest not in self.known:
            self.known[digest] = self.predictor.logits(batch)
            self.known[digest].setflags(write=False)
        return self.known[digest]


@dataclass(frozen=True)
class Subject:
    """A teacher's export, and its task."""

    name: str
    teacher: Artifact
    source: Artifact
    task: Task
    folder: Path

    @cached_property
    def reference(self) -> Classifier:
        return _cached(open_classifier(self.source))

    @cached_property
    def torch(self) -> Classifier:
        return _cached(open_classifier(self.teacher))

    def can_have(self, fault: Fault) -> bool:
        """Return whether a fault can be planted: single texts have no second one, and some models
        read no token types."""
        pairs = len(self.task.text_columns) > 1
        return (pairs or not fault.pairs_only) and fault.reads <= self._inputs

    @cached_property
    def _inputs(self) -> set[str]:
        """Inputs of the float graph."""
        graph = onnx.load(onnx_file(self.source), load_external_data=False).graph
        return {each.name for each in graph.input}

    def context(self, settings: dict[str, Any], graph: Path) -> QuantizationContext:
        config, folder = QuantizeConfig(**settings), self.folder
        return QuantizationContext(
            self.source, graph, folder, self.task, config, TARGETS["vnni"], folder
        )

    def written(
        self, variant: str, fault: Fault | None, folder: Path
    ) -> tuple[Path, Ranges | None]:
        """Write a variant's graph, from the float one with a fault planted in it, if one is.

        Returns:
            The graph, and the ranges that its static activations shall have; None of a float one.
        """
        graph = onnx_file(self.source)
        if fault and fault.graph:
            model = onnx.load(graph)
            fault.graph(model)
            graph = folder / "planted.onnx"
            save_graph(model, graph, MOST_MB)
        if variant == "float32":
            return graph, None
        settings, target = VARIANTS[variant], folder / ONNX_NAME
        context = self.context(settings, graph)
        ranges = SCHEMES[settings["scheme"]].write(context, target).ranges
        return planted_in(context, target, fault) if fault else target, ranges


def _cached(classifier: Classifier) -> Classifier:
    return replace(classifier, predictor=Cached(classifier.predictor))


def planted_in(context: QuantizationContext, graph: Path, fault: Fault) -> Path:
    """Plant a fault in the quantized graph at the product in its middle; others are left alone."""
    if fault.product is None:
        return graph
    products = context.inventory.products
    chosen = products[len(products) // 2]
    shape = (chosen.inputs, chosen.outputs)
    other = next(
        each for each in products if each != chosen and (each.inputs, each.outputs) == shape
    )
    return planted(graph, fault.product, chosen, other, graph.with_name("faulty.onnx"))


def subject_of(teacher: Path, work: Path) -> Subject:
    artifact = Artifact.load(teacher)
    task, folder = recorded_task(artifact, {}), work / teacher.name
    out = folder / "float32"
    config = STAGES["export"].config()
    folder.mkdir(parents=True, exist_ok=True)
    export = partial(STAGES["export"].make, [artifact], task)
    source = made_once(out, config, task, artifact, export)
    return Subject(teacher.name, artifact, source, task, folder)
