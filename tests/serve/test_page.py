"""The page of `serve --page`: what it says of the models, and what a browser makes of it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from serve.door.callers import append_row, new_key
from serve.server.server import Server
from tests.quick import quick
from tests.serve.browser import CHROMIUM, FLAGS, Browser, browser
from tests.served import ANY_PORT_OPTIONS, SERVE
from tests.served import served as running

pytestmark = pytest.mark.server
HOSTILE = "apple </p><script>document.title = 'broken'</script> pear"


@pytest.fixture(scope="module")
def locked(
    exported: Artifact, tls: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """A server with a page, TLS and keys; and a key."""
    folder = tmp_path_factory.mktemp("locked")
    key, row = new_key("visitor")
    append_row(folder / "keys", row)
    files = {"tls_certificate": tls[0], "tls_key": tls[1], "api_keys": folder / "keys"}
    with running(exported, folder, server="embedded", page=True, **files) as server:
        yield server, key


def about(url: str, key: str = "", ca_file: Path | None = None) -> list[dict[str, Any]]:
    """What a server says of its models."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    with urlopen(Request(f"{url}/about", headers=headers), timeout=30, context=context) as found:
        return list(json.load(found))


def test_it_describes_the_model_and_what_it_was_made_from(
    served: Server, onnx_artifact: Artifact
) -> None:
    (found,) = about(served.http_url)
    task = onnx_artifact.card.task
    assert (found["model"], found["version"], found["task"]) == ("classifier", "1", task.name)
    assert found["labels"] == list(task.labels)
    assert found["inputs"] == {"TEXT": task.text_columns[0]}
    assert [each["stage"] for each in found["lineage"]] == ["export"]
    size = (onnx_artifact.path / "model.onnx").stat().st_size
    assert found["lineage"][0]["model_mb"] == pytest.approx(size / 1e6)
    assert found["lineage"][0]["digest"] == onnx_artifact.digest[:12]


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/?text=a"])
def test_its_files_may_load_nothing_but_each_other(path: str, served: Server) -> None:
    with urlopen(f"{served.http_url}{path}", timeout=30) as response:
        headers, body = response.headers, response.read()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and headers["X-Content-Type-Options"] == "nosniff"
    assert b"innerHTML" not in body and b"//" not in body.replace(b"// ", b"")


@pytest.mark.parametrize("path", ["/", "/about", "/page.js"])
def test_it_is_where_it_was_asked_for_alone(path: str, administered: Server) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{administered.http_url}{path}", timeout=30)
    assert refused.value.code == 404


@pytest.mark.parametrize("key", ["", "a wrong one"])
def test_what_is_served_is_told_to_who_has_a_key(
    key: str, locked: tuple[Server, str], tls: tuple[Path, Path]
) -> None:
    server, right = locked
    with pytest.raises(HTTPError) as refused:
        about(server.http_url, key, tls[0])
    assert refused.value.code == 401
    assert len(about(server.http_url, right, tls[0])) == 1


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
BEFORE_ONE_ENGINE = pytest.mark.parametrize(
    "served", quick(["triton", "embedded"], "embedded"), indirect=True
)
"""For what a page does with an answer, of whichever engine it is."""


