"""A page to try a served model on: its server, on the loopback address, and what it shows.

It has files and two routes of JSON. Another site that a user visits must not reach it through the
browser: the Host header has to name this machine, a request with a body has to be JSON (which
browsers send to another origin only where that allows it), and the page may load and be framed by
nothing but itself. Texts are in no log.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError

from bertender.core.artifact import Artifact, lineage
from bertender.core.config import Record
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    ConfigError,
    DataError,
    DeadlineError,
    OverloadedError,
    ServingError,
    UnreachableError,
)
from serve.client.endpoint import Endpoint
from serve.server.addresses import listening_error
from serve.wire import MODEL_NAME


class Ancestor(Record):
    """An artifact of the lineage."""

    name: str = Field(description="of its folder, or why it cannot be read")
    stage: str = ""
    precision: str = ""
    parameters: int | None = None
    model_mb: float | None = Field(None, description="of the weights or the graph, in 10^6 bytes")
    digest: str = Field("", description="its first digits")


class About(Record):
    """The served model."""

    task: str
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    lineage: tuple[Ancestor, ...] = Field(description="the served artifact first")


class Score(Record):
    """A label's probability."""

    label: str
    probability: float
    predicted: bool


class Prediction(Record):
    """The scores of a text, or of one of its words; the most probable first."""

    word: str | None
    scores: tuple[Score, ...]


class Shown(Record):
    """The predictions for a text, or a pair, as they are shown."""

    latency_ms: float = Field(description="of the request, on a connection that is open")
    predictions: tuple[Prediction, ...]


def about(artifact: Artifact) -> About:
    """Describe an artifact and what it was made from."""
    task = artifact.card.task
    return About(
        task=task.name,
        labels=task.labels,
        text_columns=task.text_columns,
        lineage=tuple(_ancestor(each) for each in lineage(artifact)),
    )


def _ancestor(each: Artifact | str) -> Ancestor:
    if isinstance(each, str):
        return Ancestor(name=each)
    card, name, place = each.card, each.name, each.path.parent
    if name == "artifact" and place.name.isdecimal():  # deployed, in a version of a model
        name = f"{place.parent.name}, version {place.name}"
    suffixes = (".onnx", ".onnx.data", ".safetensors")
    sizes = [file.size_bytes for path, file in card.files.items() if path.endswith(suffixes)]
    return Ancestor(
        name=name,
        stage=card.stage,
        precision=card.precision,
        parameters=card.findings.parameters,
        model_mb=sum(sizes) / 1e6,
        digest=each.digest[:12],
    )


def classify(endpoint: Endpoint, labels: Sequence[str], texts: Sequence[str]) -> Shown:
    """Ask an endpoint about a text, or a pair.

    Raises:
        DataError: the model cannot read it.
        ServingError: the endpoint refuses it, or went away.
    """
    example = endpoint.model.examples([tuple(texts)])[0]
    started = time.perf_counter()
    [classification] = endpoint.classify([example])
    latency_ms = 1000 * (time.perf_counter() - started)
    logits = np.asarray(classification.logits, dtype=np.float32)
    label = classification.label
    words: Sequence[str | None] = [None]
    predicted = [{label} if isinstance(label, str) else {*label}]
    if logits.ndim > 1:  # words have labels
        words, predicted = example, [{each} for each in label]
    predictions = []
    probabilities = endpoint.problem.probabilities(np.atleast_2d(logits))  # (words, labels)
    for word, chosen, row in zip(words, predicted, probabilities, strict=True):
        scores = [
            Score(label=name, probability=float(each), predicted=name in chosen)
            for name, each in zip(labels, row, strict=True)
        ]
        scores.sort(key=lambda each: each.probability, reverse=True)
        predictions.append(Prediction(word=word, scores=tuple(scores)))
    return Shown(latency_ms=latency_ms, predictions=tuple(predictions))


