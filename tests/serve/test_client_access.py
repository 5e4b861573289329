"""The client through TLS and with a key: before a real server, and before small ones."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import bertender
from bertender.core.errors import ConfigError, ServingError, UnreachableError
from bertender.models.classifier import Classifier
from bertender.text.batch import Example
from serve.client.access import AccessConfig
from serve.client.endpoint import Endpoint
from serve.loadtest import LoadTest
from serve.server.server import Server
from tests.front import fail, last_line, succeed
from tests.serve.certificates import KEY, SECRET, make_certificate
from tests.serve.scripted import SERVERS, Script
from tests.serve.test_client_failures import BOTH, EVERY, Classify, labels
from tests.test_docs import GUARDED_ADDRESS, blocks, shown_lines

TEXTS = [("apple saw",), ("plum",), ("\U0001f350 drill",)]


def expected_labels(local: Classifier, examples: list[Example]) -> list[str]:
    return [local.labels[best] for best in local.logits(examples).argmax(axis=1)]


@pytest.mark.server
@BOTH
def test_who_has_a_key_gets_predictions_through_the_door(
    classify: Classify, guarded: Server, key_file: Path, local: Classifier
) -> None:
    access = AccessConfig(ca_file=guarded.config.tls_certificate, api_key_file=key_file)
    for host in ("localhost", "127.0.0.1"):
        url = f"https://{host}:{guarded.config.http_port}"
        assert labels(classify(url, TEXTS, access=access)) == expected_labels(local, TEXTS)


@pytest.mark.server
@BOTH
def test_who_signed_the_certificate_may_be_trusted_by_the_machine(
    classify: Classify,
    guarded: Server,
    key_file: Path,
    local: Classifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "SSL_CERT_FILE", str(guarded.config.tls_certificate)
    )  # OpenSSL's own place for them
    access = AccessConfig(api_key_file=key_file)
    found = classify(f"https://localhost:{guarded.config.http_port}", TEXTS, access=access)
    assert labels(found) == expected_labels(local, TEXTS)


@pytest.mark.server
@BOTH
@pytest.mark.parametrize("key", [None, "another0" * 8])
def test_who_has_no_key_is_told_so_and_nothing_is_retried(
    key: str | None, classify: Classify, guarded: Server, key_file: Path
) -> None:
    if key:
        key_file.write_text(key)
    access = AccessConfig(ca_file=guarded.config.tls_certificate, api_key_file=key and key_file)
    url = f"https://localhost:{guarded.config.http_port}"
    with pytest.raises(ServingError, match=f"{url} takes no request .*--api-key-file") as raised:
        classify(url, TEXTS, access=access)
    assert type(raised.value) is ServingError and str(key) not in str(raised.value)


@pytest.mark.server
@BOTH
def test_a_certificate_of_a_stranger_is_not_trusted(
    classify: Classify, guarded: Server, key_file: Path, tmp_path: Path
) -> None:
    url = f"https://localhost:{guarded.config.http_port}"
    for ca_file in (None, make_certificate(tmp_path)[0]):
        access = AccessConfig(ca_file=ca_file, api_key_file=key_file)
        with pytest.raises(UnreachableError, match=f"no trusted TLS connection to {url} .*ca-file"):
            classify(url, TEXTS, access=access, timeout_s=5)


@BOTH
@EVERY
def test_a_server_without_tls_is_explained(protocol: str, classify: Classify) -> None:
    with SERVERS[protocol](Script()) as url:
        secure = url.replace("://", "s://")
        with pytest.raises(UnreachableError, match=f"no trusted TLS connection to {secure}"):
            classify(secure, TEXTS, timeout_s=5)


@pytest.mark.server
@BOTH
def test_a_server_without_tls_is_told_from_one_that_is_not_trusted(
    classify: Classify, served: Server
) -> None:
    secure = served.http_url.replace("http://", "https://")
    told = f"TLS connection to {secure} .*A server without TLS is at http://"
    with pytest.raises(UnreachableError, match=told):
        classify(secure, TEXTS, timeout_s=5)


@pytest.mark.server
def test_the_commands_go_through_the_door(
    guarded: Server, key_file: Path, local: Classifier, tmp_path: Path
) -> None:
    url = f"https://localhost:{guarded.config.http_port}"
    files = ("--ca-file", guarded.config.tls_certificate, "--api-key-file", key_file)
    source, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in TEXTS))
    succeed("classify", "--input", source, "--output", out, "--url", url, *files)
    predicted = [json.loads(line)["label"] for line in out.read_text().splitlines()]
    assert predicted == expected_labels(local, TEXTS)
    load = ("--input", source, "--concurrency", "2", "--duration-s", "0.3", "--warmup-s", "0")
    test = LoadTest.model_validate(last_line(succeed("loadtest", url, *load, *files, "--json")))
    assert set(test.runs[0].outcome) == {"ok"} and test.protocol == "http"
    assert "takes no request without a key" in fail("loadtest", url, *load, *files[:2])


@pytest.mark.server
def test_the_python_function_goes_through_the_door(
    guarded: Server, key_file: Path, local: Classifier
) -> None:
    files = {"ca_file": guarded.config.tls_certificate, "api_key_file": key_file}
    found = bertender.classify(
        ["apple saw"], f"https://localhost:{guarded.config.http_port}", **files
    )
    assert labels(found) == expected_labels(local, TEXTS[:1])
    with pytest.raises(ConfigError, match=r"ca_fil: unknown key. Did you mean 'ca_file'"):
        bertender.classify(["apple saw"], ca_fil="x")


@pytest.mark.server
def test_the_page_says_how(
    guarded: Server,
    key_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its command and its Python, with the address of the server that runs here."""
    monkeypatch.chdir(tmp_path)
    certificate = guarded.config.tls_certificate
    assert certificate is not None
    shutil.copy(certificate, tmp_path / "server.pem")
    key_file.rename(tmp_path / "key.txt")
    page, port = "docs/serving/deploy.md", str(guarded.config.http_port)
    (words,) = [each for each in shown_lines(page, "classify") if GUARDED_ADDRESS in each]
    assert (
        succeed("classify", *[word.replace("8443", port) for word in words]).stdout.count("\n") == 1
    )
    (block,) = [each for each in blocks(page, "python") if "api_key_file" in each]
    exec(block.replace("8443", port), {})
    assert capsys.readouterr().out.strip()


