"""The door's HTTP, a Starlette application: the Open Inference Protocol and administrative routes.

https://github.com/kserve/open-inference-protocol
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import re
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.door.engine import Code, Model, RefusedError
from serve.door.http_bodies import (
    ClientGoneError,
    body_of,
    json_response,
    read_request,
    unless_gone,
    write_response,
)
from serve.door.records import Visit
from serve.door.requests import checked, invalid, most_body_bytes
from serve.door.service import EXTENSIONS, FAILURE, SERVER_NAME, SERVER_VERSION, Door, platform_of
from serve.wire import ADMIN_HEADER, HEADER_LENGTH, width_of

logger = logging.getLogger(__name__)

PORT = re.compile(r":\d+$")


def http_app(door: Door, more_routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the HTTP application.

    Args:
        door: part shared by both protocols.
        more_routes: additional routes, of pages.
    """

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        door.records.refuse("http", error.code.http_status)
        return refusal(error)

    async def not_there(request: Request, error: Exception) -> Response:
        response = await _not_there(request, error)
        door.records.refuse("http", response.status_code)
        return response

    metadata = Metadata(door)
    infer = Infer(door)
    starts = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    routes: list[BaseRoute] = [  # searched in this order, the busiest first
        *(Route(f"{start}/infer", infer, methods=["POST"]) for start in starts),
        Route("/v2/health/live", metadata.live),
        Route("/v2/health/ready", metadata.ready),
        Route("/v2", metadata.server),
        Route("/v2/", metadata.server),
        *admin_routes(door),
    ]
    for start in starts:
        routes += [
            Route(f"{start}/ready", metadata.model_ready),
            Route(f"{start}/config", metadata.model_config),
            Route(start, metadata.model),
        ]
    middleware = []
    if origins := door.settings.allow_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", HEADER_LENGTH],
                expose_headers=[HEADER_LENGTH, "retry-after"],
            )
        )
    app = Starlette(
        routes=[*routes, *more_routes],
        middleware=middleware,
        exception_handlers={
            HTTPException: not_there,
            RefusedError: refused,
            Exception: _failed,
        },
    )
    # a redirect would take host and scheme from the request: behind TLS, to http with the key
    app.router.redirect_slashes = False
    return CloseWhenLeaving(LocalNamesOnly(app, door) if door.settings.has_own_names else app, door)


class LocalNamesOnly:
    """Only answers requests to names of this machine, if no others are expected.

    A foreign page can point its own name to 127.0.0.1 after loading (DNS rebinding), and then
    shares the server's origin. An address cannot be redirected.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_foreign(Headers(scope=scope).get("host", "")):
            error = RefusedError(
                Code.FORBIDDEN,
                "this server answers only by the names of this machine. Ask it as localhost, or "
                "start it with --api-keys, or with --behind-proxy where a proxy has another name.",
            )
            self.door.records.refuse("http", error.code.http_status)
            await refusal(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)


@functools.lru_cache(64)
def is_foreign(host: str) -> bool:
    """Return whether a Host header may be the name of a foreign page: it has a dot, and is not this
    machine's."""
    name = PORT.sub("", host).lower().rstrip(".")
    own = name == socket.gethostname().lower() or name.endswith(".localhost")
    return "." in name and not own and not _is_address(name.strip("[]"))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def metrics_app(door: Door) -> ASGIApp:
    """Return the application for the metrics port: the door's metrics, then the engine's."""

    reading: asyncio.Task[str] | None = None

    async def read() -> str:
        return door.records.exposition() + await door.engine.metrics()

    async def metrics(request: Request) -> Response:
        # requests at once share their content: each would take the time of other callers, and a
        # thread that the watch needs while Triton hangs
        nonlocal reading
        if reading is None or reading.done():
            reading = asyncio.create_task(read())
        return PlainTextResponse(await asyncio.shield(reading))

    app = Starlette(
        routes=[Route("/metrics", metrics)], exception_handlers={HTTPException: _not_there}
    )
    app.router.redirect_slashes = False
    return app


class CloseWhenLeaving:
    """Closes connections after a response once the door is leaving, so that clients reconnect
    elsewhere and lose no request."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            # the door may have begun to leave meanwhile
            if self.door.leaving and message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])["connection"] = "close"
            try:
                await send(message)
            except RuntimeError as error:
                # raised by uvloop after dropping a client that does not read
                if "closed" not in str(error):
                    raise

        await self.app(scope, receive, closing)


def connection_of(scope: Scope, door: Door) -> str:
    """Return the name of a request's connection, or of the one to the proxy."""
    client = scope.get("client")
    own = f"{client[0]}:{client[1]}" if client else "unknown"
    return door.connection(own, Headers(scope=scope).getlist("x-forwarded-for"))


