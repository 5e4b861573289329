"""Senders: requests as bytes that were made before, over connections that stay open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import grpc.aio
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from serve.client.access import Access
from serve.client.address import Address
from serve.client.failures import LATE, OVERLOADED, Failure
from serve.client.grpc import CHANNEL_OPTIONS, GRPC, credentials
from serve.client.http import HTTP
from serve.client.protocol import TRUNCATING
from serve.client.served_model import Columns, ServedModel
from serve.loadtest.records import Outcome
from serve.wire import INPUT_NAMES

__all__ = ["SENDERS", "GrpcSender", "HttpSender", "Request", "Sender"]

MOST_CONNECTIONS = 500
"""Fewer than the descriptors that `select` takes."""
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Request:
    """A request that only needs to be sent."""

    model: str
    """Its name on the server."""
    body: bytes
    headers: Mapping[str, str]


class Sender(Protocol):
    """Sends prepared requests to one server."""

    def prepare(self, model: ServedModel, columns: Columns) -> Request: ...

    async def send(self, request: Request) -> Outcome: ...

    async def close(self) -> None: ...


def _outcome(failure: Failure | None) -> Outcome:
    outcomes: dict[Failure | None, Outcome] = {OVERLOADED: "rejected", LATE: "late"}
    return outcomes.get(failure, "failed")


class HttpSender:
    """Over HTTP/1.1, a connection for each request that is under way."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        scheme = "https" if address.tls else "http"
        self.url = f"{scheme}://{address.host_and_port}/v2/models"
        self.timeout_s = timeout_s
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, ssl=access.context or True),
            headers=access.headers,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    def prepare(self, model: ServedModel, columns: Columns) -> Request:
        inputs = model.tensors(columns, HTTP.tensor)
        generate = tritonclient.http.InferenceServerClient.generate_request_body
        body, json_size = generate(inputs, parameters=TRUNCATING)
        return Request(model.name, body, {"Inference-Header-Content-Length": str(json_size)})

    async def send(self, request: Request) -> Outcome:
        try:
            async with asyncio.timeout(self.timeout_s):
                url, headers = f"{self.url}/{request.model}/infer", request.headers
                async with self.session.post(url, data=request.body, headers=headers) as response:
                    await response.read()
        except (OSError, aiohttp.ClientError) as error:
            return _outcome(HTTP.failure(error))
        if response.status == 200:
            return "ok"
        return _outcome(HTTP.failure(InferenceServerException("", status=str(response.status))))

    async def close(self) -> None:
        await self.session.close()


class GrpcSender:
    """Over one HTTP/2 connection."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.metadata = tuple(access.headers.items())
        tls, place = credentials(access), address.host_and_port
        self.channel = (
            grpc.aio.secure_channel(place, tls, options=CHANNEL_OPTIONS)
            if tls
            else grpc.aio.insecure_channel(place, options=CHANNEL_OPTIONS)
        )
        self.infer: Any = self.channel.unary_unary(INFER)  # bytes in, bytes out

    def prepare(self, model: ServedModel, columns: Columns) -> Request:
        request = service_pb2.ModelInferRequest(model_name=model.name)
        for name, value in TRUNCATING.items():
            request.parameters[name].bool_param = value
        for name, column in zip(INPUT_NAMES, columns, strict=False):
            request.inputs.add(name=name, datatype="BYTES", shape=column.shape)
            request.raw_input_contents.append(serialize_byte_tensor(column).item())
        return Request(model.name, request.SerializeToString(), {})

    async def send(self, request: Request) -> Outcome:
        try:
            await self.infer(request.body, timeout=self.timeout_s, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            status = InferenceServerException(error.details(), status=str(error.code()))
            return _outcome(GRPC.failure(status))
        return "ok"

    async def close(self) -> None:
        await self.channel.close()


SENDERS: Mapping[str, Callable[[Address, Access, float], Sender]] = {
    "http": HttpSender,
    "grpc": GrpcSender,
}
"""By the name of the protocol: (address, access, timeout in seconds) -> a sender."""
