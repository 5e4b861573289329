"""What the door allows a connection: time, bytes, company; and what a client that goes stops."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from serve.door.http_server import BoundedProtocol
from tests.serve.door.fake_engine import FakeEngine, RunningDoor, model_of, running_door
from tests.serve.door.raw_http import HEAD, body, exchange, get, post, read_answer, read_answers
from tests.served import until

HEAD_S, BODY_S, IDLE_S = 0.3, 0.5, 0.8
MOST_CONNECTIONS = 8
PLUM, HELD = post(body()), post(body(data=["HOLD"]))


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running_door(most_connections=MOST_CONNECTIONS, most_held_bytes=100_000) as door:
        yield door


@pytest.fixture(scope="module")
def hasty() -> Iterator[RunningDoor]:
    with running_door(head_s=HEAD_S, body_s=BODY_S, idle_s=IDLE_S) as door:
        yield door


def connect(door: RunningDoor) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door.http_port), 10)


@pytest.mark.parametrize(
    ("start", "drip", "seconds"),
    [
        (b"POST /a", b"a", HEAD_S),
        (f"{HEAD}Content-Length: 900\r\n\r\n".encode(), b" ", BODY_S),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n", BODY_S),
    ],
    ids=["head", "body", "chunks"],
)
def test_a_slow_request_ends(hasty: RunningDoor, start: bytes, drip: bytes, seconds: float) -> None:
    started = time.monotonic()
    with connect(hasty) as connection:
        connection.sendall(start)
        connection.settimeout(0.05)
        while True:
            assert time.monotonic() < started + seconds + 5
            try:
                connection.sendall(drip)
                if connection.recv(1, socket.MSG_PEEK):
                    break
            except TimeoutError:
                continue
        answer = read_answer(connection)
    assert answer is not None and answer.status == 408
    assert time.monotonic() - started >= seconds


@pytest.mark.parametrize("first", [b"", PLUM, b"\r\n"], ids=["new", "after a request", "empty"])
def test_an_idle_connection_ends(hasty: RunningDoor, first: bytes) -> None:
    with connect(hasty) as connection:
        if first:
            connection.sendall(first)
        if first == PLUM:
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
        started = time.monotonic()
        assert connection.recv(1) == b""
    assert IDLE_S / 2 < time.monotonic() - started < IDLE_S + 5


def test_a_long_wait_for_the_engine_is_no_idle_connection(hasty: RunningDoor) -> None:
    with connect(hasty) as connection:
        connection.sendall(HELD)
        time.sleep(2 * IDLE_S)
        hasty.call(hasty.engine.let_go.set)
        answer = read_answer(connection)
    hasty.call(hasty.engine.let_go.clear)
    assert answer is not None and answer.status == 200


def test_a_request_under_way_makes_no_room(door: RunningDoor) -> None:
    """Nor where its client has begun to send the next one."""
    until(lambda: not door.connections)
    started = len(door.engine.requests)
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(door)) for _ in range(MOST_CONNECTIONS)]
        for connection in busy:
            connection.sendall(HELD + HELD[:-5])
        until(lambda: len(door.engine.requests) == started + MOST_CONNECTIONS)
        answer = exchange(door.http_port, PLUM)
        assert answer is not None and answer.status == 503
        door.call(door.engine.let_go.set)
        for connection in busy:
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
    door.call(door.engine.let_go.clear)


def test_a_refused_body_is_skipped_and_the_connection_goes_on(door: RunningDoor) -> None:
    with connect(door) as connection:
        refused = post(b" " * 5000, path="/v2/models/nobody/infer")
        connection.sendall(refused[:-2000])
        answers = [read_answer(connection)]
        connection.sendall(refused[-2000:] + PLUM)
        answers.append(read_answer(connection))
    assert [answer and answer.status for answer in answers] == [404, 200]


def test_connections_are_counted(door: RunningDoor) -> None:
    until(lambda: not door.connections)
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(door)) for _ in range(MOST_CONNECTIONS)]
        started = len(door.engine.requests)
        for connection in busy:
            connection.sendall(HELD)
        until(lambda: len(door.engine.requests) == started + MOST_CONNECTIONS)
        answer = exchange(door.http_port, PLUM)
        assert answer is not None and answer.status == 503
        assert "connections" in answer.error
    until(lambda: (late := exchange(door.http_port, PLUM)) is not None and late.status == 200)
    door.call(door.engine.let_go.set)
    until(lambda: not door.door.held_bytes)
    door.call(door.engine.let_go.clear)


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_handshakes_are_few_and_short(
    tls: tuple[Path, Path], loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    files = {"tls_certificate": tls[0], "tls_key": tls[1]}
    context = ssl.create_default_context(cafile=tls[0])
    with (
        running_door(most_connections=4, head_s=2.0, loop_factory=loop, **files) as door,
        ExitStack() as stack,
    ):
        started = time.monotonic()
        first, *others = [stack.enter_context(connect(door)) for _ in range(5)]
        assert first.recv(1) == b"" and time.monotonic() < started + 1, "it makes room"
        others[0].sendall(b"no handshake")
        assert others[0].recv(100)[:1] in (b"", b"\x15"), "an alert of TLS, or the end"
        with context.wrap_socket(connect(door), server_hostname="localhost") as connection:
            connection.sendall(PLUM)
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
        for each in others[1:]:
            assert each.recv(1) == b"" and time.monotonic() < started + 4


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_handshakes_that_begin_at_once_are_few_too(
    tls: tuple[Path, Path], loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """A cancelled one ends after the next have been accepted."""
    files = {"tls_certificate": tls[0], "tls_key": tls[1]}
    with (
        running_door(most_connections=4, loop_factory=loop, **files) as door,
        ExitStack() as stack,
    ):
        standing = threading.Thread(target=door.call, args=[lambda: time.sleep(0.3)])
        standing.start()
        *others, last = [stack.enter_context(connect(door)) for _ in range(40)]
        standing.join()
        for each in others[:-3]:
            each.settimeout(5)
            assert each.recv(1) == b""
        last.settimeout(0.1)
        with pytest.raises(TimeoutError):
            last.recv(1)


@pytest.mark.parametrize(
    "sent", [b"", PLUM, b"POST /v2", f"{HEAD}Content-Length: 9\r\n\r\n".encode()]
)
def test_connections_that_wait_for_their_client_make_room(door: RunningDoor, sent: bytes) -> None:
    until(lambda: not door.connections)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(door)) for _ in range(MOST_CONNECTIONS)]
        for connection in waiting:
            connection.sendall(sent)
            if sent == PLUM:
                read_answer(connection)
        time.sleep(0.1)
        first, *others = waiting
        answer = exchange(door.http_port, PLUM)
        assert answer is not None and answer.status == 200
        assert first.recv(4096)[:12] in (b"", b"HTTP/1.1 408"), "the one that waited longest"
        for connection in others:
            connection.settimeout(0.01)
            with pytest.raises(TimeoutError):
                connection.recv(1)


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_closed_connections_that_their_clients_do_not_end_make_room(
    tls: tuple[Path, Path],
    loop: Callable[[], asyncio.AbstractEventLoop] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve.door.http_server.CLOSING_S", 0.2)
    files = {"tls_certificate": tls[0], "tls_key": tls[1]}
    context = ssl.create_default_context(cafile=tls[0])
    with (
        running_door(most_connections=4, loop_factory=loop, **files) as door,
        ExitStack() as stack,
    ):
        for _ in range(20):  # each reads its response, and does not say that it ends TLS
            raw = stack.enter_context(connect(door))
            connection = stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
            connection.sendall(post(body(), "Connection: close"))
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
            time.sleep(0.05)
        assert len(door.connections) < 10


def test_a_client_that_stops_before_the_end_of_its_last_response_is_left() -> None:
    engine = FakeEngine({"classifier": model_of(config={"name": "a" * 100_000})})
    ask = "GET /v2/models/classifier/config HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n"
    with running_door(engine, body_s=2.0) as door, connect(door) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        until(lambda: bool(door.connections))
        (own,) = door.connections
        assert isinstance(own, BoundedProtocol)
        few = own.transport.get_extra_info("socket")
        few.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what the kernel takes
        connection.sendall(ask.encode())
        until(lambda: own.flow.write_paused)
        while own.flow.write_paused:
            connection.recv(4096)
        assert own.transport.get_write_buffer_size()
        until(lambda: not door.connections)


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"1\r\n \r\n0\r\n", b"X: y\r\n"), (b"1\r\n \r\n0\r\nX: ", b"y"), (b"1;", b"x")],
    ids=["trailers", "a trailer", "a chunk's extension"],
)
def test_what_is_around_a_body_is_bounded(door: RunningDoor, start: bytes, more: bytes) -> None:
    with connect(door) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + start)
        time.sleep(0.1)  # else it may be read with the start
        connection.sendall(more * 50_000)
        answer = read_answer(connection)
        assert answer is not None and answer.status == 431
    with connect(door) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(body()), body()))
        answer = read_answer(connection)
    assert answer is not None and answer.status == 200


def test_a_body_is_never_taken_for_a_request(door: RunningDoor) -> None:
    """llhttp takes the bytes after a head with Upgrade for the other protocol's."""
    upgrade = ("Connection: upgrade", "Upgrade: h2c")
    hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: door\r\n\r\n"
    with connect(door) as connection:
        connection.sendall(post(hidden, *upgrade)[: -len(hidden)])
        answer = read_answer(connection)
        assert answer is not None and answer.status == 400 and "Upgrade" in answer.error
        with suppress(ConnectionError):
            connection.sendall(hidden)
        assert read_answer(connection) is None
    assert get(door.http_port, "/v2/health/live", *upgrade).status == 200


