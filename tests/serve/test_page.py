"""The demo page: what it answers, whom it refuses, and what a browser makes of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import PortTakenError
from bertender.models.classifier import Classifier
from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from serve.client.endpoint import Classification, Endpoint
from serve.page import PageServer, classify
from serve.repository.write import place_artifact
from serve.server.server import Server
from tests.serve.browser import CHROMIUM, FLAGS, Browser, browser
from tests.serve.scripted import CONFIG, Script, http_server

JSON = {"Content-Type": "application/json"}
HOSTILE = "apple </p><script>document.title = 'broken'</script> pear"


@pytest.fixture(scope="module")
def page(served: Server, onnx_artifact: Artifact) -> Iterator[PageServer]:
    with PageServer(onnx_artifact, served.http_url, 0) as running:
        yield running


def ask(
    page: PageServer,
    method: str,
    path: str,
    body: str | None = None,
    headers: Mapping[str, str] = JSON,
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def question(*texts: str) -> str:
    return json.dumps({"texts": texts})


@pytest.mark.server
def test_it_answers_as_the_local_model(page: PageServer, local: Classifier) -> None:
    status, _, body = ask(page, "POST", "/classify", question("apple pear saw"))
    logits = local.logits([("apple pear saw",)])[0].astype(np.float64)
    exponents = np.exp(logits - logits.max())
    expected = dict(zip(local.labels, exponents / exponents.sum(), strict=True))
    answered = json.loads(body)
    [prediction] = answered["predictions"]
    found = {each["label"]: each["probability"] for each in prediction["scores"]}
    assert status == 200 and answered["latency_ms"] > 0 and prediction["word"] is None
    assert found == pytest.approx(expected, abs=1e-5)
    best = max(expected, key=expected.__getitem__)
    assert [each["label"] for each in prediction["scores"] if each["predicted"]] == [best]
    assert prediction["scores"][0]["label"] == best


@pytest.mark.server
def test_it_describes_the_model_and_what_it_was_made_from(
    page: PageServer, onnx_artifact: Artifact
) -> None:
    about = json.loads(ask(page, "GET", "/about")[2])
    assert about["labels"] == list(onnx_artifact.card.task.labels)
    assert [each["stage"] for each in about["lineage"]] == ["export"]
    size = (onnx_artifact.path / "model.onnx").stat().st_size
    assert about["lineage"][0]["model_mb"] == pytest.approx(size / 1e6)


LOGITS: Mapping[str, tuple[Problem[Any], Classification, tuple[str, ...]]] = {
    "single label": (
        SINGLE_LABEL,
        Classification(label="b", score=0.9, logits=(0.0, np.log(3.0))),
        ("one text",),
    ),
    "token": (
        TOKEN_CLASSIFICATION,
        Classification(
            label=("a", "b"), score=(0.5, 0.75), logits=((0.0, 0.0), (0.0, np.log(3.0)))
        ),
        ("two words",),
    ),
}
EXPECTED = {
    "single label": [(None, {"a": 0.25, "b": 0.75}, {"b"})],
    "token": [("two", {"a": 0.5, "b": 0.5}, {"a"}), ("words", {"a": 0.25, "b": 0.75}, {"b"})],
}


@pytest.mark.parametrize("kind", LOGITS)
def test_every_problem_type_has_its_probabilities(kind: str) -> None:
    problem, classification, texts = LOGITS[kind]
    to_example = problem.to_example
    endpoint = SimpleNamespace(
        problem=problem,
        model=SimpleNamespace(examples=lambda examples: [to_example(each) for each in examples]),
        classify=lambda examples: [classification],
    )
    found = classify(cast(Endpoint, endpoint), ("a", "b"), texts)
    rows = [
        (
            each.word,
            {score.label: round(score.probability, 3) for score in each.scores},
            {score.label for score in each.scores if score.predicted},
        )
        for each in found.predictions
    ]
    assert rows == EXPECTED[kind]


TOO_LONG = {**JSON, "Content-Length": "1000001"}
OTHER_HOST = {**JSON, "Host": "rebound.example:8080"}
REFUSED: Mapping[str, tuple[int, str, tuple[Any, ...]]] = {
    "another host": (421, "this page is at", ("GET", "/about", None, OTHER_HOST)),
    "a post from another host": (421, "alone", ("POST", "/classify", question("a"), OTHER_HOST)),
    "a form": (415, "application/json", ("POST", "/classify", "texts=a", {})),
    "no length": (411, "Content-Length", ("POST", "/classify", None, JSON)),
    "too long": (413, "1000000 bytes", ("POST", "/classify", None, TOO_LONG)),
    "no JSON": (400, "must be JSON", ("POST", "/classify", "{", JSON)),
    "no texts": (400, "must be JSON", ("POST", "/classify", '{"text": "a"}', JSON)),
    "an empty text": (400, "row 0 is empty", ("POST", "/classify", question(""), JSON)),
    "a pair": (400, "2 texts", ("POST", "/classify", question("a", "b"), JSON)),
    "another path": (404, "there is no /files", ("GET", "/files/../server.py", None, {})),
    "another post": (404, "there is no /about", ("POST", "/about", question("a"), JSON)),
}


@pytest.mark.server
@pytest.mark.parametrize("offence", REFUSED)
def test_an_offender_gets_an_error(offence: str, page: PageServer) -> None:
    expected, words, request = REFUSED[offence]
    method, path, body, headers = request
    if method == "POST" and body is None:
        status, content = _without_body(page, headers)
    else:
        status, _, content = ask(page, method, path, body, headers)
    assert status == expected
    assert words in json.loads(content)["error"]


def _without_body(page: PageServer, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Send no more than the headers: the response does not wait for the body."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    connection.putrequest("POST", "/classify")
    for header in headers.items():
        connection.putheader(*header)
    connection.endheaders()
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("step", "status", "words"),
    [("reject", 503, "Exceeds maximum queue size"), ("refuse", 400, "no such input")],
)
def test_errors_of_the_endpoint_are_passed_on(
    step: str,
    status: int,
    words: str,
    onnx_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = {"digest": {"string_value": onnx_artifact.digest}}
    monkeypatch.setitem(CONFIG, "parameters", digest)
    with (
        http_server(Script([step] * 10)) as url,
        PageServer(onnx_artifact, url, 0) as page,
    ):
        found, _, body = ask(page, "POST", "/classify", question("a"))
    assert (found, words in json.loads(body)["error"]) == (status, True)


def test_another_version_is_not_shown_as_this_one(onnx_artifact: Artifact) -> None:
    with http_server(Script()) as url, PageServer(onnx_artifact, url, 0) as page:
        status, _, body = ask(page, "POST", "/classify", question("a"))
    assert status == 409 and "another version" in json.loads(body)["error"]


def test_a_version_that_was_deployed_is_found_in_the_repository(
    onnx_artifact: Artifact,
    exported: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its labels and its lineage are those of the page from then on."""
    first = tmp_path / "classifier" / "1" / "artifact"
    second = tmp_path / "classifier" / "2" / "artifact"
    place_artifact(exported, first, is_temporary=False)
    digest = {"digest": {"string_value": onnx_artifact.digest}}
    monkeypatch.setitem(CONFIG, "parameters", digest)
    with (
        http_server(Script()) as url,
        PageServer(exported, url, 0, repository=tmp_path) as page,
    ):
        before = json.loads(ask(page, "GET", "/about")[2])["lineage"][0]["digest"]
        assert ask(page, "POST", "/classify", question("a"))[0] == 409
        place_artifact(onnx_artifact, second, is_temporary=False)
        status, _, body = ask(page, "POST", "/classify", question("a"))
        about = json.loads(ask(page, "GET", "/about")[2])
    assert status == 200 and len(json.loads(body)["predictions"]) == 1
    newest = about["lineage"][0]
    assert newest["name"] == "classifier, version 2"
    assert newest["digest"] == onnx_artifact.digest[:12] != before


