"""config.pbtxt of a Triton model, through protobuf so that it cannot be misspelt.

Input `TEXT` (and `TEXT_PAIR` for pair tasks), strings of shape [1]; outputs `LABEL` (string [1]),
`SCORE` (fp32 [1], the softmax probability of the label) and `LOGITS` (fp32 [labels]). Where words
have labels, `TEXT` is a sentence whose words are split at white space, and each output has one more
axis, the words, as long as the longest sentence of the request. `TRUNCATED` (bool [1]) is there
where the request asks for truncation.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format  # type: ignore[import-untyped]

from bertender.core.card import Card
from bertender.problems import PROBLEMS, Tensor
from serve.backend_parameters import BackendParameters
from serve.config import ServeConfig
from serve.served_runtimes import ENCODER_NAME, SERVED_RUNTIMES
from serve.wire import INPUT_NAMES, MODEL_NAME, TRUNCATED

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as triton

__all__ = [
    "CONFIG_NAME",
    "ENCODER_ARTIFACT",
    "FIRST_VERSION",
    "config_of_version",
    "model_config",
    "only_version",
    "read_model_config",
    "triton",
    "write_model_config",
]

CONFIG_NAME = "config.pbtxt"
FIRST_VERSION = 1

OF_THE_ARTIFACT = ("digest", "stamp", "problem_type", "longest_input")
"""Parameters that are no settings."""


CLASSES = "tritonclient.grpc.model_config_pb2"


def _without_grpc() -> ModuleType:
    """Return tritonclient's classes of config.pbtxt.

    Importing them by name imports gRPC too, which `serve` would hold in memory unused.
    """
    if CLASSES in sys.modules:
        return sys.modules[CLASSES]
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        return importlib.import_module(CLASSES)  # it reports what is missing
    file = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location(CLASSES, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    triton = _without_grpc()

ENCODER_ARTIFACT = f"../../{ENCODER_NAME}/{FIRST_VERSION}"
"""From the classifier's version: the artifact is there once, where Triton's backend reads it."""

WAS_TRUNCATED = Tensor(TRUNCATED, "TYPE_BOOL", lambda labels: (1,))


def model_config(
    card: Card,
    config: ServeConfig,
    digest: str | None = None,
    stamp: str | None = None,
    *,
    name: str = MODEL_NAME,
    longest_input: int | None = None,
    encoder_inputs: tuple[str, ...] = (),
) -> triton.ModelConfig:
    """Return the Triton configuration of an artifact with this card and digest.

    Args:
        card: of the artifact.
        config: settings of Triton and the backend.
        digest: of the artifact.
        stamp: of its files, where their digests were checked.
        name: of the model on the server.
        longest_input: most tokens that its tokenizer states.
        encoder_inputs: of the Triton model that runs the graph, where the runtime is Triton's.
    """
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
        problem_type=card.task.problem_type,
        **_encoder(config, encoder_inputs),
    )
    return triton.ModelConfig(
        name=name,
        backend="python",
        version_policy=only_version(FIRST_VERSION),
        max_batch_size=config.max_batch_size,
        input=[_input(name) for name in INPUT_NAMES[: len(card.task.text_columns)]],
        output=[
            _output(each, len(card.task.labels))
            for each in (*PROBLEMS[card.task.problem_type].endpoint.outputs, WAS_TRUNCATED)
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


def only_version(version: int) -> triton.ModelVersionPolicy:
    """Return the policy that serves one version: a newer one next to it changes nothing yet."""
    specific = triton.ModelVersionPolicy.Specific(versions=[version])
    return triton.ModelVersionPolicy(specific=specific)


def config_of_version(
    served: triton.ModelConfig, fresh: triton.ModelConfig, name: str, version: int
) -> triton.ModelConfig:
    """Return the configuration of another artifact with the settings of a served one.

    Args:
        served: its settings stay: batches, copies of the model, bounds of the queue.
        fresh: of the new artifact, by `model_config`: its inputs, outputs and digest are taken.
        name: of the model on the server.
        version: that shall be served.
    """
    config = triton.ModelConfig()
    config.CopyFrom(served)
    config.name = name
    config.version_policy.CopyFrom(only_version(version))
    for tensors in ("input", "output"):
        config.ClearField(tensors)
        getattr(config, tensors).extend(getattr(fresh, tensors))
    for parameter in OF_THE_ARTIFACT:
        config.parameters.pop(parameter, None)
        if parameter in fresh.parameters:
            config.parameters[parameter].CopyFrom(fresh.parameters[parameter])
    return config


def _encoder(config: ServeConfig, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings that are there only where another Triton model runs the graph."""
    if SERVED_RUNTIMES[config.runtime].triton_backend is None:
        return {}
    return {"artifact": ENCODER_ARTIFACT, "encoder": ENCODER_NAME, "encoder_inputs": inputs}


def write_model_config(path: Path, config: triton.ModelConfig) -> None:
    """Write a configuration as protobuf text."""
    path.write_text(text_format.MessageToString(config), encoding="utf-8")


def read_model_config(path: Path) -> triton.ModelConfig:
    """Read a config.pbtxt back."""
    return text_format.Parse(path.read_text(encoding="utf-8"), triton.ModelConfig())


def _input(name: str) -> triton.ModelInput:
    return triton.ModelInput(name=name, data_type=triton.TYPE_STRING, dims=[1])


def _output(tensor: Tensor, labels: int) -> triton.ModelOutput:
    data_type = getattr(triton, tensor.triton_type)
    return triton.ModelOutput(name=tensor.name, data_type=data_type, dims=tensor.dims(labels))
