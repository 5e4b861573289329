"""config.pbtxt of the served models, written with protobuf so that field names are checked.

The model `classifier` has the input `TEXT` (and `TEXT_PAIR` for pair tasks), strings of shape [1];
outputs `LABEL` (string [1]), `SCORE` (fp32 [1], the softmax probability of the label) and `LOGITS`
(fp32 [labels]). Where words have labels, `TEXT` is a sentence whose words are split at white space,
and each output has one more axis for words, as long as the longest sentence of the request. There
is also `TRUNCATED` (bool [1]) if the request asks for truncation, `ABSTAINED` (bool [1]) if the
server abstains, and `TOKENS` (int32 [1]) if the door asks for it.

The model `classifier-encoder`, which a backend of Triton runs, has the tensors of its graph.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    text_format,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from bertender.core.card import Card
from bertender.core.errors import ConfigError, ModelError
from bertender.core.hardware import share_of_cores
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem, Tensor
from serve.config import BackendParameters, ServeConfig
from serve.wire import (
    ABSTAINED,
    ENCODER_NAME,
    MODEL_NAME,
    TOKENS,
    TRUNCATED,
    input_names,
    width_of,
)

CONFIG_NAME = "config.pbtxt"
FIRST_VERSION = 1

ARTIFACT_PARAMETERS = ("digest", "stamp", "problem_type", "longest_input")
"""Parameters that are not settings."""
ABSTAIN_BELOW = "abstain_below"
"""Parameter of a setting that adds an output."""

ENCODER_ARTIFACT = f"../../{ENCODER_NAME}/{FIRST_VERSION}"
"""Path of the artifact from the classifier's version; Triton's backend reads it there too."""

CLASSES = "tritonclient.grpc.model_config_pb2"


def _without_grpc() -> ModuleType:
    """Return tritonclient's classes of config.pbtxt.

    A normal import would load gRPC too, which `serve` does not need in memory.
    """
    if CLASSES in sys.modules:
        return sys.modules[CLASSES]
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        return importlib.import_module(CLASSES)  # raises an error with what is missing
    file = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location(CLASSES, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


triton: Any = _without_grpc()
"""Protobuf classes of config.pbtxt, without types."""
ModelConfig = Any
"""The class `triton.ModelConfig`."""

HAS_TOKENS = Tensor(TOKENS, "TYPE_INT32", (1,))
WAS_TRUNCATED = Tensor(TRUNCATED, "TYPE_BOOL", (1,))
HAS_ABSTAINED = Tensor(ABSTAINED, "TYPE_BOOL", (1,))


def model_config(
    card: Card,
    config: ServeConfig,
    digest: str | None = None,
    stamp: str | None = None,
    *,
    name: str = MODEL_NAME,
    longest_input: int | None = None,
    encoder_inputs: tuple[str, ...] = (),
) -> ModelConfig:
    """Return the Triton configuration of an artifact.

    Args:
        card: card of the artifact.
        config: settings of Triton and the backend.
        digest: digest of the artifact.
        stamp: stamp of its files, where their digests were checked.
        name: name of the model on the server.
        longest_input: longest input of its tokenizer, in tokens.
        encoder_inputs: inputs of the Triton model that runs the graph, if Triton's backend does.
    """
    encoder: dict[str, Any] = {}
    if config.triton_backend:
        encoder = {
            "artifact": ENCODER_ARTIFACT,
            "encoder": ENCODER_NAME,
            "encoder_inputs": encoder_inputs,
        }
    problem = PROBLEMS[card.task.problem_type].of_labels(card.task.labels)
    abstains = config.abstain_below is not None
    if abstains:
        check_abstains(problem)
    parameters = BackendParameters(
        digest=digest,
        stamp=stamp,
        tokens_per_bucket=config.tokens_per_bucket,
        runtime=config.runtime,
        threads=config.threads_per_instance,
        concurrent_buckets=config.concurrent_buckets,
        max_length=config.max_length,
        longest_input=longest_input,
        max_text_bytes=config.max_text_bytes,
        max_queue_texts=config.queue_texts,
        queue_timeout_ms=config.queue_timeout_ms,
        abstain_below=config.abstain_below,
        problem_type=card.task.problem_type,
        **encoder,
    )
    return triton.ModelConfig(
        name=name,
        backend="python",
        version_policy=only_version(FIRST_VERSION),
        max_batch_size=config.max_batch_size,
        input=[
            triton.ModelInput(name=each, data_type=triton.TYPE_STRING, dims=[width_of(each)])
            for each in input_names(
                len(problem.asked_columns(card.task.text_columns)), problem.takes_list
            )
        ],
        output=[
            _output(each, len(card.task.labels))
            for each in (
                *problem.response_tensors,
                HAS_TOKENS,
                WAS_TRUNCATED,
                *([HAS_ABSTAINED] if abstains else []),
            )
        ],
        dynamic_batching=triton.ModelDynamicBatching(
            max_queue_delay_microseconds=config.queue_delay_us
        ),
        instance_group=[
            triton.ModelInstanceGroup(
                kind=triton.ModelInstanceGroup.KIND_CPU, count=config.instances
            )
        ],
        parameters={
            name: triton.ModelParameter(string_value=value)
            for name, value in parameters.as_strings().items()
        },
    )


def _output(tensor: Tensor, labels: int) -> Any:
    kind = getattr(triton, tensor.triton_type)
    return triton.ModelOutput(name=tensor.name, data_type=kind, dims=tensor.dims(labels))


def check_abstains(problem: Problem[Any]) -> None:
    """Raise ConfigError where predictions of a kind of problem have no probability."""
    if not problem.has_confidence:
        raise ConfigError(
            f"abstain_below: a model of {problem.name!r} gives no probability to abstain by. Leave "
            "--abstain-below out; models that choose labels, tags, choices or answers have one."
        )


def only_version(version: int) -> Any:
    """Return the policy that serves a single version, even with a newer one next to it."""
    specific = triton.ModelVersionPolicy.Specific(versions=[version])
    return triton.ModelVersionPolicy(specific=specific)


def config_of_version(
    served: ModelConfig, fresh: ModelConfig, name: str, version: int
) -> ModelConfig:
    """Return the configuration of another artifact with the settings of a served one.

    Args:
        served: served configuration: source of batch size, copies of the model and queue limits.
        fresh: `model_config` of the new artifact: source of inputs, outputs and digest.
        name: name of the model on the server.
        version: version to serve.

    Raises:
        ConfigError: the served model abstains, and the new one has no probability for that.
    """
    config = triton.ModelConfig()
    config.CopyFrom(served)
    config.name = name
    config.version_policy.CopyFrom(only_version(version))
    for tensors in ("input", "output"):
        config.ClearField(tensors)
        getattr(config, tensors).extend(getattr(fresh, tensors))
    if ABSTAIN_BELOW in served.parameters:
        check_abstains(PROBLEMS[fresh.parameters["problem_type"].string_value])
        config.output.append(_output(HAS_ABSTAINED, 0))
    for parameter in ARTIFACT_PARAMETERS:
        config.parameters.pop(parameter, None)
        if parameter in fresh.parameters:
            config.parameters[parameter].CopyFrom(fresh.parameters[parameter])
    return config


def write_model_config(path: Path, config: ModelConfig) -> None:
    """Write a configuration as protobuf text."""
    path.write_text(text_format.MessageToString(config), encoding="utf-8")


def read_model_config(path: Path) -> ModelConfig:
    """Read a config.pbtxt."""
    return text_format.Parse(path.read_text(encoding="utf-8"), triton.ModelConfig())


def model_config_of(values: Mapping[str, object]) -> ModelConfig:
    """Return a configuration from Triton's JSON; fields of later versions are left out."""
    return json_format.ParseDict(values, triton.ModelConfig(), ignore_unknown_fields=True)


