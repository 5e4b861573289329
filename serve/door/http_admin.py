"""Administrative routes of HTTP, for who has the token.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from serve.door.engine import UNSUPPORTED, RefusedError
from serve.door.http_reading import body_of, json_response
from serve.door.requests import invalid
from serve.door.service import ADMIN_HEADER, Door

MOST_BODY_BYTES = 64 * 1024
MODEL = "/v2/repository/models/{model}"
CLOSED = (
    "/v2/models/stats",
    "/v2/models/{model}/stats",
    "/v2/models/{model}/versions/{version}/stats",
    "/v2/models/{model}/trace/setting",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/{rest:path}",
    "/v2/cudasharedmemory/{rest:path}",
    "/v2/repository/{rest:path}",
)
"""Routes of Triton that the door does not have."""


class Ready(msgspec.Struct):
    """The body of a request for the index."""

    ready: bool = False


class Parameters(msgspec.Struct):
    """The body of a request to load or unload a model."""

    parameters: dict[str, object] | None = None


def admin_routes(door: Door) -> list[BaseRoute]:
    """Return the routes."""
    admin = Admin(door)
    return [
        Route("/v2/repository/index", admin.index, methods=["POST"]),
        Route(f"{MODEL}/load", admin.load, methods=["POST"]),
        Route(f"{MODEL}/unload", admin.unload, methods=["POST"]),
        *(Route(path, admin.closed, methods=["GET", "POST"]) for path in CLOSED),
    ]


class Admin:
    """The routes."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def index(self, request: Request) -> Response:
        only_ready = (await self._body(request, Ready)).ready
        states = await self.door.engine.repository()
        found = []
        for each in states:
            if each.state == "READY" or not only_ready:
                about = {"version": each.version, "state": each.state, "reason": each.reason}
                found.append({"name": each.name, **{key: own for key, own in about.items() if own}})
        return json_response(found)

    async def load(self, request: Request) -> Response:
        if (await self._body(request, Parameters)).parameters:
            raise invalid("a model is loaded as its folder is, without parameters.")
        await self.door.engine.load(request.path_params["model"])
        return Response()

    async def unload(self, request: Request) -> Response:
        await self._body(request, Parameters)
        await self.door.engine.unload(request.path_params["model"])
        return Response()

    async def closed(self, request: Request) -> Response:
        self.door.check_admin(request.headers.get(ADMIN_HEADER))
        raise RefusedError(UNSUPPORTED, f"{request.url.path} is not served here.")

    async def _body(self, request: Request, kind: type[msgspec.Struct]) -> Any:
        self.door.check_admin(request.headers.get(ADMIN_HEADER))
        receive, hold = request.receive, self.door.hold
        async with body_of(request.headers, receive, MOST_BODY_BYTES, hold) as body:
            try:
                return msgspec.json.decode(body or b"{}", type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise invalid(f"the body is not what this route takes: {error}.") from None
