"""Reason in a Triton server's log why it ended: one line, not five hundred."""

from __future__ import annotations

import re
from pathlib import Path

from bertender.core.errors import ConfigError

STANDARD_OUTPUT = Path("-")
"""A log that is no file, but goes where the rest of the output goes."""

ENDS = re.compile(r"^bertender: (the Python stub\b.+|the server was ended by .+)$", re.M)
"""What the supervisor writes about the end of a server, before it may start it again."""
STARTS_AGAIN = re.compile(r"^bertender: the server ended, status .+; it starts again in .+$", re.M)
"""What it writes next: a later start may end for another reason, which is then the one."""
FOLLOWS_FROM_AN_ERROR = "SIGABRT"
NEAR_LINES = 20
"""Lines before such an end that may have its cause."""

REASONS = (
    re.compile(r"^(bash: .+)$", re.M),  # which cannot start a stub
    re.compile(
        r"failed to load '[^']+' version \d+: (?:Internal: )?(.+?)(?:\\n\\nAt:.*|\"?)$", re.M
    ),
    re.compile(r"(failed to start .+ service: .+?)\s*\"?$", re.M),
    re.compile(r"^(.+error while loading shared libraries.+)$", re.M),
    re.compile(r"^(?:E\d{4} .*?\] (?!\"CudaDriver)\"?|error: )(.+?)\"?$", re.M),
)
"""Reasons in a server's log for its end, the clearest first. Without a GPU, each log also has an
error about the CUDA driver, which ends nothing."""


def begin_log(log_file: Path) -> int:
    """Return the size in bytes of a log that can be written; it is created if it is missing.

    Raises:
        ConfigError: it cannot be written.
    """
    if log_file == STANDARD_OUTPUT:
        return 0
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab", buffering=0):
            return log_file.stat().st_size if log_file.is_file() else 0
    except OSError as error:
        raise ConfigError(
            f"log_file={log_file}: {error.strerror}. Name a file that this user can write with "
            "--log-file, or - for standard output."
        ) from None


def failure_reason(log_file: Path, start: int = 0) -> str:
    """Return the line of a server's log with the reason of its end, or where to read on.

    Args:
        log_file: the log.
        start: its size in bytes when the server started; a shorter log has been begun anew.
    """
    if log_file == STANDARD_OUTPUT:
        return "the reason is in its log, on standard output."
    content = log_file.read_bytes() if log_file.is_file() else b""
    log = content[start if start <= len(content) else 0 :].decode(errors="replace")
    if reason := _reason_in(STARTS_AGAIN.split(log)[-1]) or _reason_in(log):
        return reason
    return f"its log has no reason; its last lines: {' | '.join(log.splitlines()[-3:]) or '-'}"


def _reason_in(log: str) -> str | None:
    """Return what the supervisor says of an end, or else the clearest error."""
    if not (ends := [*ENDS.finditer(log)]):
        return _error_in(log)
    end = ends[-1][1]
    near = "\n".join(log[: ends[-1].start()].splitlines()[-NEAR_LINES:])
    cause = _error_in(near) if FOLLOWS_FROM_AN_ERROR in end else None
    return f"{end}; before that: {cause}" if cause else end


def _error_in(log: str) -> str | None:
    """Return the clearest error of some lines; of several, the last."""
    for pattern in REASONS:
        if found := pattern.findall(log):
            return " ".join(found[-1].replace(r"\n", " ").split())  # Triton escapes newlines
    return None
