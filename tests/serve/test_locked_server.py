"""`bertender serve` with TLS, keys, an origin and an access log: the command, as it is started."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError, UnreachableError
from bertender.models.classifier import Classifier
from serve.client.access import AccessConfig
from serve.client.endpoint import Endpoint
from serve.door.records import UNAUTHORIZED_LINE_S
from tests.front import last_line, succeed
from tests.served import ANY_PORT_OPTIONS, SERVE

pytestmark = pytest.mark.server

ORIGIN = "https://shop.example"
TEXT = "apple saw number 7"
INFER = "/v2/models/classifier/infer"
BODY = json.dumps(
    {
        "id": "a-basket",
        "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}],
    }
)


@dataclass
class Locked:
    """A running command, and what opens it."""

    urls: Mapping[str, str]
    certificate: Path
    key_file: Path
    access_log: Path

    @property
    def access(self) -> AccessConfig:
        return AccessConfig(ca_file=self.certificate, api_key_file=self.key_file)

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()

    def ask(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, Mapping[str, str], Any]:
        """Return the status, the headers and the JSON of a response."""
        context = ssl.create_default_context(cafile=self.certificate)
        place = urlsplit(self.urls["http"]).netloc
        connection = http.client.HTTPSConnection(place, timeout=30, context=context)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, response.headers, json.loads(content) if is_json else content
        finally:
            connection.close()

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.access_log.read_text().splitlines()]


@pytest.fixture(scope="module", params=["embedded", pytest.param("triton", marks=pytest.mark.slow)])
def locked(
    request: pytest.FixtureRequest,
    onnx_artifact: Artifact,
    tls: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    made = last_line(succeed("api-key", "shop", "--file", str(folder / "keys"), "--json"))
    (folder / "key").write_text(f"{made['key']}\n")
    options = {
        "--server": request.param,
        "--tls-certificate": tls[0],
        "--tls-key": tls[1],
        "--api-keys": folder / "keys",
        "--allow-origin": ORIGIN,
        "--access-log": folder / "access.log",
    }
    words = [str(word) for option in options.items() for word in option]
    command = [*SERVE, str(onnx_artifact.path), "--json", *words, *ANY_PORT_OPTIONS]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, cwd=folder) as process:
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        yield Locked(urls, tls[0], folder / "key", folder / "access.log")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_with_the_key_gets_predictions(
    protocol: str, locked: Locked, local: Classifier
) -> None:
    url = locked.urls[protocol]
    assert url.startswith(f"{protocol}s://")
    expected = local.labels[int(local.logits([(TEXT,)])[0].argmax())]
    with Endpoint(url, access=locked.access) as endpoint:
        assert endpoint.classify([(TEXT,)])[0].label == expected


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_without_it_gets_none(protocol: str, locked: Locked, tmp_path: Path) -> None:
    url = locked.urls[protocol]
    (tmp_path / "key").write_text("a-wrong-one\n")
    for file in (None, tmp_path / "key"):
        access = AccessConfig(ca_file=locked.certificate, api_key_file=file)
        with pytest.raises(ServingError, match=r"without a key that it knows.*--api-key-file"):
            Endpoint(url, access=access, retries=0)
    with pytest.raises(UnreachableError, match="no trusted TLS connection"):
        Endpoint(url, access=AccessConfig(api_key_file=locked.key_file), retries=0, timeout_s=10)
    with pytest.raises(UnreachableError):
        Endpoint(url.replace("s://", "://"), retries=0, timeout_s=5)


def test_what_http_says_to_who_has_no_key(locked: Locked) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": locked.key}):
        status, found, content = locked.ask("POST", INFER, BODY, **headers)
        assert (status, found["WWW-Authenticate"]) == (401, "Bearer")
        assert "key" in content["error"] and locked.key not in content["error"]
        assert locked.ask("GET", "/v2/models/classifier", **headers)[0] == 401
    assert locked.ask("GET", "/v2/health/ready")[0] == 200, "a probe has no key"


def test_curl_gets_a_prediction(locked: Locked) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("no curl here: install it")
    command = [
        *(curl, "--silent", "--fail", "--cacert", str(locked.certificate)),
        *("--header", f"Authorization: Bearer {locked.key}", "--data", BODY),
        f"{locked.urls['http']}{INFER}",
    ]
    done = subprocess.run(command, capture_output=True, check=True)
    outputs = {each["name"]: each["data"] for each in json.loads(done.stdout)["outputs"]}
    assert len(outputs["LABEL"]) == 1 and 0 < outputs["SCORE"][0] <= 1


def test_a_page_of_the_origin_may_ask_and_no_other(locked: Locked) -> None:
    wish = {"Access_Control_Request_Method": "POST"}
    wish["Access_Control_Request_Headers"] = "authorization, content-type"
    status, headers, _ = locked.ask("OPTIONS", INFER, Origin=ORIGIN, **wish)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
    bearer = {"Authorization": f"Bearer {locked.key}"}
    status, headers, _ = locked.ask("POST", INFER, BODY, Origin=ORIGIN, **bearer)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
    stranger = "https://stranger.example"
    status, headers, _ = locked.ask("OPTIONS", INFER, Origin=stranger, **wish)
    assert status == 400 and "Access-Control-Allow-Origin" not in headers
    _, headers, _ = locked.ask("POST", INFER, BODY, Origin=stranger, **bearer)
    assert "Access-Control-Allow-Origin" not in headers


def test_the_access_log_names_who_asked_and_no_text(locked: Locked) -> None:
    before = len(locked.logged())
    assert locked.ask("POST", INFER, BODY, Authorization=f"Bearer {locked.key}")[0] == 200
    time.sleep(UNAUTHORIZED_LINE_S)  # of requests without a key, one a second has a line
    assert locked.ask("POST", INFER, BODY)[0] == 401
    with Endpoint(locked.urls["grpc"], access=locked.access) as endpoint:
        endpoint.classify([(TEXT,), (TEXT,)])
    right, refused, of_grpc = until_logged(locked, before + 3)[before:]
    assert (right["key"], right["id"], right["outcome"]) == ("shop", "a-basket", "ok")
    assert (right["protocol"], right["model"], right["texts"]) == ("http", "classifier", 1)
    assert right["tokens"] > 1 and right["ms"] > 0
    assert (refused["key"], refused["outcome"]) == (None, "unauthorized")
    assert (of_grpc["protocol"], of_grpc["key"], of_grpc["texts"]) == ("grpc", "shop", 2)
    content = locked.access_log.read_text()
    assert TEXT not in content and locked.key not in content


def until_logged(locked: Locked, lines: int) -> list[dict[str, Any]]:
    """Wait for the thread that writes."""
    for _ in range(200):
        if len(found := locked.logged()) >= lines:
            return found
        time.sleep(0.02)
    raise AssertionError(found)