HOST = "127.0.0.1"
HTTP_PORT = 80
LONGEST_BODY_BYTES = 1_000_000
DIGITS = 9
"""Most digits of a Content-Length: `int` refuses thousands."""
SOCKET_TIMEOUT_S = 10.0
ENDPOINT_TIMEOUT_S = 10.0
RETRIES = 2
"""Retries of a request that the endpoint rejects for now: a person waits at the page."""

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""path -> (file, content type)"""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

STATUSES: Mapping[type[BertenderError], HTTPStatus] = {
    OverloadedError: HTTPStatus.SERVICE_UNAVAILABLE,
    UnreachableError: HTTPStatus.BAD_GATEWAY,
    DeadlineError: HTTPStatus.GATEWAY_TIMEOUT,
    ServingError: HTTPStatus.BAD_REQUEST,
    ConfigError: HTTPStatus.CONFLICT,
    DataError: HTTPStatus.BAD_REQUEST,
}
"""HTTP status for each error of the endpoint, a class before its base classes."""


class _Request(Record):
    """The body of a request to classify."""

    texts: tuple[str, ...]


class PageServer:
    """A context manager: the page is there inside the block.

    Args:
        artifact: what is served; it is shown with its lineage.
        endpoint_url: of the running endpoint.
        port: where the page listens; 0 takes any free port.
        model: its name on the server.
        repository: of the server, where the artifact of a new version is found.

    Raises (on entering):
        PortTakenError: another process listens on the port.
    """

    def __init__(
        self,
        artifact: Artifact,
        endpoint_url: str,
        port: int,
        model: str = MODEL_NAME,
        repository: Path | None = None,
    ) -> None:
        self.artifact = artifact
        self.repository = repository
        self.endpoint_url = endpoint_url
        self.model = model
        self.port = port
        self.server: ThreadingHTTPServer | None = None

    @property
    def about(self) -> About:
        """The model that answers; that of the last answer, where none does now."""
        with suppress(BertenderError), self._endpoint() as endpoint:
            self._follow(endpoint)
        return self._about

    @cached_property
    def _about(self) -> About:
        """The model, read when a browser first asks: the files of all ancestors are checked."""
        return about(self.artifact)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self.server = ThreadingHTTPServer((HOST, self.port), handler)
        except OSError as error:
            raise listening_error(HOST, "page_port", self.port, error) from None
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()

    def is_addressed(self, host: str) -> bool:
        """Return whether a Host header names this page, and not a name that points here."""
        port = "" if self.port == HTTP_PORT else f":{self.port}"  # which browsers leave out
        return host in {f"{name}{port}" for name in (HOST, "localhost")}

    def classify(self, body: bytes) -> Record:
        """Return the predictions that a request asks for.

        Raises:
            ConfigError: another model is served by now, and its artifact is not found.
            DataError: the body is not as it must be.
            ServingError: the endpoint refuses, or is not there.
        """
        try:
            request = _Request.model_validate_json(body)
        except ValidationError:
            raise DataError('the body must be JSON: {"texts": ["a text"]}.') from None
        with self._endpoint() as endpoint:
            self._follow(endpoint)
            return classify(endpoint, self.artifact.card.task.labels, request.texts)

    def _endpoint(self) -> Endpoint:
        """Open a connection: each belongs to a thread, and each request to the page has one."""
        return Endpoint(
            self.endpoint_url, model=self.model, timeout_s=ENDPOINT_TIMEOUT_S, retries=RETRIES
        )

    def _follow(self, endpoint: Endpoint) -> None:
        """Take over the artifact of the version that answers, which `deploy` may have replaced."""
        digest = endpoint.model.digest
        if digest == self.artifact.digest:
            return
        for folder in self.repository.glob(f"{self.model}/*/artifact") if self.repository else ():
            with suppress(ArtifactError):  # one that is being removed
                version = Artifact.load(folder, verify=False)
                if version.digest == digest:
                    self.artifact = version
                    self.__dict__.pop("_about", None)
                    return
        raise ConfigError(
            "another version of the model was deployed, and its labels are not known here: start "
            "`bertender serve --page` with its artifact."
        )


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    page: ClassVar[PageServer]
    timeout = SOCKET_TIMEOUT_S
    server_version = "bertender"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._may_ask():
            return
        if path == "/about":
            self._send_json(HTTPStatus.OK, self.page.about.model_dump(mode="json"))
        elif path in FILES:
            name, content_type = FILES[path]
            content = resources.files("serve").joinpath("page_files", name).read_bytes()
            self._send(HTTPStatus.OK, content, content_type)
        else:
            self._send_error(HTTPStatus.NOT_FOUND, f"there is no {path}. The page is at /.")

    def do_POST(self) -> None:
        if not self._may_ask():
            return
        if self.path != "/classify":
            self._send_error(HTTPStatus.NOT_FOUND, f"there is no {self.path} to post to.")
        elif (length := self._body_length()) is not None:
            try:
                shown = self.page.classify(self.rfile.read(length)).model_dump(mode="json")
            except BertenderError as error:
                statuses = (STATUSES[kind] for kind in STATUSES if isinstance(error, kind))
                self._send_error(next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR), str(error))
            else:
                self._send_json(HTTPStatus.OK, shown)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing: a path may hold a text."""

    def _may_ask(self) -> bool:
        """Return whether the request is for this page; send an error otherwise."""
        if self.page.is_addressed(self.headers.get("Host", "")):
            return True
        self._send_error(HTTPStatus.MISDIRECTED_REQUEST, f"this page is at {self.page.url} alone.")
        return False

    def _body_length(self) -> int | None:
        """Return the size of the body in bytes; send an error where there is no usable one."""
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json":
            self._send_error(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json."
            )
        elif not (length.isascii() and length.isdigit()):
            self._send_error(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing.")
        elif len(length) > DIGITS or int(length) > LONGEST_BODY_BYTES:
            self._send_error(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_BODY_BYTES} bytes."
            )
        else:
            return int(length)
        return None

    def _send_error(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # its body may not have been read
        self._send_json(status, {"error": reason})

    def _send_json(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, content_type: str) -> None:
        self.send_response(status)
        headers = {
            **HEADERS,
            "Content-Type": f"{content_type}; charset=utf-8",
            "Content-Length": str(len(content)),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
