"""Ask by the clients of the package kserve, and write the answers as JSON.

It runs in an environment of its own, since kserve needs another NumPy than the server's wheel.
Arguments: an HTTP URL, a gRPC address, the model's name, texts.
"""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig


def request(model: str, texts: list[str], binary: bool) -> InferRequest:
    tensor = InferInput("TEXT", [len(texts), 1], "BYTES")
    array = np.array([[text.encode()] for text in texts], np.object_)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor], request_id="an id")


def answer(response: object) -> tuple[list[str], list[list[float]]]:
    outputs = {each.name: each.as_numpy() for each in response.outputs}  # type: ignore[attr-defined]
    labels = outputs["LABEL"].reshape(-1)
    decoded = [each if isinstance(each, str) else each.decode() for each in labels]
    return decoded, outputs["LOGITS"].tolist()


async def main(http_url: str, grpc_url: str, model: str, *texts: str) -> None:
    answers = []
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        assert await rest.is_server_ready(http_url)
        assert await rest.is_server_live(http_url)
        assert await rest.is_model_ready(http_url, model)
        for binary in (True, False):
            asked = request(model, list(texts), binary)
            answers.append(answer(await rest.infer(http_url, asked, model_name=model)))
    async with InferenceGRPCClient(grpc_url) as client:
        assert await client.is_server_ready()
        assert await client.is_server_live()
        assert await client.is_model_ready(model)
        for binary in (True, False):
            answers.append(answer(await client.infer(request(model, list(texts), binary))))
    print(json.dumps(answers))


asyncio.run(main(*sys.argv[1:]))
