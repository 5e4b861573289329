"""SERVED_RUNTIMES: what runs the buckets of an endpoint, behind the one method `Predictor.logits`.

A row of RUNTIMES runs them in the process of the Python backend. `triton-onnxruntime` sends each to
a model of its own (`classifier-encoder`), which Triton's ONNX Runtime backend runs, on a GPU or on
the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertender.core.table import Table, on_demand
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from serve.adaptive_threads import adaptive

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.predictor import Predictor

__all__ = [
    "DEFAULT_RUNTIME",
    "ENCODER_NAME",
    "SERVED_RUNTIMES",
    "Opening",
    "ServedRuntime",
    "ServedRuntimeName",
]

ENCODER_NAME = "classifier-encoder"
"""The Triton model that runs the graph where the Python backend does not."""


@dataclass(frozen=True)
class Opening:
    """What a runtime is opened with."""

    graph: Path
    threads: int
    """Of one run, at most."""
    adapts_threads: bool = False
    """Small buckets may have fewer, where the runtime does so."""
    concurrent_buckets: int = 1
    """Runs at once."""
    encoder: str | None = None
    """The Triton model that runs the graph."""
    encoder_inputs: tuple[str, ...] = ()
    """Its inputs, by name."""


@dataclass(frozen=True)
class ServedRuntime:
    """A row of SERVED_RUNTIMES."""

    summary: str
    open: Callable[[Opening], Predictor]
    in_process: str | None = None
    """The row of RUNTIMES that runs in the Python backend's process."""
    triton_backend: str | None = None
    """The backend of Triton that runs the graph, as the model `classifier-encoder`."""
    buckets_at_once: int = 1
    """Of a merged batch, at least."""

    def compiles_shapes(self, graph: Path) -> bool:
        """Return whether it takes long for the first bucket of each shape."""
        return self.in_process is not None and RUNTIMES[self.in_process].compiles_shapes(graph)

    @property
    def runs_while_loading(self) -> bool:
        """Whether it can run before Triton has loaded the model: Triton then takes no requests."""
        return self.triton_backend is None


ADAPTING = frozenset({"onnxruntime"})
"""Rows of RUNTIMES whose small buckets are faster on one thread, as far as it was measured."""


def _open_in_process(name: str, opening: Opening) -> Predictor:
    # spinning threads take the cores that the server needs: it cost half the throughput
    settings = {"spinning": False, "concurrent_runs": opening.concurrent_buckets}
    open_graph = partial(RUNTIMES[name].open, opening.graph, **settings)
    if opening.adapts_threads and name in ADAPTING:
        return adaptive(open_graph, opening.graph, opening.threads)
    return open_graph(opening.threads)


SERVED_RUNTIMES = Table(
    "runtime",
    {
        **{
            name: ServedRuntime(runtime.summary, partial(_open_in_process, name), in_process=name)
            for name, runtime in RUNTIMES.items()
        },
        "triton-onnxruntime": ServedRuntime(
            summary="ONNX Runtime as a backend of Triton, on a GPU or on the CPU",
            open=on_demand("serve.encoder_predictor:EncoderPredictor"),
            triton_backend="onnxruntime",
            buckets_at_once=2,  # while one runs, the next is on its way
        ),
    },
)

ServedRuntimeName = Annotated[str, SERVED_RUNTIMES.validator()]
"""A row of SERVED_RUNTIMES, as a setting."""