@BOTH
@EVERY
@pytest.mark.parametrize("parted", [True, False])
def test_a_client_certificate(
    parted: bool, protocol: str, classify: Classify, tls: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = tls
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    own: dict[str, Any] = (
        {"client_certificate": certificate, "client_key": key}
        if parted
        else {"client_certificate": both}
    )
    with SERVERS[protocol](Script(), tls=tls) as url:
        access = AccessConfig(ca_file=certificate, **own)
        assert labels(classify(url, [("pear",)], access=access)) == ["pear"]
        with pytest.raises(UnreachableError):
            classify(url, [("pear",)], access=AccessConfig(ca_file=certificate), timeout_s=3)


@BOTH
@EVERY
@pytest.mark.parametrize("step", ["ok", "refuse", "close", "reset", "hang", "reject"])
def test_a_key_is_sent_and_never_shown(
    step: str,
    protocol: str,
    classify: Classify,
    key_file: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script([step] * 9)
    access = AccessConfig(api_key_file=key_file)
    message = ""
    with SERVERS[protocol](script) as url:
        try:
            classify(url, [("pear",)], access=access, timeout_s=0.5, retries=1)
        except ServingError as error:
            message = f"{error!r} {error.__cause__!r}"
        with Endpoint(url, access=access) as endpoint:
            message += f"{endpoint!r} {endpoint.access!r} {vars(endpoint)!r}"
    assert {headers["authorization"] for headers in script.headers} == {KEY}
    shown = message + caplog.text + "".join(capfd.readouterr())
    assert message and SECRET not in shown


def test_a_key_is_in_no_result(
    key_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the commands are verbose, and their requests fail."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "texts.txt").write_text("apple\nsaw drill\n", encoding="utf-8")
    out, input_file = tmp_path / "out.json", tmp_path / "texts.txt"
    load = ("--input", input_file, "--concurrency", "1", "--duration-s", "1", "--warmup-s", "0")
    with SERVERS["http"](script := Script(["ok", "ok", "refuse"])) as url:
        files = ("--api-key-file", key_file)
        result = succeed("-v", "loadtest", url, *load, "--out", out, *files)
        shown = succeed("-v", "classify", "pear", "--url", url, *files)
    assert script.headers[-1]["authorization"] == KEY
    written = out.read_text() + result.output + result.stderr + shown.output + shown.stderr
    assert SECRET not in written + caplog.text