def parameters_of(config: ModelConfig) -> BackendParameters:
    """Return the parameters of a model for the Python backend."""
    values = config.parameters.items()
    return BackendParameters.parse({name: each.string_value for name, each in values})


def served_version(config: ModelConfig) -> int:
    """Return the version that a configuration serves."""
    return int(max(config.version_policy.specific.versions, default=FIRST_VERSION))


def encoder_config(
    signature: GraphSignature, config: ServeConfig, shapes: Iterable[tuple[int, int]]
) -> ModelConfig:
    """Return the Triton configuration of a graph.

    `max_batch_size` is 0, since a bucket already is a batch, and buckets of other lengths could not
    join it. Triton's backend only accepts tensors with all dimensions of the graph, and never
    changes such a configuration, even where it auto-completes others. The backend's documented
    options (graph optimization, execution providers) keep their defaults, since no other values
    were measured.

    https://github.com/triton-inference-server/onnxruntime_backend#readme

    Args:
        signature: signature of the graph.
        config: settings of Triton and the backend.
        shapes: texts and tokens of the buckets of Triton's warm-up.

    Raises:
        ModelError: the graph does not state the number of dimensions of a tensor.
    """
    kinds = triton.ModelInstanceGroup
    kind = kinds.KIND_GPU if config.gpu else kinds.KIND_CPU
    threads = {}
    # a single copy has all cores by default, on any machine
    alone = config.instances == 1 and not config.starts_server
    if not config.gpu and (config.threads_per_instance or not alone):
        count = config.threads_per_instance or share_of_cores(config.instances)
        threads = {"intra_op_thread_count": triton.ModelParameter(string_value=str(count))}
    return triton.ModelConfig(
        name=ENCODER_NAME,
        backend=config.triton_backend,
        max_batch_size=0,
        input=[triton.ModelInput(**_tensor(each)) for each in signature.inputs],
        output=[triton.ModelOutput(**_tensor(each)) for each in signature.outputs],
        instance_group=[kinds(kind=kind, count=config.instances)],
        parameters=threads,
        model_warmup=[_warm_up(signature, *shape) for shape in shapes],
    )


