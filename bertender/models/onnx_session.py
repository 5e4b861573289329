"""ONNX Runtime: sessions, the predictor, and a check that every token has an embedding row.

ONNX Runtime is imported only when a session is opened. PyTorch and the onnx package are not
imported, so that an endpoint starts quickly.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.core.hardware import has_int8_acceleration, threads_by_default
from bertender.text.batch import Batch
from bertender.text.tokenizer import check_rows

if TYPE_CHECKING:
    import onnxruntime
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

ONNX_NAME = "model.onnx"
"""File of the graph in an onnx artifact, as in Optimum."""
ONNX_DATA_NAME = "model.onnx_data"
"""File of the weights of a graph that is too large for one file, as in Optimum."""
RUNTIME_DOMAIN = "com.microsoft"
"""Operator set of ONNX Runtime."""
MOST_MB = 2000
"""Most megabytes of a graph file, below protobuf's limit of 2 GiB."""

Provider = str | tuple[str, Mapping[str, str]]
"""An execution provider, alone or with its options."""
ERRORS_ONLY = 3

LEFT_OUT = ("SkipLayerNormFusion",)
"""Optimizers of ONNX Runtime that make a graph slower on the CPU: the kernel of a layer norm fused
with its addition is slower than both operators (benchmarks/reports/engines.md)."""
SESSION_CONFIG: Mapping[str, str] = {"session.x64quantprecision": "1"}
"""Entries of ONNX Runtime's session configuration that change outputs. With this one, x86 CPUs
without 8-bit dot products multiply unsigned integers where a weight has more than 7 bits. Without
it they add pairs of products in 16 bits, which saturate: wrong outputs, without an error. Other
CPUs leave it out, since it keeps products off AMX and makes them as slow as float products."""

SHARED_WEIGHT = "Attempt to replace the existing tensor"
"""Part of ONNX Runtime's message where several products share a weight to make unsigned."""
FEWER_BITS = (
    "On this CPU, which has no 8-bit dot products, ONNX Runtime cannot add 8-bit products exactly "
    "whose weights are shared, as an ALBERT's. Quantize the model with --target avx2."
)
OTHER_VERSION = "Install the version of constraints.txt, or export and quantize the model again."


def session_config() -> Mapping[str, str]:
    """Return the entries of SESSION_CONFIG if this CPU may need them."""
    return {} if has_int8_acceleration() else SESSION_CONFIG