def refusal(error: RefusedError) -> Response:
    """Return the response to a refused request."""
    headers = {}
    if error.retry_after_s is not None or error.code == Code.UNAVAILABLE:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 0)))
    if error.code.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response({"error": error.reason}, error.code.http_status, headers)


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "there is nothing here", 405: "the method is not allowed here"}
    content = {"error": reason.get(error.status_code, error.detail)}
    return json_response(content, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return json_response({"error": FAILURE}, Code.FAILED.http_status)


class Metadata:
    """Routes that describe the server and its models."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def live(self, request: Request) -> Response:
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        return self._readiness({})

    async def server(self, request: Request) -> Response:
        self._check_key(request)
        return json_response(
            {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": EXTENSIONS}
        )

    async def model_ready(self, request: Request) -> Response:
        return self._readiness({"name": (await self._model(request)).name})

    async def model(self, request: Request) -> Response:
        model = await self._model(request)
        outputs = model.outputs.items()
        return json_response(
            {
                "name": model.name,
                "versions": [model.version],
                "platform": platform_of(model),
                "inputs": [
                    {"name": name, "datatype": "BYTES", "shape": [-1, width_of(name)]}
                    for name in model.inputs
                ],
                "outputs": [
                    {"name": name, "datatype": datatype, "shape": [-1, *shape]}
                    for name, (datatype, shape) in outputs
                ],
            }
        )

    async def model_config(self, request: Request) -> Response:
        return json_response((await self._model(request)).config)

    def _readiness(self, of: Mapping[str, str]) -> Response:
        # most clients read the status, those of KServe the body
        is_ready = self.door.is_ready
        return json_response({**of, "ready": is_ready}, 200 if is_ready else 503)

    async def _model(self, request: Request) -> Model:
        self._check_key(request)
        path = request.path_params
        return await self.door.model(path["model"], path.get("version", ""))

    def _check_key(self, request: Request) -> None:
        self.door.callers.caller(
            request.headers.get("authorization"), connection_of(request.scope, self.door)
        )


class Infer:
    """The inference route, without Starlette's Request: fast, and it notices a disconnected
    client."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response
        try:
            with self.door.records.visit("http", connection_of(scope, self.door)) as visit:
                response = await self._response(visit, scope, receive)
        except ClientGoneError:
            return
        except RefusedError as error:
            error.__traceback__ = None  # a cycle with its frames, which hold the body
            response = refusal(error)
        except Exception:
            logger.exception("request %s failed", visit.number)
            response = json_response({"error": FAILURE}, Code.FAILED.http_status)
        await response(scope, receive, send)

    async def _response(self, visit: Visit, scope: Scope, receive: Receive) -> Response:
        door = self.door
        headers = Headers(scope=scope)
        visit.headers = scope["headers"]
        caller = door.callers.caller(headers.get("authorization"), visit.connection)
        visit.key = caller.key.name if caller.key else None
        path = scope["path_params"]
        asked_for = path["model"], path.get("version", "")
        model = await door.model(*asked_for)
        visit.model = model.name
        header_length = headers.get(HEADER_LENGTH)
        most = most_body_bytes(model, is_json=header_length is None)
        async with body_of(headers, receive, most, door.hold) as body:
            model = await door.model(*asked_for)  # a deployment may have replaced it meanwhile
            visit.number = number = door.number()
            draft = read_request(body, header_length)
            asked = checked(draft, model, number, caller.name, is_http=True)
        del body, draft  # a waiting request only holds its tensors
        visit.id = asked.id
        work = asyncio.ensure_future(door.infer(visit, asked, model, caller))
        outputs = await unless_gone(work, receive)
        content, more = write_response(asked, model, outputs)
        return Response(content, headers=more)


MOST_ADMIN_BODY_BYTES = 64 * 1024
REPOSITORY_MODEL = "/v2/repository/models/{model}"
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
"""Routes of Triton that the door refuses."""


class IndexBody(msgspec.Struct):
    """The body of a request for the index."""

    ready: bool = False


class LoadBody(msgspec.Struct):
    """The body of a request to load or unload a model."""

    parameters: dict[str, object] | None = None


def admin_routes(door: Door) -> list[BaseRoute]:
    """Return the administrative routes."""
    admin = Admin(door)
    return [
        Route("/v2/repository/index", admin.index, methods=["POST"]),
        Route(f"{REPOSITORY_MODEL}/load", admin.load, methods=["POST"]),
        Route(f"{REPOSITORY_MODEL}/unload", admin.unload, methods=["POST"]),
        *(Route(path, admin.closed, methods=["GET", "POST"]) for path in CLOSED),
    ]


class Admin:
    """Administrative routes: index, load, unload; Triton's other routes are refused."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def index(self, request: Request) -> Response:
        only_ready = (await self._body(request, IndexBody)).ready
        states = await self.door.engine.repository()
        found = []
        for each in states:
            if each.state == "READY" or not only_ready:
                about = {"version": each.version, "state": each.state, "reason": each.reason}
                found.append({"name": each.name, **{key: own for key, own in about.items() if own}})
        return json_response(found)

    async def load(self, request: Request) -> Response:
        if (await self._body(request, LoadBody)).parameters:
            raise invalid("models are loaded from their folder, without parameters.")
        loading = self.door.engine.load(request.path_params["model"])
        await unless_gone(asyncio.ensure_future(loading), request.receive)
        return Response()

    async def unload(self, request: Request) -> Response:
        await self._body(request, LoadBody)
        await self.door.engine.unload(request.path_params["model"])
        return Response()

    async def closed(self, request: Request) -> Response:
        self.door.check_admin(request.headers.get(ADMIN_HEADER))
        raise RefusedError(Code.UNSUPPORTED, f"{request.url.path} is not served here.")

    async def _body(self, request: Request, kind: type[msgspec.Struct]) -> Any:
        self.door.check_admin(request.headers.get(ADMIN_HEADER))
        receive, hold = request.receive, self.door.hold
        async with body_of(request.headers, receive, MOST_ADMIN_BODY_BYTES, hold) as body:
            try:
                return msgspec.json.decode(body or b"{}", type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise invalid(f"the body does not fit this route: {error}.") from None