@NEEDS_CHROMIUM
@BEFORE_ONE_ENGINE
def test_a_browser_shows_the_scores_and_runs_nothing_of_a_text(
    served: Server, local: Classifier, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    command = [
        *(str(CHROMIUM), *FLAGS),
        *(f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"),
        f"{served.http_url}/?text={quote(HOSTILE)}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    shown = _Shown(done.stdout).texts
    assert shown["name"] == labels_by_score(local), done.stderr[-2000:]
    assert shown["title"] == [f"{onnx_artifact.card.task.name}: bertender"]
    logits = local.logits([(HOSTILE,)])[0].astype(np.float64)
    exponents = np.sort(np.exp(logits - logits.max()))[::-1]
    percents = [float(value.removesuffix(" %")) for value in shown["value"]]
    assert percents == pytest.approx(list(100 * exponents / exponents.sum()), abs=0.051)
    assert "ms" in shown["latency"][0] and shown["td"][1] == "export"


SUBMITTING: Mapping[str, Callable[[Browser], None]] = {
    "the button": lambda browser: browser.click("#submit"),
    "Ctrl+Enter": lambda browser: browser.press_control_enter(),
}


def type_a_text(shown: Browser, how: str = "the button") -> dict[str, list[str]]:
    """Type the hostile text, submit it, and return what the page shows then."""
    shown.click("textarea")
    shown.write(HOSTILE)
    assert shown.value("document.querySelector('textarea').value") == HOSTILE
    SUBMITTING[how](shown)
    shown.wait_for("!document.getElementById('answer').hidden")
    return _Shown(shown.value("document.documentElement.outerHTML")).texts


@NEEDS_CHROMIUM
@BEFORE_ONE_ENGINE
@pytest.mark.parametrize("how", SUBMITTING)
def test_a_text_that_is_typed_gets_its_scores(
    how: str, served: Server, local: Classifier, tmp_path: Path
) -> None:
    with browser(tmp_path) as shown:
        shown.open(f"{served.http_url}/")
        shown.wait_for("document.querySelector('textarea')")
        assert shown.value("document.getElementById('answer').hidden"), "nothing is asked yet"
        texts = type_a_text(shown, how)
    assert texts["name"] == labels_by_score(local)
    assert all(value.endswith("%") for value in texts["value"])
    assert "problem" not in texts


@NEEDS_CHROMIUM
@BEFORE_ONE_ENGINE
def test_a_refusal_is_shown(served: Server, tmp_path: Path) -> None:
    with browser(tmp_path) as shown:
        shown.open(f"{served.http_url}/?text=%20")
        shown.wait_for("!document.getElementById('problem').hidden")
        assert "row 0 is empty" in shown.value("document.getElementById('problem').textContent")
        assert shown.value("document.getElementById('answer').hidden")


@NEEDS_CHROMIUM
def test_a_key_is_typed_and_kept_nowhere(
    locked: tuple[Server, str], local: Classifier, tmp_path: Path
) -> None:
    server, key = locked
    with browser(tmp_path, "--ignore-certificate-errors") as shown:
        shown.open(f"{server.http_url}/")
        for own in ("a wrong one", key):
            shown.wait_for("!document.getElementById('opening').hidden")
            shown.click("#key")
            shown.write(own)
            shown.click("#opening button")
            shown.wait_for("document.getElementById('key').value === ''")
            if own != key:
                shown.wait_for("!document.getElementById('problem').hidden")
        shown.wait_for("document.querySelector('textarea')")
        assert type_a_text(shown)["name"] == labels_by_score(local)
        kept = "location.href + document.cookie + Object.keys(localStorage).length"
        assert shown.value(f"{kept} + Object.keys(sessionStorage).length") == (
            f"{server.http_url}/00"
        )


@NEEDS_CHROMIUM
@BEFORE_ONE_ENGINE
def test_words_have_their_own_scores(served: Server, tmp_path: Path) -> None:
    """As the model of a tagger answers."""
    tagger = {"labels": ["a", "b"], "problem_type": "token_classification"}
    outputs = [
        {"name": "LABEL", "data": ["a", "b"]},
        {"name": "LOGITS", "data": [0, 0, 0, float(np.log(3))]},
    ]
    expected = [("two", {"a": 0.5, "b": 0.5}, ["a"]), ("words", {"a": 0.25, "b": 0.75}, ["b"])]
    with browser(tmp_path) as shown:
        shown.open(f"{served.http_url}/")
        shown.wait_for("document.querySelector('textarea')")
        for text in (" two  words", "\x1ftwo\x1fwords"):
            asked = (
                f"predictions({json.dumps(tagger)}, {json.dumps([text])}, {json.dumps(outputs)})"
            )
            found = json.loads(shown.value(f"JSON.stringify({asked})"))
            rows = [
                (
                    each["word"],
                    {score["label"]: round(score["probability"], 3) for score in each["scores"]},
                    [score["label"] for score in each["scores"] if score["predicted"]],
                )
                for each in found
            ]
            assert rows == expected


@NEEDS_CHROMIUM
@BEFORE_ONE_ENGINE
def test_spans_are_marked_by_characters(served: Server, tmp_path: Path) -> None:
    """Those after an emoji, which JavaScript counts twice, too."""
    outputs = [
        {"name": "SPAN_LABEL", "data": ["city", ""]},
        {"name": "SPAN_SCORE", "data": [0.5, 0]},
        {"name": "SPAN_START", "data": [2, 0]},
        {"name": "SPAN_END", "data": [7, 0]},
    ]
    with browser(tmp_path) as shown:
        shown.open(f"{served.http_url}/")
        shown.wait_for("document.querySelector('textarea')")
        asked = f"marked({json.dumps('🦆 Paris, <b>')}, {json.dumps(outputs)}).innerHTML"
        assert shown.value(asked) == (
            '🦆 <mark>Paris<span class="kind">city 50.0 %</span></mark>, &lt;b&gt;'
        )


@NEEDS_CHROMIUM
def test_one_of_several_models_is_chosen(
    onnx_artifact: Artifact, pair_artifact: Artifact, tmp_path: Path
) -> None:
    models = {"pair": pair_artifact, "tone": onnx_artifact}
    with (
        running(models, tmp_path / "served", server="embedded", page=True) as server,
        browser(tmp_path / "browser") as shown,
    ):
        shown.open(f"{server.http_url}/")
        shown.wait_for("document.querySelector('textarea')")
        assert shown.value("document.querySelectorAll('textarea').length") == 2
        shown.value(
            "byId('model').value = 'tone'; byId('model').dispatchEvent(new Event('change'))"
        )
        assert shown.value("document.querySelectorAll('textarea').length") == 1
        assert len(type_a_text(shown)["name"]) == len(onnx_artifact.card.task.labels)


def test_the_command_shows_its_address(onnx_artifact: Artifact, tmp_path: Path) -> None:
    command = [*SERVE, str(onnx_artifact.path), "--page", "--json", *ANY_PORT_OPTIONS]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, cwd=tmp_path) as process:
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        assert urls["page"] == f"{urls['http']}/"
        assert urlopen(urls["page"], timeout=30).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_what_it_was_made_from_is_found_from_the_repository(
    exported: Artifact, locked: tuple[Server, str], tls: tuple[Path, Path]
) -> None:
    """Its card leads to its parents by a path that holds for its own folder alone."""
    assert exported.card.parent is not None
    server, key = locked
    (found,) = about(server.http_url, key, tls[0])
    assert found["lineage"][1]["digest"] == exported.card.parent.digest[:12]
