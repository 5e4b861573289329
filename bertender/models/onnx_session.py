"""Opening a graph in ONNX Runtime, quietly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.cores import threads_by_default
from bertender.core.cpu import cpu_has_int8_acceleration
from bertender.core.errors import ModelError

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "FEWER_BITS",
    "LEFT_OUT",
    "OTHER_VERSION",
    "SESSION_CONFIG",
    "create_session",
    "open_session",
    "session_config",
    "session_options",
]

Provider = str | tuple[str, Mapping[str, str]]
"""A name of ONNX Runtime, or one with its options."""
ERRORS_ONLY = 3

LEFT_OUT = ("SkipLayerNormFusion",)
"""Optimizers of ONNX Runtime that make a graph slower on the CPU: its kernel of a layer norm that
is fused with the addition before it takes longer than the two (`benchmarks/fusion`)."""
SESSION_CONFIG: Mapping[str, str] = {"session.x64quantprecision": "1"}
"""Entries of ONNX Runtime's session configuration that change outputs. By this one, x86 CPUs
without 8-bit dot products multiply unsigned integers where a weight has more than 7 bits. Without
it they add pairs of products in 16 bits, which saturate: wrong outputs, without an error. On other
CPUs it is left out: it keeps products off AMX, and they take as long as those of floats."""

SHARED_WEIGHT = "Attempt to replace the existing tensor"
"""Part of ONNX Runtime's message where products share a weight that it would make unsigned."""
FEWER_BITS = (
    "On this CPU, which has no 8-bit dot products, ONNX Runtime cannot add 8-bit products exactly "
    "whose weights are shared, as an ALBERT's. Quantize the model with --target avx2."
)
OTHER_VERSION = "Install the version of constraints.txt, or export and quantize the model again."


def session_config() -> Mapping[str, str]:
    """Return the entries of SESSION_CONFIG if this CPU may need them."""
    return {} if cpu_has_int8_acceleration() else SESSION_CONFIG


def open_session(
    graph: Path | bytes,
    *,
    threads: int = 0,
    spinning: bool = True,
    optimized: Path | None = None,
    profile: Path | None = None,
    left_out: Sequence[str] | None = LEFT_OUT,
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU.

    Args:
        graph: its file, or what would be in it.
        threads: intra-op threads; 0 takes OMP_NUM_THREADS, and every core where it is not set.
        spinning: let idle threads wait in a loop: faster alone, slower next to other work.
        optimized: where to write the graph that really runs.
        profile: how the name of the file begins that `end_profiling` writes.
        left_out: ONNX Runtime's own optimizers that are not run; None runs every node as it stands,
            so that SESSION_CONFIG, which one of them applies, has no effect.

    Raises:
        ModelError: ONNX Runtime cannot open it.
    """
    import onnxruntime  # here, so that what only names a runtime starts without it

    options = session_options(threads, spinning)
    if left_out is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return create_session(graph, options, ("CPUExecutionProvider",), left_out or ())


def session_options(threads: int, spinning: bool) -> onnxruntime.SessionOptions:
    """Return the options of every session; see `open_session`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or threads_by_default()
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    for key, value in session_config().items():
        options.add_session_config_entry(key, value)
    return options


def create_session(
    graph: Path | bytes,
    options: onnxruntime.SessionOptions,
    providers: Sequence[Provider],
    left_out: Sequence[str] = (),
    advice: str = OTHER_VERSION,
) -> onnxruntime.InferenceSession:
    """Create a session.

    Args:
        graph: its file, or what would be in it.
        options: those of `session_options`.
        providers: what runs operators, the preferred first.
        left_out: ONNX Runtime's own optimizers that are not run.
        advice: what to do where it fails.

    Raises:
        ModelError: ONNX Runtime cannot open the graph.
    """
    import onnxruntime

    opened = graph if isinstance(graph, bytes) else str(graph)
    try:
        return onnxruntime.InferenceSession(
            opened,
            options,
            providers=[*providers],
            disabled_optimizers=[*left_out],
            enable_fallback=0,  # it would run on the CPU, without the options, and print why
        )
    except Exception as error:  # its exception classes share no public base
        advice = FEWER_BITS if SHARED_WEIGHT in str(error) else advice
        name = "a part of a graph" if isinstance(graph, bytes) else graph
        raise ModelError(
            f"ONNX Runtime {onnxruntime.__version__} cannot open {name}: {error}. {advice}"
        ) from None