CHUNKED = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
LATE = {  # a request sent ahead of an earlier response -> status of its own
    "a late body": (f"{HEAD}Content-Length: 900\r\n\r\n".encode(), 408),
    "a late head": (b"POST /v2", 408),
    "no HTTP": (b"\1\2\r\n\r\n", 400),
    "no chunk": (CHUNKED + b"zz\r\n" + PLUM, 400),
    "a large head": (f"{HEAD}X: {'a' * 20_000}\r\n\r\n".encode() + PLUM, 431),
    "a body with Upgrade": (post(body(), "Connection: upgrade", "Upgrade: h2c"), 400),
    "many more": (PLUM * 40, 400),
}


@pytest.mark.parametrize("name", LATE)
def test_a_bad_request_sent_ahead_is_refused_after_the_responses_to_earlier_ones(
    hasty: RunningDoor, name: str
) -> None:
    more, status = LATE[name]
    with connect(hasty) as connection:
        connection.sendall(HELD + PLUM + more)
        time.sleep(2 * BODY_S)  # its own time begins after the others' responses
        hasty.call(hasty.engine.let_go.set)
        statuses = [answer.status for answer in read_answers(connection)]
    hasty.call(hasty.engine.let_go.clear)
    assert statuses[:2] == [200, 200] and {*statuses[2:-1]} <= {200} and statuses[-1] == status


