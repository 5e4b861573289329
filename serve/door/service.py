"""Door: passes inference requests of both protocols to the engine, and responses back."""

from __future__ import annotations

import asyncio
import functools
import hmac
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from ipaddress import ip_address
from pathlib import Path

from serve.door.callers import Caller, Callers
from serve.door.engine import RETRY_AFTER_S, Code, Engine, Model, RefusedError
from serve.door.records import Records, Visit, traces_to
from serve.door.requests import Asked, bytes_read, invalid, shown, too_long
from serve.wire import ADMIN_HEADER, TOKENS, Tensor

SERVER_NAME = "bertender"
SERVER_VERSION = metadata.version("bertender")
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository")
FAILURE = "internal error of the server; see its log."

SPECIAL_TOKENS = 2
"""Fewest tokens of a text: those added by the tokenizer."""
BYTES_OF_TOKEN = 4
"""Approximate average, to estimate tokens without a tokenizer."""
COUNTED_AT_ONCE = 2
"""Requests whose tokens are counted at a time: a large one keeps a core busy for up to a second."""
FEW_BYTES = 16 * 1024
"""Bytes of a small request: the engine tokenises it as soon as the door could."""

Example = tuple[str, ...]
CountTokens = Callable[[Model, Sequence[Example]], Sequence[int]]
"""(model, examples) -> tokens of each, up to the first with too many; runs in a thread"""


@dataclass(frozen=True)
class DoorSettings:
    """Settings of the protocols."""

    api_keys: Path | None = None
    """File of keys, see `callers`; None lets everybody in."""
    admin_token: str | None = None
    """Token for the administrative routes; None closes them to everybody."""
    allow_origins: tuple[str, ...] = ()
    """Origins of other sites' pages that may send requests from a browser."""
    access_log: Path | None = None
    otlp_endpoint: str | None = None
    """URL to send traces to; None for that in OpenTelemetry's variables."""
    behind_proxy: bool = False
    """Whether only a proxy reaches the door: X-Forwarded-For names the caller."""
    is_local: bool = False
    """Whether it listens at a loopback address."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    most_connections: int = 1000
    """Most HTTP connections and gRPC calls at a time."""
    idle_s: float = 75.0
    """Longest time for which a connection may be unused."""
    head_s: float = 10.0
    """Longest time from the first byte of a request's head to its last."""
    most_head_bytes: int = 16 * 1024
    body_s: float = 60.0
    """Longest time for a request's body."""
    most_held_bytes: int = 64 * 2**20
    """Most bytes of bodies, gRPC messages, and texts in the engine at a time."""

    @property
    def has_own_names(self) -> bool:
        """Whether it only answers to names of this machine, since there are no keys and no
        proxy."""
        return self.is_local and self.api_keys is None and not self.behind_proxy


