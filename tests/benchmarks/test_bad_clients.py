"""Bad clients: each kind acts, good requests are measured without and with it, a table judges."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.bad_clients import measuring as benchmark
from benchmarks.bad_clients.kinds import CONNECTIONS, KINDS, Target
from benchmarks.bad_clients.measuring import (
    BadClients,
    BadClientsConfig,
    BadClientsTurn,
    GoodTraffic,
    measure_bad_clients,
)
from benchmarks.bad_clients.nginx import make_certificate, nginx_binary
from benchmarks.bad_clients.process import MODULE, begin_turn, end_turn
from benchmarks.bad_clients.table import bad_clients_block
from benchmarks.serving.records import ServingConfig
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ModelError
from bertender.core.machine_load import MachineLoad
from bertender.measure.line_process import line_process
from bertender.tasks.task import Task
from serve.loadtest.records import Limit
from tests.serve.proxies import skipped_where_absent

MEASURED = ServingConfig(warmup_s=0.05, slo_p99_ms=500, noisy=True)
QUICK = BadClientsConfig(limit=100, rounds=3, seconds=0.3, pause_s=0.1, measured=MEASURED)

RESPONSES: Mapping[str, str] = {
    "a text of 1 MB": "400",
    "invalid UTF-8": "400",
    "wrong dtype": "400",
    "wrong shape": "400",
    "batch over the limit": "400",
    "malformed JSON": "500",  # Triton's status for JSON that it cannot read
    "JSON of 10,000 levels": "200",  # Triton counts the texts in it, whatever the brackets
    "truncated body": "closed without a response",
    "gzip bomb of 64 MB": "500",
    "10 that send a byte a second": "still open",
    "500 idle connections": "still open",
}
"""A row of KINDS -> what it gets of Triton."""
OF_NGINX: Mapping[str, str] = {
    **RESPONSES,
    "gzip bomb of 64 MB": "415",
    "truncated body": "left",
}
"""A row of KINDS -> what it gets through nginx."""
HELD = {"10 that send a byte a second": 10, "500 idle connections": CONNECTIONS}
"""Rows of KINDS that hold connections, and how many."""


@pytest.mark.server
@pytest.mark.slow
def test_good_requests_are_measured_without_and_with_each_kind(
    exported: Artifact, task: Task
) -> None:
    result = measure_bad_clients(exported, [text for (text,) in task.dev.examples], QUICK)
    assert (result.limit.rate, result.rate) == (100, 40)
    for kind, status in RESPONSES.items():
        turns = result.of(kind)
        assert [each.round for each in turns] == [0, 1, 2]
        assert {response for each in turns for response in each.responses} == {status}, kind
        for part in (part for each in turns for part in (each.alone, each.meanwhile)):
            assert part.outcomes["ok"] > 0, kind
        assert result.ratio(kind) is not None
    assert result.of("500 idle connections")[0].responses == {"still open": CONNECTIONS}


@pytest.mark.server
@pytest.mark.slow
def test_bad_clients_come_through_nginx(exported: Artifact, task: Task, tmp_path: Path) -> None:
    """Good ones come through it too."""
    with skipped_where_absent():
        nginx_binary()
        make_certificate(tmp_path)
    config = QUICK.model_copy(update={"nginx": True})
    result = measure_bad_clients(exported, [text for (text,) in task.dev.examples], config)
    for kind, status in OF_NGINX.items():
        turns = result.of(kind)
        assert {response for each in turns for response in each.responses} == {status}, kind
        for part in (part for each in turns for part in (each.alone, each.meanwhile)):
            assert part.outcomes["failed"] == part.outcomes["rejected"] == 0, kind


def test_a_torch_artifact_is_refused_before_anything_starts(teacher: Artifact) -> None:
    with pytest.raises(ModelError, match="Export it first"):
        measure_bad_clients(teacher, ["a text"], QUICK)


PATIENCE_S = 0.05
"""Without another byte, until a request is a whole one."""


@contextmanager
def listening(response: bytes | None) -> Iterator[Target]:
    """Listen where connections get a response and end, or wait for ever."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS) as server:

        def respond() -> None:
            for content in iter(lambda: response, None):
                try:
                    connection, _ = server.accept()
                except OSError:  # the block has ended
                    return
                with connection:
                    connection.settimeout(PATIENCE_S)
                    with suppress(TimeoutError):
                        while connection.recv(2**20):
                            pass
                    connection.sendall(content)

        thread = threading.Thread(target=respond)
        thread.start()
        yield Target(host="127.0.0.1", port=server.getsockname()[1], pause_s=0.0)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Acts:
    """Lets clients act so many times."""

    def __init__(self, count: int) -> None:
        self.left = count

    def ends(self, wait_s: float) -> bool:
        self.left -= 1
        return not self.left


BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


def test_every_kind_has_a_response_that_is_known() -> None:
    assert RESPONSES.keys() == KINDS.keys() >= HELD.keys()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in HELD])
def test_responses_are_counted_by_status(kind: str) -> None:
    for response, status in ((BUSY, "429"), (b"", "closed without a response")):
        with listening(response) as target:
            assert KINDS[kind](target, Acts(3).ends) == {status: 3}