def test_a_large_request_sent_ahead_has_time(hasty: RunningDoor) -> None:
    """The door reads no more of it before the response to the earlier one."""
    large = post(body(data=["a" * 30_000] * 4, shape=[4, 1]))
    with connect(hasty) as connection:
        connection.sendall(HELD + large[:-1000])
        time.sleep(2 * BODY_S)
        hasty.call(hasty.engine.let_go.set)
        connection.sendall(large[-1000:])
        statuses = [answer.status for answer in read_answers(connection)]
    hasty.call(hasty.engine.let_go.clear)
    assert statuses == [200, 200]


def test_requests_sent_ahead_are_bounded(door: RunningDoor) -> None:
    started = len(door.engine.requests)
    with connect(door) as connection, suppress(ConnectionError):
        connection.sendall(PLUM * 1000)
        while connection.recv(65536):
            pass
    assert len(door.engine.requests) < started + 50


def test_bodies_in_memory_are_counted(door: RunningDoor) -> None:
    with connect(door) as first:
        first.sendall(f"{HEAD}Content-Length: 90000\r\n\r\n".encode() + b" " * 80_000)
        until(lambda: door.door.held_bytes >= 80_000)
        answer = exchange(door.http_port, post(b" " * 30_000))
        assert answer is not None and answer.status == 503
        assert answer.headers["retry-after"] == "1"
        first.sendall(b" " * 9990)
        until(lambda: door.door.held_bytes >= 89_990)
        answer = exchange(door.http_port, post(body(data=["plum" * 3000])))
        assert answer is not None and answer.status == 200, "it is small"
    until(lambda: door.door.held_bytes == 0)


