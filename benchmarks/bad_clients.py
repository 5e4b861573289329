"""Good requests at a rate, alone and while a bad client of each kind acts, in turns.

Good requests come at 40 % of the highest rate that holds a p99, in an open loop, over HTTP as the
bad ones do: they share the threads of the server that read it. In every round each row of KINDS has
a turn, in an order that is drawn: good requests alone, and the same ones at the same times while
one client of that kind sends a bad request a few times a second, or some hold connections. Bad
clients are a process of their own on the generator's core.
"""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import multiprocessing
import socket
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import typer

from benchmarks import harness, servers
from benchmarks.cells import DASH, Table, machine, ratio_over, two
from serve.config import ServeConfig
from serve.wire import MODEL_NAME, TRUNCATE

SHARE = 0.4
"""Rate of good requests, as a share of the limit."""
PAUSE_S = 0.3
"""Pause of a bad client between a response and its next request."""
CONNECTIONS, SLOW_CLIENTS, LEVELS = 500, 10, 10_000
"""Idle connections; connections that send a byte a second; levels of nested JSON."""
HEAVY_TEXTS, HEAVY_WORDS = 64, 600
"""Texts of the heavy caller's requests, and words of each, which are cut to the longest input."""
BOMB_BYTES = 2**26
"""Size of the bomb once it is unpacked."""
MOST_TEXTS = ServeConfig().max_batch_size
TIMEOUT_S = 10.0
"""Longest wait for a response."""
HEAD = f"POST /v2/models/{MODEL_NAME}/infer HTTP/1.1\r\nHost: endpoint\r\n".encode()

Place = tuple[str, int]
Ends = Callable[[float], bool]
"""Waits for some seconds; returns whether the client must end now."""
Act = Callable[[Place, Ends], Counter[str]]
"""Acts until the end; returns the statuses of responses, or the states of connections."""


def run(
    artifact: harness.ServedArtifact,
    limit: Annotated[float, typer.Option(help="requests/s that hold the p99")],
    out: harness.Out = None,
    task: servers.TaskName = "sst2",
    rounds: Annotated[int, typer.Option(min=2, help="turns of each kind")] = 5,
    seconds: Annotated[float, typer.Option(help="alone, and again with bad clients")] = 1.8,
    server: Annotated[str, typer.Option(help="what runs the model behind the door")] = "triton",
    pin: servers.Pin = True,
    noisy: harness.Noisy = False,
) -> None:
    """Measure good requests while bad clients act."""
    model, pins, texts = servers.servable(artifact), servers.pins_of(pin), servers.texts_of(task)
    rows, rate = list[harness.Row](), SHARE * limit
    with (
        harness.watched(noisy, out) as meter,
        servers.endpoint(model, texts, pins, over_http=True, server=server) as (running, asked),
    ):
        address = urlsplit(running.http_url)
        place = (str(address.hostname), int(address.port or 0))
        for number in range(rounds):
            # every round has another order
            for kind in map(str, np.random.default_rng(number).permutation([*KINDS])):
                alone = asked.at_rate(rate, seconds, warmup_s=0.2)
                with servers.pinned(pins.generator), acting(kind, place) as responses:
                    meanwhile = asked.at_rate(rate, seconds, warmup_s=0.2)
                parts = {"alone": servers.outcomes(alone), "meanwhile": servers.outcomes(meanwhile)}
                rows.append({"kind": kind, "round": number, **parts, "responses": dict(responses)})
    about = {**servers.facts_of(model), "server": server, "limit": {"rate": limit}, "rate": rate}
    harness.record("bad-clients", rows, out, meter.load, **about)


@contextmanager
def acting(kind: str, place: Place) -> Iterator[dict[str, int]]:
    """Let a bad client act in a process of its own, from its first act until the block ends.

    Yields:
        The outcomes of its requests, filled in at the end.
    """
    context = multiprocessing.get_context("spawn")
    begun, over, results = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=_act, args=(kind, place, begun, over, results))
    process.start()
    responses: dict[str, int] = {}
    try:
        begun.wait()
        yield responses
        over.set()
        responses |= results.get()
    finally:
        over.set()
        process.join()


def _act(kind: str, place: Place, begun: Any, over: Any, results: Any) -> None:
    def ends(wait_s: float) -> bool:
        begun.set()
        return bool(over.wait(wait_s))

    try:
        results.put(dict(KINDS[kind](place, ends)))
    finally:
        begun.set()  # where it fails, nothing has set it


def _repeated(make: Callable[[], bytes], truncated: bool = False, pause_s: float = PAUSE_S) -> Act:
    """Return a client that sends the same bytes again and again, each time on a new connection."""

    def act(place: Place, ends: Ends) -> Counter[str]:
        content, responses = make(), Counter[str]()
        while True:
            responses[_exchange(place, content, truncated)] += 1
            if ends(pause_s):
                return responses

    return act


