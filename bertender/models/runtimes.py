"""RUNTIMES: the engines that run ONNX files on the CPU; one is imported when it opens a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

from bertender.core.table import Table, on_demand
from bertender.models.onnx_predictor import OnnxPredictor

if TYPE_CHECKING:  # it loads PyTorch
    from bertender.models.predictor import Predictor

__all__ = ["DEFAULT_RUNTIME", "RUNTIMES", "Runtime", "RuntimeName"]


@dataclass(frozen=True)
class Runtime:
    """A row of RUNTIMES. All of them read the same files."""

    title: str
    summary: str
    open: Callable[..., Predictor]
    """(path, threads=0, spinning=True, concurrent_runs=1): a predictor whose `logits` so many
    threads may call at once. `threads` are of one run; those that do not spin suit a busy machine
    """
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
            package="onnxruntime",
            install="pip install 'bertender[serve]', or 'bertender[train]'",
        ),
        "openvino": Runtime(
            title="OpenVINO",
            summary="runs float graphs, and static 8-bit ones in integers, dynamic ones in float",
            open=on_demand("bertender.models.openvino_graph:OpenVinoPredictor"),
            package="openvino",
            install="pip install 'bertender[openvino]'",
        ),
    },
)

RuntimeName = Annotated[str, RUNTIMES.validator()]
"""A row of RUNTIMES, as a setting."""