def open_session(
    graph: Path | bytes,
    *,
    threads: int = 0,
    spinning: bool = True,
    optimized: Path | None = None,
    left_out: Sequence[str] | None = LEFT_OUT,
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU.

    Args:
        graph: file or bytes of the graph.
        threads: intra-op threads; 0 takes OMP_NUM_THREADS, or else all cores.
        spinning: let idle threads wait in a loop: faster alone, slower next to other work.
        optimized: file for the optimized graph that runs.
        left_out: optimizers of ONNX Runtime to skip; None skips all, and then SESSION_CONFIG, which
            one of them applies, has no effect.

    Raises:
        ModelError: ONNX Runtime cannot open it.
    """
    import onnxruntime

    options = session_options(threads, spinning)
    if left_out is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return create_session(graph, options, ("CPUExecutionProvider",), left_out or ())


def session_options(threads: int, spinning: bool) -> onnxruntime.SessionOptions:
    """Return the common options of all sessions; see `open_session`."""
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
        graph: file or bytes of the graph.
        options: result of `session_options`.
        providers: execution providers, the preferred first.
        left_out: optimizers of ONNX Runtime to skip.
        advice: advice in the error.

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
            enable_fallback=0,  # a fallback would print, and run on the CPU without the options
        )
    except Exception as error:  # ONNX Runtime's exceptions have no public base class
        advice = FEWER_BITS if SHARED_WEIGHT in str(error) else advice
        name = "a part of a graph" if isinstance(graph, bytes) else graph
        raise ModelError(
            f"ONNX Runtime {onnxruntime.__version__} cannot open {name}: {error}. {advice}"
        ) from None


class OnnxPredictor:
    """A predictor on an ONNX Runtime session; arrays that the graph does not take are left out."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.inputs = tuple(node.name for node in session.get_inputs())

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        arrays = {name: batch.arrays[name] for name in self.inputs}
        return np.asarray(self.session.run(["logits"], arrays)[0], dtype=np.float32)


# The functions below read the number of embedding rows of a graph from a few fields of onnx.proto,
# in the mapped file, without its weights. ONNX Runtime does not report a graph's constants, and its
# look-up in a 4-bit table reads past the end.
# https://protobuf.dev/programming-guides/encoding
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
GRAPH = 7
"""Number of the field of a model."""
NODE, INITIALIZER = 1, 5
"""Numbers of the fields of a graph."""
INPUT, OUTPUT, OPERATOR = 1, 2, 4
"""Numbers of the fields of a node."""
DIMS, NAME = 1, 8
"""Numbers of the fields of a tensor."""
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""Types of fields on the wire."""

RENAMES = ("Cast", "Identity")
LOOKUPS = ("Gather", "GatherBlockQuantized")
TOKENS = "input_ids"


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]


def check_tokens(graph: Path, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> None:
    """Raise ModelError where a tokenizer has tokens beyond the rows of a graph's embeddings."""
    if (rows := rows_of_tokens(graph)) is not None:
        check_rows(tokenizer, rows, graph)


def rows_of_tokens(graph: Path) -> int | None:
    """Return the number of rows of a graph's word embeddings; None where none are found.

    A file that is not a graph also gives None: opening it raises the error.
    """
    with graph.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _rows(mapped)
        except (ValueError, IndexError):  # the file is empty, or ends inside a field
            return None


def _rows(data: mmap.mmap) -> int | None:
    nodes: list[_Node] = []
    rows: dict[str, int] = {}
    for start, end in _parts(data, (0, len(data)), GRAPH):
        nodes += [_node(data, part) for part in _parts(data, (start, end), NODE)]
        for part in _parts(data, (start, end), INITIALIZER):
            name, dims = _tensor(data, part)
            if dims:
                rows[name] = dims[0]
    makers = {output: node for node in nodes for output in node.outputs}
    tokens = {TOKENS}
    for node in nodes:
        if node.operator in RENAMES and node.inputs[0] in tokens:
            tokens.update(node.outputs)
        if node.operator in LOOKUPS and node.inputs[1] in tokens:
            table = node.inputs[0]
            while table not in rows and table in makers:  # dequantized from an integer constant
                table = makers[table].inputs[0]
            return rows.get(table)
    return None


def _node(data: mmap.mmap, part: tuple[int, int]) -> _Node:
    texts: dict[int, list[str]] = {INPUT: [], OUTPUT: [], OPERATOR: []}
    for number, (start, end) in _fields(data, part):
        if number in texts:
            texts[number].append(data[start:end].decode())
    return _Node("".join(texts[OPERATOR]), texts[INPUT], texts[OUTPUT])


def _tensor(data: mmap.mmap, part: tuple[int, int]) -> tuple[str, list[int]]:
    """Return the name of a constant, and its first dimension in a list; empty for a scalar.

    Dimensions are written one by one, or all in one field.
    """
    name, dims = "", list[int]()
    for number, (start, end) in _fields(data, part):
        if number == DIMS and start < end:
            dims.append(_varint(data, start)[0])
        elif number == NAME:
            name = data[start:end].decode()
    return name, dims[:1]


def _parts(data: mmap.mmap, part: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    return (place for number, place in _fields(data, part) if number == wanted)


def _fields(data: mmap.mmap, part: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each field of a message, and the start and end of its value."""
    place, end = part
    while place < end:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == BYTES:
            size, place = _varint(data, place)
            after = place + size
        elif kind == VARINT:
            _, after = _varint(data, place)
        elif kind in (FIXED_64, FIXED_32):
            after = place + (8 if kind == FIXED_64 else 4)
        else:
            raise ValueError(f"field of type {kind}")
        yield key >> 3, (place, after)
        place = after


def _varint(data: mmap.mmap, place: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte, lowest first) and the offset after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