class Door:
    """The part of the door that both protocols share.

    Attributes:
        leaving: the process is about to end; HTTP connections are closed after a response.

    Args:
        engine: started engine.
        settings: settings of the protocols.
        count_tokens: counts tokens, so that the door refuses long texts; None leaves this to the
            engine.

    Raises:
        ConfigError: the file of keys has an error.
    """

    def __init__(
        self,
        engine: Engine,
        settings: DoorSettings | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings or DoorSettings()
        self.count_tokens = count_tokens
        self.callers = Callers(self.settings.api_keys)
        self.records = Records(self.settings.access_log, traces_to(self.settings.otlp_endpoint))
        self.leaving = False
        self.held_bytes = 0
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[tuple[Tensor, ...]]] = set()
        self._counting = asyncio.Semaphore(COUNTED_AT_ONCE)
        self.records.ready.set_function(lambda: float(self.is_ready))
        self.records.held_bytes.set_function(lambda: float(self.held_bytes))

    @property
    def is_ready(self) -> bool:
        """Whether the door accepts requests."""
        return not self.leaving and self.engine.is_ready()

    async def model(self, name: str, version: str = "") -> Model:
        """Return a model.

        Raises:
            RefusedError: UNKNOWN: no model of this name and version.
        """
        models = await self.engine.models()
        model = models.get(name)
        if model is None:
            known = ", ".join(models) or "none"
            raise RefusedError(Code.UNKNOWN, f"no model {shown(name)}. Known: {known}.")
        if version not in ("", model.version):
            reason = f"no version {shown(version)} of {name!r}. Known: {model.version}."
            raise RefusedError(Code.UNKNOWN, reason)
        return model

    def connection(self, own: str, forwarded: Sequence[str]) -> str:
        """Return the name of a request's connection.

        Args:
            own: address of the connection to the door.
            forwarded: values of the header X-Forwarded-For. Only the last address is from the
                proxy; those before it are from its client.
        """
        if not self.settings.behind_proxy or not forwarded:
            return own
        last = forwarded[-1].rpartition(",")[2].strip()
        try:
            return str(ip_address(last))
        except ValueError:
            return own

    def number(self) -> int:
        """Return the number of a new request."""
        return next(self._numbers)

    def hold(self, size: int, whole: int = 0) -> None:
        """Count bytes of a body or message in memory; below 0, freed bytes.

        Args:
            size: added or freed bytes.
            whole: bytes of the request so far. Small requests may use a quarter more than the
                limit, so that large ones do not keep them out.

        Raises:
            RefusedError: UNAVAILABLE: too many bytes are held already.
        """
        most = self.settings.most_held_bytes
        if whole <= FEW_BYTES:
            most += most // 4
        if size > 0 and self.held_bytes + size > most:
            raise RefusedError(
                Code.UNAVAILABLE,
                f"the bodies of requests take {self.held_bytes} bytes already. Send it later.",
                retry_after_s=RETRY_AFTER_S,
            )
        self.held_bytes += size

    def check_admin(self, token: str | None) -> None:
        """Raise RefusedError if a token is not the administrator's."""
        own = self.settings.admin_token
        if own is None or not hmac.compare_digest((token or "").encode(), own.encode()):
            raise RefusedError(
                Code.FORBIDDEN,
                f"restricted: only who has the token of --admin-token-file (header {ADMIN_HEADER}) "
                "may do this.",
            )

    async def infer(self, visit: Visit, asked: Asked, model: Model, caller: Caller) -> list[Tensor]:
        """Return the outputs for a request. A cancelled task abandons the work without interrupting
        it, since other requests run with it.

        Raises:
            RefusedError: there are no outputs.
        """
        visit.texts = asked.request.rows
        size = sum(len(each.data) for each in asked.request.inputs)
        self.hold(size, size)
        try:
            visit.tokens = await self.tokens(asked, model, caller)
        except BaseException:
            self.hold(-size)
            raise
        # a text of punctuation has five times the tokens of its estimate
        is_limited = caller.key is not None and caller.key.tokens_per_second is not None
        request = replace(asked.request, counted=True) if is_limited else asked.request
        # held until the engine is done with it, even if the client has disconnected
        task = asyncio.ensure_future(self.engine.infer(request))
        self._running.add(task)
        task.add_done_callback(functools.partial(self._done, size))
        try:
            outputs = list(await asyncio.shield(task))
        except asyncio.CancelledError:
            self.engine.abandon(asked.request)
            raise
        except RefusedError as error:
            if error.code is Code.UNAVAILABLE and caller.key is not None:
                caller.key.charge(-visit.tokens)  # nothing ran, so it can be sent again
            raise
        for each in outputs:
            if each.name == TOKENS and caller.key is not None:
                counted = int(each.array().sum())
                caller.key.charge(counted - visit.tokens)
                visit.tokens = counted
        return [each for each in outputs if each.name != TOKENS]

    def _done(self, size: int, task: asyncio.Task[tuple[Tensor, ...]]) -> None:
        self.hold(-size)
        self._running.discard(task)
        # retrieved, since asyncio reports errors that are not
        if not task.cancelled() and isinstance(error := task.exception(), RefusedError):
            error.__traceback__ = None  # a cycle with its frames, which hold the texts

    async def tokens(self, asked: Asked, model: Model, caller: Caller) -> int:
        """Return the estimated tokens of a request, and charge them to its key.

        Only texts that may be too long are tokenised, where they would be refused then and have
        many bytes: the engine, which tokenises each text, refuses a short one as quickly. Others
        are estimated by their bytes.

        Raises:
            RefusedError: INVALID: an example is longer than the model's input; TOO_MANY: the key
                has used up its tokens since the request began.
        """
        longest = model.longest_input
        reads = [bytes_read(example, model) for example in asked.examples()]
        specials = SPECIAL_TOKENS * len(model.inputs)
        most = sys.maxsize if longest is None else longest
        counts = [
            sum(min(size // BYTES_OF_TOKEN + specials, most) for size in own) for own in reads
        ]
        if caller.key is not None:  # also for requests refused below, which cost as much
            caller.key.admit(self.callers.clock())
            caller.key.charge(sum(counts))
        if longest is None or self.count_tokens is None or asked.request.truncate:
            return sum(counts)
        long = [row for row, own in enumerate(reads) if max(own) + specials > longest]
        if sum(sum(reads[row]) for row in long) <= FEW_BYTES:
            return sum(counts)
        found = await self._counted(model, asked, long)
        for row, count in zip(long, found, strict=False):  # as far as they were counted
            if count > longest:
                raise invalid(too_long(row, longest))
            if len(reads[row]) > 1:  # the count is that of the longest only
                continue
            if caller.key is not None:
                caller.key.charge(count - counts[row])
            counts[row] = count
        return sum(counts)

    async def _counted(self, model: Model, asked: Asked, rows: Sequence[int]) -> Sequence[int]:
        """Return the tokens of rows, given by index, up to the first that is too long."""
        assert self.count_tokens is not None
        await self._counting.acquire()  # a client that disconnects while waiting costs nothing
        every = asked.examples()
        examples = [tuple(text.decode() for text in every[row]) for row in rows]
        counting = asyncio.ensure_future(asyncio.to_thread(self.count_tokens, model, examples))
        counting.add_done_callback(self._counted_one)
        return await asyncio.shield(counting)  # a thread cannot be cancelled

    def _counted_one(self, counting: asyncio.Future[Sequence[int]]) -> None:
        self._counting.release()
        if not counting.cancelled():
            counting.exception()  # else asyncio reports it as not retrieved


def platform_of(model: Model) -> str:
    """Return the platform of a model, for its metadata."""
    return str(model.config.get("platform") or model.config.get("backend") or "")
