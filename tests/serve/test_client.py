"""The endpoint answers as the local model does, over both protocols, alone and in a crowd."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import bertender
from bertender.core.errors import ConfigError, DataError, ServingError
from bertender.models.classifier import Classifier
from bertender.text.batch import Example, keep_text
from serve.client.endpoint import (
    AsyncEndpoint,
    Classification,
    Endpoint,
    ServedPredictor,
    classify,
)
from serve.client.protocols import PROTOCOLS
from serve.server.server import Server
from serve.wire import MODEL_NAME
from tests.serve.scripted import SERVERS, Script

server_test = pytest.mark.server


def url_of(server: Server, protocol: str) -> str:
    return {"http": server.http_url, "grpc": server.grpc_url}[protocol]


@server_test
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_equal_the_local_model(
    served: Server, local: Classifier, texts: tuple[Example, ...], protocol: str
) -> None:
    answers = classify(texts, url_of(served, protocol))
    expected = np.concatenate([local.logits([example]) for example in texts])
    np.testing.assert_allclose([answer.logits for answer in answers], expected, atol=1e-5)
    assert [answer.label for answer in answers] == [
        local.labels[row] for row in expected.argmax(axis=1)
    ]
    probabilities = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        [answer.score for answer in answers], probabilities.max(axis=1), atol=1e-5
    )


@server_test
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_sent_at_once_come_back_in_order(
    served: Server, local: Classifier, texts: tuple[Example, ...], protocol: str
) -> None:
    async def ask() -> list[Classification]:
        async with AsyncEndpoint(url_of(served, protocol), batch_size=3) as endpoint:
            return await endpoint.classify(texts)

    expected = np.concatenate([local.logits([example]) for example in texts])
    logits = [each.logits for each in asyncio.run(ask())]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@server_test
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_served_predictor_measures_as_any_other(
    served: Server, local: Classifier, texts: tuple[Example, ...], protocol: str
) -> None:
    with Endpoint(url_of(served, protocol)) as endpoint:
        assert endpoint.batch_size == 16
        logits = ServedPredictor(endpoint).logits(keep_text(texts[:40]))
    np.testing.assert_allclose(logits, local.logits(texts[:40]), atol=1e-5)


@server_test
@pytest.mark.data
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_equal_the_local_model_on_a_real_dev_set(
    served: Server, local: Classifier, data_directory: Path, protocol: str
) -> None:
    rows = (data_directory / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sentences = [(row.split("\t")[0],) for row in rows]
    answers = classify(sentences, url_of(served, protocol))
    expected = np.concatenate([local.logits([sentence]) for sentence in sentences])
    assert len(answers) == 872
    np.testing.assert_allclose([answer.logits for answer in answers], expected, atol=1e-5)


@server_test
@pytest.mark.parametrize(("asked", "used"), [(None, 16), (5, 5), (500, 16)])
def test_requests_stay_within_what_the_model_takes(
    served: Server, local: Classifier, asked: int | None, used: int
) -> None:
    with Endpoint(served.http_url, batch_size=asked) as endpoint:
        assert endpoint.batch_size == used
        assert len(endpoint.classify([("apple",)] * 33)) == 33


def test_a_client_loads_neither_pytorch_nor_transformers() -> None:
    script = "import sys, serve.client; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


@server_test
def test_a_crowd_of_mixed_lengths_gets_the_right_answers(
    served: Server, local: Classifier, texts: tuple[Example, ...]
) -> None:
    expected = np.concatenate([local.logits([example]) for example in texts])
    protocols = itertools.cycle(PROTOCOLS)
    clients = 6

    def ask(client: int, protocol: str) -> float:
        with Endpoint(url_of(served, protocol)) as endpoint:
            own = range(client, len(texts), clients)
            answers = np.concatenate([endpoint.logits([texts[row]]) for row in own])
        return float(np.abs(answers - expected[list(own)]).max())

    with ThreadPoolExecutor(clients) as pool:
        differences = list(pool.map(ask, range(clients), protocols))
    assert max(differences) < 1e-5


@server_test
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("value", "said"), [(b"\xff\xfe", "not UTF-8"), (b" ", "is empty")])
def test_the_server_names_what_is_wrong_and_goes_on(
    served: Server, protocol: str, value: bytes, said: str
) -> None:
    with Endpoint(url_of(served, protocol)) as endpoint:
        tensor = endpoint.protocol.tensor("TEXT", [2, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"fine"], [value]], np.object_))
        with pytest.raises(InferenceServerException, match=f"TEXT row 1 .*{said}"):
            endpoint.protocol.infer(endpoint.client, MODEL_NAME, [tensor], 20, {})
        assert len(endpoint.classify([("apple",)])) == 1


@server_test
def test_a_bad_example_is_refused_by_its_row(served: Server) -> None:
    with pytest.raises(DataError, match="TEXT row 17 is empty"):
        classify([("apple",)] * 17 + [("",)], served.http_url)


@server_test
def test_no_examples_give_no_answers(served: Server) -> None:
    assert classify([], served.http_url) == []


@server_test
@pytest.mark.parametrize(
    ("scheme", "wrong", "said"),
    [
        ("http", "grpc_port", "no endpoint responds at {url} .*bertender serve"),
        ("grpc", "http_port", "no endpoint responds at {url} .*bertender serve"),
        ("http", "metrics_port", r"the server at {url} refused: .*there is nothing here"),
    ],
)
def test_the_wrong_port_is_explained(served: Server, scheme: str, wrong: str, said: str) -> None:
    url = f"{scheme}://127.0.0.1:{getattr(served.config, wrong)}"
    with pytest.raises(ServingError, match=said.format(url=url)):
        classify([("apple",)], url, timeout_s=5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_at_the_url_is_explained(protocol: str) -> None:
    with socket.socket() as bound:  # held, but nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"{protocol}://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ServingError, match=f"no endpoint responds at {url} .*--url"):
            classify([("apple",)], url, timeout_s=5)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("htp://127.0.0.1:8000", "no protocol 'htp'. Did you mean 'http'"),
        ("http://", "names no host"),
        ("httpss://127.0.0.1:8443", "no protocol 'httpss'. Did you mean 'https'"),
        ("http://127.0.0.1:8000/v2", "the path 'v2', which no request"),
        ("127.0.0.1:8000/v2", "the path 'v2', which no request"),
        ("grpc://shop@127.0.0.1:8001", "the user 'shop', which no request"),
        ("http://127.0.0.1:8000?key=hidden", "the query after its question mark, which"),
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://[::1:8000", "Invalid IPv6 URL"),
    ],
)
def test_what_is_no_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Endpoint(url)


@pytest.mark.parametrize("port", ["8443", "99999", "none"])
def test_a_password_in_a_url_is_not_shown(port: str) -> None:
    with pytest.raises(ConfigError, match="the user 'shop', which no request") as raised:
        Endpoint(f"https://shop:hidden@example.com:{port}")
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("one text", 'Give a list: ["a text"]'),
        (7, 'Give a list: ["a text"]'),
        ({"text": "a"}, 'Give a list: ["a text"]'),
        (iter([7]), "row 0 is 7 (int). Give a text"),
        ([7], "row 0 is 7 (int). Give a text"),
        (["fine", ("a", 7)], "row 1 has 7 (int) among its texts"),
        (["fine", None], "row 1 is None. Give a text"),
        ([b"fine"], "row 0 is b'fine' (bytes). Decode it"),
        (["x", ("a", b"b")], "row 1 has b'b' (bytes) among its texts. Decode it"),
    ],
)
def test_what_is_no_list_of_texts_is_refused_before_anything_is_sent(
    texts: Any, words: str
) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        bertender.classify(texts, "http://127.0.0.1:9")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_text_alone_is_an_example_of_one(protocol: str) -> None:
    texts = ["apple saw", ("plum drill",)]

    async def ask(url: str) -> list[Classification]:
        async with AsyncEndpoint(url) as endpoint:
            with pytest.raises(DataError, match="row 0 is None"):
                await endpoint.classify([None])  # type: ignore[list-item]
            return await endpoint.classify(texts)  # type: ignore[arg-type]

    with SERVERS[protocol](Script()) as url:
        with Endpoint(url) as endpoint:
            answers = endpoint.classify(texts)  # type: ignore[arg-type]
            logits = endpoint.logits(texts)  # type: ignore[arg-type]
            for wrong in ("apple saw", [b"apple"], [("apple", "saw")]):
                with pytest.raises(DataError, match=r"Give a list|Decode it|takes 1 an example"):
                    endpoint.classify(wrong)  # type: ignore[arg-type]
        assert [each.label for each in answers] == ["apple", "plum"] and len(logits) == 2
        assert asyncio.run(ask(url)) == answers
