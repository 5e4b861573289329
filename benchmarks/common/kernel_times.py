"""Time of a graph's operators, by ONNX Runtime's own profile."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from bertender.core.config import Record
from bertender.core.machine_load import MachineLoad, watched_load
from bertender.models.onnx_session import open_session
from bertender.text.batch import Batch
from quantize.kernels import INTEGER_PRODUCTS

__all__ = ["KernelTimes", "kernel_times"]

FLOAT_PRODUCTS = frozenset({"Attention", "FusedGemm", "FusedMatMul", "Gemm", "LSTM", "MatMul"})
RUNS = 30
WARM_UP_RUNS = 5


class KernelTimes(Record):
    """Time of one inference in each kind of operator, summed over its nodes."""

    tokens: int
    operators_ms: dict[str, float] = Field(description="operator -> milliseconds, the mean of RUNS")
    load: MachineLoad | None = Field(None, description="meanwhile; of earlier files not recorded")

    @property
    def products_ms(self) -> float:
        """In matrix products, of weights and of activations."""
        products = INTEGER_PRODUCTS | FLOAT_PRODUCTS
        return sum(ms for name, ms in self.operators_ms.items() if name in products)

    @property
    def elsewhere_ms(self) -> float:
        """In everything else."""
        return sum(self.operators_ms.values()) - self.products_ms


def kernel_times(graph: Path, batch: Batch, threads: int, noisy: bool = False) -> KernelTimes:
    """Run a graph on a batch with a profile; writing it makes each node a little slower.

    Raises:
        MachineBusyError: other work disturbs the times, and noisy ones are not allowed.
    """
    with TemporaryDirectory() as folder, watched_load(noisy) as meter:
        session = open_session(graph, threads=threads, profile=Path(folder) / "profile")
        arrays = {node.name: batch.arrays[node.name] for node in session.get_inputs()}
        for _ in range(WARM_UP_RUNS + RUNS):
            session.run(None, arrays)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    counted = kernels[len(kernels) * WARM_UP_RUNS // (WARM_UP_RUNS + RUNS) :]
    micros: Counter[str] = Counter()
    for event in counted:
        micros[event["args"]["op_name"]] += event["dur"]
    operators = {name: round(value / RUNS / 1000, 4) for name, value in sorted(micros.items())}
    tokens = batch.arrays["input_ids"].shape[1]
    return KernelTimes(tokens=tokens, operators_ms=operators, load=meter.load)
