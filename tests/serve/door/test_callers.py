"""API keys and their limits, over both protocols."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bertender.core.errors import ConfigError
from serve.client.endpoint import Endpoint
from serve.door import callers
from serve.door.callers import Callers, new_key, read_keys
from serve.door.engine import Code, RefusedError
from tests.serve.door.fake_engine import BUSY, RunningDoor, running_door
from tests.serve.door.raw_http import Answer, body, exchange, get, post


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    key, row = new_key("reader")
    file = tmp_path / "keys"
    file.write_text(f"# who may ask\n\n{row}\n")
    return file, key


def ask(door: RunningDoor, key: str | None, text: str = "plum") -> Answer:
    headers = [] if key is None else [f"Authorization: Bearer {key}"]
    answer = exchange(door.http_port, post(body(data=[text]), *headers))
    assert answer is not None
    return answer


def test_who_has_a_key_is_let_in_over_http(keys: tuple[Path, str]) -> None:
    file, key = keys
    with running_door(api_keys=file) as door:
        assert ask(door, key).status == 200
        assert door.engine.requests[-1].caller == "reader"
        for wrong in (None, "", "wrong", key[:-1], f"{key}x", key.upper()):
            answer = ask(door, wrong)
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert key not in answer.error
        for path in ("/v2", "/v2/models/classifier", "/v2/models/classifier/config"):
            assert get(door.http_port, path).status == 401
            assert get(door.http_port, path, f"authorization: bearer {key}").status == 200
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert get(door.http_port, path).status == 200, "probes have no key"


def test_who_has_a_key_is_let_in_over_grpc(keys: tuple[Path, str]) -> None:
    file, key = keys
    tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"plum"]], np.object_))
    with (
        running_door(api_keys=file) as door,
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{door.grpc_port}") as client,
    ):
        client.infer("classifier", [tensor], headers={"authorization": f"Bearer {key}"})
        assert door.engine.requests[-1].caller == "reader"
        for headers in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(InferenceServerException) as refused:
                client.infer("classifier", [tensor], headers=headers)
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.is_server_ready()


def test_without_keys_each_connection_is_a_caller() -> None:
    with running_door() as door:
        ask(door, None)
        ask(door, None)
        first, second = (each.caller for each in door.engine.requests)
        assert first != second and first.startswith("127.0.0.1:")


def test_our_own_client_sends_its_key(keys: tuple[Path, str], tmp_path: Path) -> None:
    file, key = keys
    own = tmp_path / "own"
    own.write_text(key)
    from serve.client.access import AccessConfig

    access = AccessConfig(api_key_file=own)
    with running_door(api_keys=file) as door:
        for url in (f"http://127.0.0.1:{door.http_port}", f"grpc://127.0.0.1:{door.grpc_port}"):
            with Endpoint(url, access=access) as endpoint:
                (answer,) = endpoint.classify(["good pear"])
            assert answer.label == "positive"


def test_a_file_that_was_read_while_it_was_written_is_read_again(tmp_path: Path) -> None:
    now, file = [100.0], tmp_path / "keys"
    key, row = new_key("reader")
    file.write_text(f"{row}\n")
    found = Callers(file, lambda: now[0])
    for content in (row[:30], f"{row}\n# whole\n"):
        file.write_text(content)
        os.utime(file, ns=(1, 1))  # times have steps of milliseconds
        now[0] += 2
        with suppress(RefusedError):
            found.caller(None, "a")
    assert found.caller(f"Bearer {key}", "a").name == "reader"


def test_a_file_that_is_away_is_reported_once(
    keys: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    now, (file, key) = [100.0], keys
    found = Callers(file, lambda: now[0])
    for times in (1, 2):
        content = file.read_text()
        file.unlink()
        for _ in range(3):
            now[0] += 2
            assert found.caller(f"Bearer {key}", "a").name == "reader"
        assert len(caplog.records) == times
        file.write_text(f"{content}# again\n")
        now[0] += 2
        assert found.caller(f"Bearer {key}", "a").name == "reader"


def test_a_limit_in_tokens_a_second() -> None:
    now = [100.0]
    key, row = new_key("reader", 50)
    found = Callers(None, lambda: now[0])
    limited = read_row(row)
    found.file, found.keys = Path("unused"), {callers.digest(key): limited}
    found.looked_at = 1e9
    header = f"Bearer {key}"
    found.caller(header, "a").key.charge(120)  # type: ignore[union-attr]
    with pytest.raises(RefusedError, match="50 tokens a second") as refused:
        found.caller(header, "a")
    assert refused.value.code == Code.TOO_MANY
    assert refused.value.retry_after_s == pytest.approx(1.4)
    now[0] += 1.5
    assert found.caller(header, "a").name == "reader"
    now[0] += 1000
    found.caller(header, "a").key.charge(60)  # type: ignore[union-attr]
    with pytest.raises(RefusedError):
        found.caller(header, "a")


def read_row(row: str) -> callers.Key:
    name, _, rate = row.split()
    return callers.Key(name, float(rate), float(rate), 100.0)


def test_a_limit_over_http(tmp_path: Path) -> None:
    key, row = new_key("reader", 5)
    file = tmp_path / "keys"
    file.write_text(row)
    with running_door(api_keys=file) as door:
        assert ask(door, key, "pear " * 80).status == 200
        answer = ask(door, key)
        assert answer.status == 429 and int(answer.headers["retry-after"]) > 1


def test_a_text_that_is_too_long_is_charged_too(tmp_path: Path) -> None:
    key, row = new_key("reader", 5)
    file = tmp_path / "keys"
    file.write_text(row)
    with running_door(count_tokens=lambda model, examples: [129], api_keys=file) as door:
        assert ask(door, key, "pear " * 4000).status == 400
        assert ask(door, key).status == 429


def test_a_changed_file_is_read_again(keys: tuple[Path, str]) -> None:
    file, key = keys
    now = [0.0]
    found = Callers(file, lambda: now[0])
    assert found.caller(f"Bearer {key}", "a").name == "reader"
    other, row = new_key("writer")
    file.write_text(f"{row}\n")
    now[0] += 2
    assert found.caller(f"Bearer {other}", "a").name == "writer"
    with pytest.raises(RefusedError) as refused:
        found.caller(f"Bearer {key}", "a")
    assert refused.value.code == Code.UNAUTHORIZED
    file.unlink()
    now[0] += 2
    assert found.caller(f"Bearer {other}", "a").name == "writer", "the keys of before"


def test_a_key_is_taken_back_whatever_else_is_in_the_file(
    keys: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    file, key = keys
    (other, row), now = new_key("other"), [0.0]
    known = Callers(file, lambda: now[0])
    assert known.caller(f"Bearer {key}", "a").name == "reader"
    file.write_text(f"{row}\nnot a row\n")
    os.utime(file, ns=(1, 1))
    for now[0] in (2.0, 4.0):
        with pytest.raises(RefusedError, match="key is unknown"):
            known.caller(f"Bearer {key}", "a")
        assert known.caller(f"Bearer {other}", "a").name == "other"
    assert caplog.text.count("line 2 is not a row") == 1


@pytest.mark.parametrize(("limit", "charged"), [(" 50", 80), ("", 42)])
def test_a_key_with_a_limit_pays_the_tokens_that_ran(
    limit: str, charged: int, tmp_path: Path
) -> None:
    """A row of punctuation has four times the tokens of its estimate."""
    key, row = new_key("reader")
    file = tmp_path / "keys"
    file.write_text(f"{row}{limit}\n")
    with running_door(api_keys=file) as door:
        answer = ask(door, key, ". " * 80)
        assert answer.status == 200 and "TOKENS" not in answer.body.decode()
        (reader,) = door.door.callers.keys.values()
        assert not limit or reader.balance <= 50 - charged
        metrics = get(door.metrics_port, "/metrics").body.decode()
        assert f'bertender_door_tokens_total{{key="reader"}} {charged}.0' in metrics


def test_what_does_not_run_costs_no_tokens(tmp_path: Path) -> None:
    key, row = new_key("reader", 100.0)
    file = tmp_path / "keys"
    file.write_text(f"{row}\n")
    with running_door(api_keys=file) as door:
        assert {ask(door, key, BUSY).status for _ in range(40)} == {503}
        assert ask(door, key).status == 200


@pytest.mark.parametrize(
    "text",
    ["one", "a b c d", "a " + "0" * 63, "a/b " + "0" * 64, "a " + "0" * 64 + " -1", "\xff"],
)
def test_what_is_no_file_of_keys(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="api_keys="):
        read_keys(file)


def test_names_and_keys_are_there_once(tmp_path: Path) -> None:
    _, row = new_key("reader")
    _, other = new_key("reader")
    file = tmp_path / "keys"
    for second in (row, other):
        file.write_text(f"{row}\n{second}\n")
        with pytest.raises(ConfigError, match="line 2 is a duplicate"):
            read_keys(file)


@pytest.mark.parametrize("name", ["", "two words", "a\n", "a" * 65])
def test_a_name_that_no_row_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        new_key(name)