@pytest.mark.parametrize("kind", HELD)
def test_connections_are_held_until_the_end(kind: str) -> None:
    with listening(None) as target:
        assert KINDS[kind](target, Acts(2).ends) == {"still open": HELD[kind]}


def test_a_process_acts_until_its_turn_ends() -> None:
    with line_process(MODULE, "the process of bad clients") as process:
        for response, status in ((BUSY, "429"), (b"", "closed without a response")):
            with listening(response) as target:
                begin_turn(process, "malformed JSON", target)
                responses = end_turn(process)
            assert responses.keys() == {status} and responses[status] >= 1
        with listening(None) as target:
            begin_turn(process, "500 idle connections", target)
            assert end_turn(process) == {"still open": CONNECTIONS}


def test_a_server_that_ended_is_an_error() -> None:
    with line_process(MODULE, "the process of bad clients") as process:
        with listening(b"") as target:
            pass
        begin_turn(process, "malformed JSON", target)
        with pytest.raises(ModelError, match="bad clients ended with status 1: ConnectionRefused"):
            end_turn(process)


def traffic(p99_ms: float | None, failed: int = 0) -> GoodTraffic:
    return GoodTraffic(
        p50_ms=5.0,
        p99_ms=p99_ms,
        outcomes={"ok": 300, "rejected": 0, "late": 0, "failed": failed},
        lag_share=0.01,
    )


MEANWHILE: Mapping[str, tuple[float | None, ...]] = {
    "wrong dtype": (10.0, 20.0, 40.0),  # as alone
    "wrong shape": (20.0, 20.0, 160.0),
    "gzip bomb of 64 MB": (50.0, 100.0, 200.0),
    "truncated body": (10.0, 20.0, None),
}


def made_up(kinds: Mapping[str, tuple[float | None, ...]] = MEANWHILE) -> BadClients:
    """Return turns whose p99 alone is 10, 20 and 40 ms."""
    return BadClients(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        config=QUICK.model_copy(update={"kinds": tuple(kinds)}),
        limit=Limit(slo_p99_ms=500, rate=100.0, above=105.0),
        rate=40.0,
        turns=tuple(
            BadClientsTurn(
                kind=kind,
                round=number,
                alone=traffic(10.0 * 2**number),
                meanwhile=traffic(p99s[number], failed=9 if p99s[number] is None else 0),
                responses={RESPONSES[kind]: 7},
                grown_bytes=1_000_000 * number,
            )
            for number in range(3)
            for kind, p99s in kinds.items()
        ),
        load=MachineLoad(other_work=0.0, steal=0.0),
        environment=environment(),
    )


def block_of(result: BadClients, folder: Path) -> str:
    path = folder / "bad.json"
    path.write_text(result.model_dump_json())
    return bad_clients_block("bad.json", path)


def test_the_ratios_are_those_within_turns(tmp_path: Path) -> None:
    text = block_of(made_up(), tmp_path)
    assert "| wrong dtype | 400: 21 | 20.0 | 20.0 | 1.00 [1.00, 1.00] |" in text
    assert "| gzip bomb of 64 MB | 500: 21 | 20.0 | 100.0 | 5.00 [5.00, 5.00] |" in text
    assert "| truncated body | closed without a response: 21 | 20.0 | none | - |" in text
    assert "Raw: `bad.json`" in text


def test_the_table_judges_every_kind(tmp_path: Path) -> None:
    text = block_of(made_up(), tmp_path)
    assert (
        "(aim): missed with gzip bomb of 64 MB, truncated body; not distinguished from it with "
        "wrong shape; reached with wrong dtype." in text
    )
    assert "Good requests alone, ok: 3,600; meanwhile, ok: 3,600, failed: 9." in text
    assert "Good and bad ones come over HTTP; a bad one" in text
    config = made_up().config.model_copy(update={"nginx": True})
    proxied = made_up().model_copy(update={"config": config})
    assert "come through nginx with the configuration of deploy/" in block_of(proxied, tmp_path)
    fine = made_up({"wrong dtype": MEANWHILE["wrong dtype"]})
    assert "(aim): reached with wrong dtype." in block_of(fine, tmp_path)


def test_the_command_writes_what_it_measured(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[BadClientsConfig] = []

    def measured(artifact: Artifact, texts: list[str], config: BadClientsConfig) -> BadClients:
        configs.append(config)
        return made_up()

    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "measure_bad_clients", measured)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "bad.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--no-pin", "--seconds", "3"]
    done = CliRunner().invoke(app, [*words, "--limit", "90", "--nginx"])
    assert done.exit_code == 0, done.output
    assert "gzip bomb of 64 MB: p99 5.00x [5.00, 5.00]" in done.output
    assert "truncated body: p99 unknown" in done.output
    assert BadClients.model_validate_json(out.read_text()) == made_up()
    (config,) = configs
    assert (config.limit, config.seconds, config.rounds, config.nginx) == (90, 3, 5, True)
    assert config.kinds == tuple(KINDS)
