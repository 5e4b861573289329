"""Requests of every category of a Triton server's routes, by both protocols."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

__all__ = ["GRPC_ROUTES", "HTTP_ROUTES", "ask_grpc", "ask_http"]

REGION = '{"key": "/none", "offset": 0, "byte_size": 8}'
HTTP_ROUTES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "shared-memory": (
        ("GET", "/v2/systemsharedmemory/status", ""),
        ("GET", "/v2/cudasharedmemory/status", ""),
        ("POST", "/v2/systemsharedmemory/unregister", ""),
    ),
    "model-repository": (("POST", "/v2/repository/index", "{}"),),
    "statistics": (
        ("GET", "/v2/models/stats", ""),
        ("GET", "/v2/models/classifier/stats", ""),
        ("GET", "/v2/models/classifier/versions/1/stats", ""),
    ),
    "trace": (
        ("GET", "/v2/trace/setting", ""),
        ("GET", "/v2/models/classifier/trace/setting", ""),
        ("POST", "/v2/trace/setting", '{"trace_level": ["OFF"]}'),
    ),
    "logging": (("GET", "/v2/logging", ""), ("POST", "/v2/logging", '{"log_verbose_level": 0}')),
}
"""Method, path and body of requests that a server answers by 200 where they are allowed."""

GRPC_ROUTES: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "shared-memory": (
        ("SystemSharedMemoryStatus", {}),
        ("CudaSharedMemoryStatus", {}),
        ("SystemSharedMemoryUnregister", {}),
    ),
    "model-repository": (("RepositoryIndex", {}),),
    "statistics": (("ModelStatistics", {}), ("ModelStatistics", {"name": "classifier"})),
    "trace": (("TraceSetting", {}), ("TraceSetting", {"model_name": "classifier"})),
    "logging": (("LogSettings", {}),),
}
"""Method and fields of its request, likewise."""


def ask_http(
    port: int,
    method: str,
    path: str,
    body: str | bytes = "",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return the status and the body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask_grpc(
    port: int, method: str, fields: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> grpc.StatusCode:
    """Return the status of the answer."""
    request = getattr(service_pb2, f"{method}Request")(**fields)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            getattr(stub, method)(request, metadata=tuple((metadata or {}).items()), timeout=10)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK
