"""API keys: who calls, the tokens per second of a key, and whose turn a request takes.

The file of keys has a row for each key: a name, the SHA-256 of the key in hexadecimal digits, and
optionally a limit in tokens per second. Keys are random (`new_key`), so a digest does not reveal
its key. The file is read again when it changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertender.core.artifact import file_state
from bertender.core.errors import ConfigError
from serve.door.engine import Code, RefusedError

logger = logging.getLogger(__name__)

KEY_BYTES = 32
MOST_KEY_CHARACTERS = 4096
NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")
LOOK_AGAIN_S = 1.0
"""Seconds between checks whether the file of keys has changed."""
BEARER = "bearer "


@dataclass
class Key:
    """A row of the file of keys, and its remaining tokens."""

    name: str
    tokens_per_second: float | None = None
    balance: float = 0.0
    """Remaining tokens; below 0, requests are refused."""
    since: float = 0.0

    def admit(self, now: float) -> None:
        """Raise RefusedError if the key has used up its tokens."""
        if self.tokens_per_second is None:
            return
        rate = self.tokens_per_second
        self.balance = min(rate, self.balance + rate * (now - self.since))
        self.since = now
        if self.balance < 0:
            raise RefusedError(
                Code.TOO_MANY,
                f"the key {self.name!r} has used up its {rate:g} tokens a second. Send it again "
                "later.",
                retry_after_s=-self.balance / rate,
            )

    def charge(self, tokens: int) -> None:
        """Subtract the tokens of a request, possibly more than are left."""
        if self.tokens_per_second is not None:
            self.balance -= tokens


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    name: str
    """Name of its key; without keys, of its connection."""
    key: Key | None = None


class Callers:
    """The keys that open the door.

    Args:
        file: file of keys; None lets everybody in.
        clock: returns seconds.

    Raises:
        ConfigError: the file cannot be read, or a row has an error.
    """

    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = file
        self.clock = clock
        self.keys: dict[str, Key] = {}
        self.stamp: tuple[int, ...] = ()
        self.looked_at = clock()
        self.fault = ""
        """The last error of reading the file, which is logged once."""
        if file is not None:
            self.stamp = _stamp(file)
            self.keys = read_keys(file)
            if not self.keys:
                logger.warning(
                    "api_keys=%s: there are no keys, so no request is answered. `bertender api-key "
                    "NAME --file %s` adds one.",
                    file,
                    file,
                )

    def caller(self, authorization: str | None, connection: str) -> Caller:
        """Return the sender of a request, given its header Authorization.

        Raises:
            RefusedError: UNAUTHORIZED: no known key; TOO_MANY: the key has used up its tokens.
        """
        if self.file is None:
            return Caller(connection)
        self._read_again(self.file)
        if authorization is None or not authorization.lower().startswith(BEARER):
            raise RefusedError(
                Code.UNAUTHORIZED,
                "no key. Send the header Authorization: Bearer KEY with the request.",
            )
        sent = authorization[len(BEARER) :].strip()[:MOST_KEY_CHARACTERS]
        key = self.keys.get(digest(sent))
        if key is None:
            raise RefusedError(Code.UNAUTHORIZED, "the key is unknown.")
        key.admit(self.clock())
        return Caller(key.name, key)

    def _read_again(self, file: Path) -> None:
        """Read a changed file, skipping rows with errors, so that a removed row always revokes its
        key. If the file cannot be read, nothing changes."""
        now = self.clock()
        if now - self.looked_at < LOOK_AGAIN_S:
            return
        self.looked_at = now
        try:
            if (stamp := _stamp(file)) == self.stamp:
                return
            self.stamp = stamp
            faults: list[str] = []
            fresh = read_keys(file, faults)
        except ConfigError as error:
            if self.fault != str(error):
                logger.error("%s The keys stay as they were.", error)
            self.fault = str(error)
            return
        self.fault = ""
        for fault in faults:
            logger.error("%s", fault)
        for code, key in fresh.items():
            if (old := self.keys.get(code)) is not None:
                key.balance, key.since = old.balance, old.since
        self.keys = fresh


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        return file_state(
            file
        )  # its time alone has steps, within which it may be read half written
    except OSError as error:
        raise ConfigError(f"api_keys={file}: {error.strerror}.") from None


def digest(key: str) -> str:
    """Return the digest of a key, as in the file of keys."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def new_key(name: str, tokens_per_second: float | None = None) -> tuple[str, str]:
    """Return a random key, and the row of the file of keys for it.

    Raises:
        ConfigError: the name is not valid in a row.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: write 1 to 64 letters, digits or _ . @ -.")
    key = secrets.token_urlsafe(KEY_BYTES)
    limit = [] if tokens_per_second is None else [f"{tokens_per_second:.15g}"]
    return key, " ".join([name, digest(key), *limit])


def append_row(file: Path, row: str) -> None:
    """Append a row to a file of keys; a new file is readable only by this user.

    Raises:
        ConfigError: the file cannot be written, or already has a row of this name.
    """
    name, _, *_ = row.split()
    if file.exists() and name in {key.name for key in read_keys(file).values()}:
        raise ConfigError(f"{file}: it has a key {name!r} already. Remove its row first.")
    try:
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+") as target:
            content = target.read()
            target.write(f"\n{row}\n" if content and not content.endswith("\n") else f"{row}\n")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}.") from None


def read_keys(file: Path, faults: list[str] | None = None) -> dict[str, Key]:
    """Return the keys in a file, by their digests.

    Args:
        file: file of keys.
        faults: list for descriptions of rows with errors, which are then skipped; by default errors
            are raised.

    Raises:
        ConfigError: the file cannot be read, or a row has an error.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"api_keys={file}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"api_keys={file}: {error}.") from None
    keys: dict[str, Key] = {}
    names: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, code, *limit = line.split()[:3] if len(line.split()) in (2, 3) else ("", "")
        rate = _rate(limit[0]) if limit else None
        fault = ""
        if not (NAME.fullmatch(name) and DIGEST.fullmatch(code)) or rate == 0:
            fault = (
                f"line {number} is not a row. Write NAME SHA256 or NAME SHA256 TOKENS_PER_SECOND, "
                "as `bertender api-key NAME` does."
            )
        elif code in keys or name in names:
            fault = f"the key of line {number} is a duplicate."
        if fault:
            if faults is None:
                raise ConfigError(f"api_keys={file}: {fault}")
            faults.append(f"api_keys={file}: {fault} The row is left out.")
            continue
        names.add(name)
        keys[code] = Key(name, rate)
    return keys


def _rate(text: str) -> float:
    """Return a number of tokens a second; 0 for text that is not a number."""
    try:
        rate = float(text)
    except ValueError:
        return 0.0
    return rate if 0 < rate < 1e12 else 0.0
