"""Ask by the codecs and the messages of the package mlserver, and write the answers as JSON.

It runs in an environment of its own, since mlserver needs another NumPy than the server's wheel.
Arguments: an HTTP URL, a gRPC address, the model's name, texts.
"""

import json
import sys
import urllib.request
from collections.abc import Iterator

import grpc
import numpy as np
from mlserver.codecs import NumpyCodec, StringCodec, StringRequestCodec
from mlserver.grpc import converters
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.types import InferenceRequest, InferenceResponse


def requests_of(texts: list[str]) -> Iterator[InferenceRequest]:
    yield InferenceRequest(inputs=[StringCodec.encode_input("TEXT", texts)])
    whole = StringRequestCodec.encode_request(texts)
    whole.inputs[0].name = "TEXT"
    yield whole
    array = np.array([[text] for text in texts])
    yield InferenceRequest(inputs=[NumpyCodec.encode_input("TEXT", array)])


def answer(response: InferenceResponse) -> tuple[list[str], list[list[float]]]:
    outputs = {each.name: each for each in response.outputs}
    labels = [str(label) for label in StringCodec.decode_output(outputs["LABEL"])]
    return labels, NumpyCodec.decode_output(outputs["LOGITS"]).tolist()


def rest(url: str, body: str) -> InferenceResponse:
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as response:
        return InferenceResponse(**json.load(response))


def main(http_url: str, grpc_url: str, model: str, *texts: str) -> None:
    answers = []
    for request in requests_of(list(texts)):
        # with null for every field that is not set
        whole = request.model_dump_json(exclude_none=False, exclude_unset=False)
        for body in (request.model_dump_json(), whole):
            answers.append(answer(rest(f"{http_url}/v2/models/{model}/infer", body)))
    with grpc.insecure_channel(grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for request in requests_of(list(texts)):
            for use_raw in (False, True):
                message = converters.ModelInferRequestConverter.from_types(
                    request, model_name=model, use_raw=use_raw
                )
                response = stub.ModelInfer(message)
                answers.append(answer(converters.ModelInferResponseConverter.to_types(response)))
    print(json.dumps(answers))


main(*sys.argv[1:])