def _exchange(place: Place, content: bytes, truncated: bool) -> str:
    """Send bytes, and nothing more where they are truncated; return the status of the response."""
    with socket.create_connection(place, timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(content)
            if truncated:
                connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()
        except TimeoutError:
            return f"no response in {TIMEOUT_S:g} s"
        except (OSError, http.client.HTTPException):
            return "closed without a response"
    return str(response.status)


def _send_slowly(place: Place, ends: Ends) -> Counter[str]:
    """Send a byte a second on each of some connections: a request whose head has no end."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(place)) for _ in range(SLOW_CLIENTS)
        ]
        for byte in itertools.chain(HEAD, itertools.repeat(ord("a"))):
            for client in clients:
                with suppress(OSError):  # closed by the server, which `_state` reports
                    client.sendall(bytes([byte]))
            if ends(1.0):
                break
        return Counter(map(_state, clients))


def _hold_connections(place: Place, ends: Ends) -> Counter[str]:
    """Open many connections, and send nothing."""
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(place)) for _ in range(CONNECTIONS)]
        while not ends(1.0):
            pass
        return Counter(map(_state, clients))


def _state(client: socket.socket) -> str:
    """Return the state of a connection without a whole request."""
    client.setblocking(False)
    try:
        return "a response" if client.recv(1) else "closed"
    except BlockingIOError:
        return "still open"
    except OSError:
        return "closed"


def _post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(body)}", *headers))
    return HEAD + f"{lines}\r\n".encode() + body


def _tensor(data: Sequence[Any], **changes: Any) -> bytes:
    """Return the JSON of a request: texts, with changes of the tensor that holds them."""
    tensor = {"name": "TEXT", "shape": [len(data), 1], "datatype": "BYTES", "data": data}
    return json.dumps({"inputs": [{**tensor, **changes}]}).encode()


def _invalid_utf8() -> bytes:
    """Return a request whose text follows its JSON, since JSON holds no invalid UTF-8."""
    text = b"\xff\xfe"
    size = {"binary_data_size": 4 + len(text)}
    tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + len(text).to_bytes(4, "little") + text
    return _post(body, f"Inference-Header-Content-Length: {len(head)}")


def _heavy() -> bytes:
    body = json.loads(_tensor(["a long text " * (HEAVY_WORDS // 3)] * HEAVY_TEXTS))
    return _post(json.dumps({**body, "parameters": {TRUNCATE: True}}).encode())


def _nested() -> bytes:
    inside = b"[" * LEVELS + b'"a text"' + b"]" * LEVELS
    return _post(_tensor([0]).replace(b"[0]", inside))


KINDS: Mapping[str, Act] = {
    f"{HEAVY_TEXTS} of the longest texts at a time": _repeated(_heavy, pause_s=0.0),
    "a text of 1 MB": _repeated(lambda: _post(_tensor(["a" * 2**20]))),
    "invalid UTF-8": _repeated(_invalid_utf8),
    "wrong dtype": _repeated(lambda: _post(_tensor([1.0], datatype="FP32"))),
    "wrong shape": _repeated(lambda: _post(_tensor(["a", "b"], shape=[1, 2]))),
    "batch over the limit": _repeated(lambda: _post(_tensor(["a text"] * (MOST_TEXTS + 1)))),
    "malformed JSON": _repeated(lambda: _post(b"{")),
    f"JSON of {LEVELS:,} levels": _repeated(_nested),
    "truncated body": _repeated(lambda: _post(_tensor(["a text"]))[:-10], truncated=True),
    f"gzip bomb of {BOMB_BYTES // 2**20} MB": _repeated(
        lambda: _post(gzip.compress(b" " * BOMB_BYTES), "Content-Encoding: gzip")
    ),
    f"{SLOW_CLIENTS} that send a byte a second": _send_slowly,
    f"{CONNECTIONS} idle connections": _hold_connections,
}
"""Kind of bad client -> the function that acts as one."""


def table(runs: Sequence[harness.Run]) -> Table:
    """Outcome of bad requests, and by server the p99 of good ones alone, and how it changes."""
    groups = [harness.grouped(run.rows, "kind") for run in runs]
    rows = []
    for kind in filter(groups[0].__contains__, KINDS):
        got = sum((Counter(turn["responses"]) for turn in groups[0][kind]), Counter[str]())
        rows.append([kind, ", ".join(got), *(cell for own in groups for cell in _cells(own[kind]))])
    note = (
        f"{runs[0].about['precision']}; good single texts over HTTP at 40 % of the highest rate "
        "with a p99 of 50 ms; geometric means over 5 turns, brackets are 95 % intervals. "
        f"{machine(runs[0])}, one core."
    )
    shown = (f"{run.about['server']}: {each}" for run in runs for each in ("p99, ms", "ratio"))
    return Table(["Bad clients", "Outcome", *shown], rows, note)


def _cells(turns: Sequence[harness.Row]) -> list[str]:
    alone, meanwhile = ([turn[part]["p99_ms"] for turn in turns] for part in ("alone", "meanwhile"))
    if None in (*alone, *meanwhile):  # more than 1 % of good requests have no response
        return [DASH, DASH]
    ratio = ratio_over(alone, meanwhile)
    bounds = f"[{two(ratio.low)}, {two(ratio.high)}]"
    return [two(statistics.geometric_mean(alone)), f"{two(ratio.value)} {bounds}"]
