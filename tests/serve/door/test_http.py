"""The door's HTTP, by the clients that are published."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio

from tests.serve.door.fake_engine import RunningDoor, running_door

TEXTS = ["good pear", "bad pear", "plum"]
EXPECTED = ["positive", "negative", "unknown"]


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running_door() as door:
        yield door


def text_input(texts: list[str], binary: bool) -> Any:
    tensor = tritonclient.http.InferInput("TEXT", [len(texts), 1], "BYTES")
    array = np.array([[text.encode()] for text in texts], np.object_)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def labels(result: Any) -> list[str]:
    return [
        value.decode() if isinstance(value, bytes) else value
        for value in result.as_numpy("LABEL").reshape(-1)
    ]


@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("binary_in", [True, False])
def test_tritonclient_over_http(
    door: RunningDoor, binary_in: bool, binary_out: bool | None
) -> None:
    outputs = None
    if binary_out is not None:
        outputs = [
            tritonclient.http.InferRequestedOutput(name, binary_data=binary_out)
            for name in ("SCORE", "LABEL")
        ]
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{door.http_port}")
    result = client.infer(
        "classifier", [text_input(TEXTS, binary_in)], outputs=outputs, request_id="an id"
    )
    assert labels(result) == EXPECTED
    assert result.as_numpy("SCORE").tolist() == [[9], [8], [4]]
    assert (result.as_numpy("LOGITS") is None) is (outputs is not None)
    response = result.get_response()
    assert response["id"] == "an id" and response["model_name"] == "classifier"
    client.close()


def test_tritonclient_over_asyncio(door: RunningDoor) -> None:
    async def ask() -> list[str]:
        url = f"127.0.0.1:{door.http_port}"
        async with tritonclient.http.aio.InferenceServerClient(url) as client:
            assert await client.is_model_ready("classifier")
            results = await asyncio.gather(
                *(client.infer("classifier", [text_input([text], True)]) for text in TEXTS)
            )
        return [label for result in results for label in labels(result)]

    assert asyncio.run(ask()) == EXPECTED