def _tensor(tensor: TensorSignature) -> dict[str, object]:
    if not tensor.dims:
        raise ModelError(
            f"the graph has no shape for {tensor.name!r}, which Triton's backend needs. Export the "
            "model again: bertender export."
        )
    data_type = triton.DataType.Value(tensor.data_type)
    return {"name": tensor.name, "data_type": data_type, "dims": tensor.dims}


def _warm_up(signature: GraphSignature, texts: int, tokens: int) -> Any:
    inputs = {
        tensor.name: triton.ModelWarmup.Input(
            data_type=triton.DataType.Value(tensor.data_type),
            dims=[texts, tokens],
            zero_data=True,
        )
        for tensor in signature.inputs
    }
    return triton.ModelWarmup(name=f"{texts}x{tokens}", batch_size=1, inputs=inputs)


# ONNX graphs are read without the packages onnx and onnxruntime: the extra `serve` has no onnx, and
# a session of ONNX Runtime would prepare the whole graph. The messages below are the parts of
# onnx.proto that are read here, with its field numbers; protobuf skips the others.
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto

PACKAGE = "bertender.onnx"

Scalar = descriptor_pb2.FieldDescriptorProto
INT, INT32, STRING = Scalar.TYPE_INT64, Scalar.TYPE_INT32, Scalar.TYPE_STRING
ONE, MANY = Scalar.LABEL_OPTIONAL, Scalar.LABEL_REPEATED