def test_an_endpoint_that_is_gone_is_no_fault_of_the_page(onnx_artifact: Artifact) -> None:
    with PageServer(onnx_artifact, "http://127.0.0.1:9", 0) as page:
        assert ask(page, "POST", "/classify", question("a"))[0] == 502
        assert ask(page, "GET", "/about")[0] == 200


def test_a_port_that_is_taken_is_named(onnx_artifact: Artifact) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PortTakenError, match=f"port {port} .*is taken.*--page-port"),
            PageServer(onnx_artifact, "http://127.0.0.1:9", port),
        ):
            pass


@pytest.mark.server
@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/?text=a"])
def test_its_files_may_load_nothing_but_each_other(path: str, page: PageServer) -> None:
    status, headers, body = ask(page, "GET", path)
    assert status == 200 and body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert b"innerHTML" not in body and b"//" not in body.replace(b"// ", b"")


def labels_by_score(local: Classifier) -> list[str]:
    """Return the labels of the hostile text, the likeliest first."""
    logits = local.logits([(HOSTILE,)])[0]
    return [local.labels[place] for place in np.argsort(-logits)]


class _Shown(HTMLParser):
    """The texts of a page, by class of the element that holds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.current = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self.current = named.get("id") or named.get("class") or tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self.current, []).append(data.strip())


NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@pytest.mark.server
@NEEDS_CHROMIUM
def test_a_browser_shows_the_scores_and_runs_nothing_of_a_text(
    page: PageServer, local: Classifier, tmp_path: Path
) -> None:
    command = [
        *(str(CHROMIUM), *FLAGS),
        *(f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"),
        f"{page.url}?text={quote(HOSTILE)}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    shown = _Shown(done.stdout).texts
    assert shown["name"] == labels_by_score(local), done.stderr[-2000:]
    assert shown["title"] == [f"{page.about.task}: bertender"]
    assert all(value.endswith("%") for value in shown["value"])
    assert "ms" in shown["latency"][0] and shown["td"][1] == "export"


SUBMITTING: Mapping[str, Callable[[Browser], None]] = {
    "the button": lambda browser: browser.click("button"),
    "Ctrl+Enter": lambda browser: browser.press_control_enter(),
}


@pytest.mark.server
@NEEDS_CHROMIUM
@pytest.mark.parametrize("how", SUBMITTING)
def test_a_text_that_is_typed_gets_its_scores(
    how: str, page: PageServer, local: Classifier, tmp_path: Path
) -> None:
    with browser(tmp_path) as shown:
        shown.open(page.url)
        shown.wait_for("document.querySelector('textarea')")
        assert shown.value("document.getElementById('answer').hidden"), "nothing is asked yet"
        shown.click("textarea")
        shown.write(HOSTILE)
        assert shown.value("document.querySelector('textarea').value") == HOSTILE
        SUBMITTING[how](shown)
        shown.wait_for("!document.getElementById('answer').hidden")
        texts = _Shown(shown.value("document.documentElement.outerHTML")).texts
    assert texts["name"] == labels_by_score(local)
    assert texts["title"] == [f"{page.about.task}: bertender"]
    assert all(value.endswith("%") for value in texts["value"])
    assert "problem" not in texts


@pytest.mark.server
def test_the_command_shows_its_address_and_takes_it_along(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics", "page")]
    command = [sys.executable, "-m", "bertender.cli.main", "serve", str(onnx_artifact.path)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--page", "--json", *ports], stdout=subprocess.PIPE, env=variables, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        host, port = urls["page"].removeprefix("http://").rstrip("/").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(host, int(port), timeout=5).connect()
