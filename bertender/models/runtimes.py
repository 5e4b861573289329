"""RUNTIMES: the engines that run ONNX files on the CPU; one is imported when it opens a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, RuntimeMissingError
from bertender.core.table import Table
from bertender.models.onnx_predictor import OnnxPredictor
from bertender.models.onnx_session import onnxruntime_operators, run_in_onnxruntime
from bertender.models.openvino_graph import (
    OpenVinoPredictor,
    openvino_operators,
    run_in_openvino,
)

if TYPE_CHECKING:  # it loads tokenizers
    from bertender.text.batch import Batch

__all__ = [
    "DEFAULT_RUNTIME",
    "RUNTIMES",
    "GraphPredictor",
    "Runtime",
    "check_installed",
    "check_used",
    "runtime_of",
]

Arrays = Mapping[str, npt.NDArray[Any]]


class GraphPredictor(Protocol):
    """A predictor of an ONNX file."""

    inputs: tuple[str, ...]
    """Names of the arrays that the graph takes."""

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        ...


class _OpenGraph(Protocol):
    """Opens an ONNX file; `spinning=False` suits threads that work next to other work."""

    def __call__(
        self, path: Path, threads: int = 0, *, spinning: bool = True
    ) -> GraphPredictor: ...


@dataclass(frozen=True)
class Runtime:
    """A row of RUNTIMES. All of them read the same files."""

    title: str
    summary: str
    open: _OpenGraph
    run: Callable[[bytes, Arrays], list[npt.NDArray[Any]]]
    """(graph in memory, its inputs by name) -> its outputs"""
    operators: Callable[[Path], dict[str, int]]
    """Counts the operators of a graph as it is run on this CPU, after all fusions."""
    integer_products: frozenset[str]
    """Operators that multiply by integer weights, by their names in `operators`."""
    package: str
    install: str

    @property
    def version(self) -> str | None:
        """Version of its package; None where it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


DEFAULT_RUNTIME = "onnxruntime"

RUNTIMES = Table(
    "runtime",
    {
        "onnxruntime": Runtime(
            title="ONNX Runtime",
            summary="runs every graph that bertender writes",
            open=OnnxPredictor,
            run=run_in_onnxruntime,
            operators=onnxruntime_operators,
            integer_products=frozenset(
                {
                    "DynamicQuantizeLSTM",
                    "DynamicQuantizeMatMul",
                    "MatMulInteger",
                    "MatMulIntegerToFloat",
                    "MatMulNBits",
                    "QGemm",
                    "QLinearMatMul",
                }
            ),
            package="onnxruntime",
            install="pip install bertender",
        ),
        "openvino": Runtime(
            title="OpenVINO",
            summary="runs float graphs, and static 8-bit ones in integers, dynamic ones in float",
            open=OpenVinoPredictor,
            run=run_in_openvino,
            operators=openvino_operators,
            integer_products=frozenset(
                f"{operator} {integers}"
                for operator in ("FullyConnected", "MatMul")
                for integers in ("u8", "i8", "u4", "i4")
            ),
            package="openvino",
            install="pip install 'bertender[openvino]'",
        ),
    },
)


def check_installed(*names: str) -> None:
    """Raise RuntimeMissingError for a runtime that is not installed, before any work."""
    for name in names:
        if RUNTIMES[name].version is None:
            raise RuntimeMissingError(
                f"runtime {name!r} is not installed. Install it with `{RUNTIMES[name].install}`, "
                f"or use one that is: {', '.join(_installed())}."
            )


def check_used(artifacts: Sequence[Artifact], *names: str) -> None:
    """Raise ConfigError for runtimes beside the default where no artifact is of kind onnx."""
    if set(names) - {DEFAULT_RUNTIME} and not any(each.card.kind == "onnx" for each in artifacts):
        raise ConfigError(
            f"runtime={','.join(names)} runs onnx artifacts, and none of these is one: "
            f"{', '.join(str(each.path) for each in artifacts)}. Export the model first: bertender "
            "export."
        )


def runtime_of(artifact: Artifact, name: str) -> str | None:
    """Return the runtime where it runs the artifact; None for what has a library of its own."""
    return name if artifact.card.kind == "onnx" else None


def _installed() -> list[str]:
    return [name for name, runtime in RUNTIMES.items() if runtime.version is not None]