@pytest.mark.parametrize("ahead", [b"", PLUM, b"POST /v2"], ids=["", "and a next", "and a start"])
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "later"])
def test_a_client_that_goes_stops_its_work(
    door: RunningDoor, ahead: bytes, is_at_once: bool
) -> None:
    started = len(door.engine.requests)
    with connect(door) as connection:
        connection.sendall(HELD + ahead if is_at_once else HELD)
        until(lambda: len(door.engine.requests) > started)
        if not is_at_once:
            connection.sendall(ahead)
            time.sleep(0.1)
    number = door.engine.requests[-1].number
    until(lambda: number in door.engine.abandoned)
    assert door.door.held_bytes, "the engine still has its text"
    done = door.engine.done
    door.call(door.engine.let_go.set)
    until(lambda: door.engine.done == done + 1 and not door.door.held_bytes)
    door.call(door.engine.let_go.clear)


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body(door: RunningDoor, name: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(body(data=["good pear"]))
    answer = exchange(door.http_port, post(packed, f"Content-Encoding: {name}"))
    assert answer is not None and json.loads(answer.body)["outputs"][0]["data"] == ["positive"]
    for damaged in (packed[:-4], packed + b"more", b"nonsense", b""):
        answer = exchange(door.http_port, post(damaged, f"Content-Encoding: {name}"))
        assert answer is not None and answer.status == 400


def test_another_encoding_is_refused(door: RunningDoor) -> None:
    answer = exchange(door.http_port, post(body(), "Content-Encoding: br"))
    assert answer is not None and answer.status == 400 and "gzip" in answer.error


def test_a_leaving_door_closes_connections_after_a_response(door: RunningDoor) -> None:
    door.door.leaving = True
    try:
        assert get(door.http_port, "/v2/health/ready").status == 503
        with connect(door) as connection:
            connection.sendall(PLUM)
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
            assert answer.headers["connection"] == "close" and connection.recv(1) == b""
    finally:
        door.door.leaving = False
    assert get(door.http_port, "/v2/health/ready").status == 200


def test_texts_that_are_too_long_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def count(model: object, examples: object) -> list[int]:
        texts = [text for (text,) in examples]  # type: ignore[attr-defined]
        counted.extend(texts)
        return [2 + len(text.split()) for text in texts]

    with running_door(count_tokens=count) as door:
        long, fine, short = "a " * 10_000, "pear" * 5000, "a " * 200
        for data, parameters, status in (
            (["plum"], {}, 200),
            ([short], {}, 200),  # the engine's to refuse
            ([fine], {}, 200),
            (["plum", long], {}, 400),
            ([long], {"truncate": True}, 200),
        ):
            content = body({"parameters": parameters}, data=data, shape=[len(data), 1])
            answer = exchange(door.http_port, post(content))
            assert answer is not None and answer.status == status
        assert counted == [fine, long]
        assert model_of().max_batch_size >= 2


def test_long_texts_are_counted_for_few_at_a_time_and_for_nobody_who_has_gone() -> None:
    counted: list[str] = []
    go_on = threading.Event()

    def count(model: object, examples: object) -> list[int]:
        counted.extend(text[0] for (text,) in examples)  # type: ignore[attr-defined]
        assert go_on.wait(10)
        return [9]

    with running_door(count_tokens=count) as door, ExitStack() as stack:
        busy = []
        for letter in "abc":
            busy.append(stack.enter_context(connect(door)))
            busy[-1].sendall(post(body(data=[letter * 20_000])))
            time.sleep(0.1)
        answer = exchange(door.http_port, post(body(data=["d" * 1000])))
        assert answer is not None and answer.status == 200, "it is little work for the engine"
        assert counted == ["a", "b"]
        busy[-1].close()
        time.sleep(0.1)
        go_on.set()
        for connection in busy[:-1]:
            answer = read_answer(connection)
            assert answer is not None and answer.status == 200
        assert counted == ["a", "b"]


@pytest.mark.parametrize("count", [1, 20], ids=["a response", "many"])
def test_a_client_that_reads_nothing_is_left(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.door.http_server.LINGER_S", 0.2)
    big = model_of(config={"name": "a" * 400_000})
    engine = FakeEngine({"classifier": big})
    with running_door(engine, body_s=BODY_S, idle_s=IDLE_S) as door, connect(door) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = b"GET /v2/models/classifier/config HTTP/1.1\r\nHost: door\r\n\r\n"
        connection.sendall(ask * count)
        until(lambda: len(door.connections) == 1)
        until(lambda: not door.connections)