MESSAGES: Mapping[str, Mapping[str, tuple[int, int | str, int]]] = {
    "Model": {"ir_version": (1, INT, ONE), "graph": (7, "Graph", ONE)},
    "Graph": {
        "node": (1, "Node", MANY),
        "initializer": (5, "Tensor", MANY),
        "input": (11, "ValueInfo", MANY),
        "output": (12, "ValueInfo", MANY),
    },
    "Node": {},
    "Tensor": {
        "name": (8, STRING, ONE),
        "external_data": (13, "Entry", MANY),
    },
    "Entry": {"key": (1, STRING, ONE), "value": (2, STRING, ONE)},
    "ValueInfo": {"name": (1, STRING, ONE), "type": (2, "Type", ONE)},
    "Type": {"tensor_type": (1, "TensorType", ONE)},
    "TensorType": {"elem_type": (1, INT32, ONE), "shape": (2, "Shape", ONE)},
    "Shape": {"dim": (1, "Dimension", MANY)},
    "Dimension": {"dim_value": (1, INT, ONE), "dim_param": (2, STRING, ONE)},
}
"""Number, type (a scalar or a message) and label of each field, by message."""

DATA_TYPES: Mapping[int, str] = {
    **{1: "TYPE_FP32", 2: "TYPE_UINT8", 3: "TYPE_INT8", 4: "TYPE_UINT16", 5: "TYPE_INT16"},
    **{6: "TYPE_INT32", 7: "TYPE_INT64", 8: "TYPE_STRING", 9: "TYPE_BOOL", 10: "TYPE_FP16"},
    **{11: "TYPE_FP64", 12: "TYPE_UINT32", 13: "TYPE_UINT64", 16: "TYPE_BF16"},
}
"""DataType of Triton's model_config.proto by TensorProto.DataType of ONNX."""

ANY = -1
"""Triton's number for a dimension of any size."""


@dataclass(frozen=True)
class TensorSignature:
    """An input or output of a graph."""

    name: str
    data_type: str
    """DataType of Triton's model_config.proto."""
    dims: tuple[int, ...] | None
    """Sizes, -1 for any size; None where the graph has no shape."""


@dataclass(frozen=True)
class GraphSignature:
    """Inputs, outputs and files of a graph, read without running it."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    weight_files: frozenset[str]
    """External files of weights, relative to the graph's folder."""


MOST_BYTES = 2**31 - 1


def read_signature(path: Path) -> GraphSignature:
    """Return the signature of a graph's file.

    Raises:
        ModelError: the file is missing, or is not an ONNX graph.
    """
    try:
        if not path.is_file():  # reading a device or a pipe might never end
            raise OSError("it is no file")
        if path.stat().st_size > MOST_BYTES:
            raise OSError(f"it has more than the {MOST_BYTES} bytes that protobuf reads")
        graph = _classes()["Model"].FromString(path.read_bytes()).graph
    # the last error is of protobuf's pure Python implementation
    except (OSError, DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no graph of ONNX: {error}. Export the model again.") from None
    if not graph.node or not graph.output:
        raise ModelError(f"{path} is no graph of ONNX: it has no nodes. Export the model again.")
    weights = {tensor.name for tensor in graph.initializer}
    return GraphSignature(
        # before version 4 of the format, weights were also inputs
        inputs=tuple(_signature(each) for each in graph.input if each.name not in weights),
        outputs=tuple(map(_signature, graph.output)),
        weight_files=frozenset(
            entry.value
            for tensor in graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        ),
    )


def _signature(value: Any) -> TensorSignature:
    tensor = value.type.tensor_type
    dims = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else ANY for dim in tensor.shape.dim
    )
    known = tensor.HasField("shape")
    return TensorSignature(value.name, _data_type(tensor.elem_type), dims if known else None)


def _data_type(number: int) -> str:
    return DATA_TYPES.get(number, f"type {number} of ONNX")


@functools.cache
def _classes() -> Mapping[str, Any]:
    """Return the classes of MESSAGES, in their own pool, separate from those of onnx."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, label) in fields.items():
            is_message = isinstance(kind, str)
            message.field.add(
                name=field,
                number=number,
                label=label,
                type=Scalar.TYPE_MESSAGE if is_message else kind,
                type_name=f".{PACKAGE}.{kind}" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }
