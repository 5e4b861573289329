"""A probe for containers: classifies a text through the endpoint; exit status 0 when it can.

    python -m serve.probe [--url http://127.0.0.1:8000] [--model classifier] [--timeout-s 20]

A server whose model hangs or has ended fails it. One that rejects the request for now is asked
again until the time is up, so that load alone does not fail it. Where requests need a key, the
probe asks for readiness alone, which the server takes from texts of its own. Certificates are not
checked: a probe asks the machine that it runs on. It uses nothing but the standard library, since a
probe is started every few seconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

MODEL_NAME = "classifier"
TEXT = "ready?"
RETRY_S = 0.1
REJECTED = frozenset({http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS})
NO_ROOM = "Failed to increase the shared memory pool size"
"""Part of Triton's message where its shared memory is full, by other requests that are under way.
It has no status of its own for that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe once; return the exit status."""
    settings = parse(arguments)
    failures: list[str] = []
    # a socket's own timeout begins again with every byte
    worker = threading.Thread(target=lambda: failures.append(_failure(settings)), daemon=True)
    worker.start()
    worker.join(settings.timeout_s)
    failure = failures[0] if failures else f"no response in {settings.timeout_s:g} s"
    if failure:
        print(f"{settings.url}: {failure}", file=sys.stderr)
    return int(bool(failure))


def _failure(settings: argparse.Namespace) -> str:
    """Return why a text cannot be classified; nothing where it can."""
    try:
        status = _classify(settings.url, f"/v2/models/{settings.model}", settings.timeout_s)
    except (OSError, http.client.HTTPException) as error:  # ssl.SSLError is an OSError
        return str(error) or type(error).__name__
    except (ValueError, LookupError, TypeError):
        return "what responds is no classifier"
    return "" if status == http.HTTPStatus.OK else f"status {status}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the settings of a command line."""
    parser = argparse.ArgumentParser(prog="python -m serve.probe", description=__doc__)
    by_default = "http://127.0.0.1:8000"
    parser.add_argument("--url", type=_http_url, default=by_default, help="of the endpoint")
    parser.add_argument("--model", default=MODEL_NAME, help="name of the model on the server")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="longest wait in all")
    return parser.parse_args(arguments)


def _http_url(url: str) -> str:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise argparse.ArgumentTypeError(
            f"{url}: the probe speaks HTTP alone. Write http://host:port or https://host:port."
        )
    return url


def request_body(model: Mapping[str, Any]) -> str:
    """Return a request with one text for each input of a model."""
    inputs = [
        {"name": each["name"], "datatype": each["datatype"], "shape": [1, 1], "data": [TEXT]}
        for each in model["inputs"]
    ]
    return json.dumps({"inputs": inputs, "outputs": [{"name": "LABEL"}]})


def _classify(url: str, model: str, timeout_s: float) -> int:
    """Return the status of a classification, or of the last try that was rejected."""
    deadline = time.monotonic() + timeout_s
    status, content = _ask(url, "GET", model, None, deadline)
    if status == http.HTTPStatus.UNAUTHORIZED:
        return _ask(url, "GET", "/v2/health/ready", None, deadline)[0]
    if status != http.HTTPStatus.OK:
        return status
    body = request_body(json.loads(content))
    while True:
        status, content = _ask(url, "POST", f"{model}/infer", body, deadline)
        is_rejected = status in REJECTED or NO_ROOM.encode() in content
        if not is_rejected or time.monotonic() + RETRY_S >= deadline:
            return status
        time.sleep(RETRY_S)


def _ask(url: str, method: str, path: str, body: str | None, deadline: float) -> tuple[int, bytes]:
    address = urlsplit(url)
    left_s = max(deadline - time.monotonic(), 0.001)
    host, port = address.hostname or "", address.port
    connection = http.client.HTTPConnection(host, port, timeout=left_s)
    if address.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=left_s, context=context)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
