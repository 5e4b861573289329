"""config.pbtxt says what the artifact and the settings say, and reads back equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as triton

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from serve.config import BackendParameters, ServeConfig
from serve.repository.config_pbtxt import model_config, read_model_config, write_model_config

SETTINGS = ServeConfig(
    max_batch_size=7,
    queue_delay_us=345,
    instances=3,
    concurrent_buckets=2,
    tokens_per_bucket=99,
    threads_per_instance=2,
    max_length=48,
    max_text_bytes=500,
    queue_timeout_ms=70.5,
)


def test_it_reads_back_equal(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = model_config(onnx_artifact.card, SETTINGS)
    write_model_config(tmp_path / "config.pbtxt", config)
    assert read_model_config(tmp_path / "config.pbtxt") == config


def test_grpc_is_not_loaded_for_it() -> None:
    """Its classes are those of tritonclient all the same."""
    script = (
        "import sys, bertender.cli.serving, serve.repository.config_pbtxt as own; "
        "print('grpc' in sys.modules); "
        "from tritonclient.grpc import model_config_pb2 as theirs; "
        "print(own.triton.ModelConfig is theirs.ModelConfig)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_settings_reach_triton(onnx_artifact: Artifact) -> None:
    config = model_config(onnx_artifact.card, SETTINGS)
    assert (config.name, config.backend, config.max_batch_size) == ("classifier", "python", 7)
    assert config.dynamic_batching.max_queue_delay_microseconds == 345
    assert config.HasField("dynamic_batching")
    (group,) = config.instance_group
    assert (group.kind, group.count) == (triton.ModelInstanceGroup.KIND_CPU, 3)


def test_dynamic_batching_stays_on_without_a_delay(onnx_artifact: Artifact) -> None:
    config = model_config(onnx_artifact.card, ServeConfig(queue_delay_us=0))
    assert config.HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("fixture", "inputs"),
    [("onnx_artifact", ["TEXT"]), ("pair_artifact", ["TEXT", "TEXT_PAIR"])],
)
def test_tensors_follow_the_task(
    fixture: str, inputs: list[str], request: pytest.FixtureRequest
) -> None:
    artifact = request.getfixturevalue(fixture)
    config = model_config(artifact.card, ServeConfig())
    assert [tensor.name for tensor in config.input] == inputs
    assert {(tensor.data_type, tuple(tensor.dims)) for tensor in config.input} == {
        (triton.TYPE_STRING, (1,))
    }
    assert [(tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in config.output] == [
        ("LABEL", triton.TYPE_STRING, (1,)),
        ("SCORE", triton.TYPE_FP32, (1,)),
        ("LOGITS", triton.TYPE_FP32, (2,)),
        ("TOKENS", triton.TYPE_INT32, (1,)),
        ("TRUNCATED", triton.TYPE_BOOL, (1,)),
    ]


@pytest.mark.parametrize("max_length", [None, 48])
def test_the_backend_reads_its_parameters_back(
    onnx_artifact: Artifact, max_length: int | None
) -> None:
    settings = SETTINGS.model_copy(update={"max_length": max_length})
    config = model_config(onnx_artifact.card, settings)
    as_triton_gives_it = json_format.MessageToDict(config, preserving_proto_field_name=True)
    assert BackendParameters.from_model_config(as_triton_gives_it) == BackendParameters(
        artifact="artifact",
        tokens_per_bucket=99,
        threads=2,
        concurrent_buckets=2,
        max_length=max_length,
        max_text_bytes=500,
        max_queue_texts=28,
        queue_timeout_ms=70.5,
    )


def test_the_encoder_is_a_parameter_where_it_is_another_model(onnx_artifact: Artifact) -> None:
    settings = SETTINGS.model_copy(update={"runtime": "triton-onnxruntime"})
    inputs = ("input_ids", "attention_mask")
    config = model_config(onnx_artifact.card, settings, encoder_inputs=inputs)
    assert config.parameters["encoder_inputs"].string_value == "input_ids,attention_mask"
    as_triton_gives_it = json_format.MessageToDict(config, preserving_proto_field_name=True)
    parameters = BackendParameters.from_model_config(as_triton_gives_it)
    assert (parameters.encoder, parameters.encoder_inputs) == ("classifier-encoder", inputs)
    assert parameters.artifact == "../../classifier-encoder/1"
    plain = model_config(onnx_artifact.card, SETTINGS)
    assert not {"encoder", "encoder_inputs"} & set(plain.parameters)


def test_a_misspelt_parameter_is_refused() -> None:
    config = {"parameters": {"tokens_per_buckets": {"string_value": "9"}}}
    with pytest.raises(ConfigError, match="tokens_per_bucket'"):
        BackendParameters.from_model_config(config)
