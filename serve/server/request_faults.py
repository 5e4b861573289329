"""REQUEST_FAULTS: single requests within the protocol that end or exhaust an older Triton.

They were found by sending them to Triton 2.51, the bundled server. No proxy that hands bodies on
keeps them away: each passes with a valid key. What reads and rebuilds every request would.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve.server.advisories import release_numbers

WITHOUT_FAULTS = "2.69.0"
"""First version of the server that other machines may reach."""


@dataclass(frozen=True)
class RequestFault:
    """A row of REQUEST_FAULTS."""

    request: str
    effect: str
    protocols: tuple[str, ...] = ("http", "grpc")


REQUEST_FAULTS = (
    RequestFault("an output `LABEL` with `classification`", "the server ends (SIGFPE)"),
    RequestFault(
        "a shape whose product of sizes wraps around 64 bits",
        "a write past the heap: the server ends, or hangs for good",
    ),
    RequestFault(
        "a short body with a shape such as `[130000000, 1]`", "1 GB of memory for each request"
    ),
    RequestFault(
        "a request that is cancelled, or whose deadline passes",
        "the server ends after some of them (SIGSEGV)",
        protocols=("grpc",),
    ),
)


def faults_of(version: str | None, *protocols: str) -> tuple[RequestFault, ...]:
    """Return the faults that a server has on some protocols: all of them where it is unknown."""
    if release_numbers(version or "") >= release_numbers(WITHOUT_FAULTS):
        return ()
    return tuple(each for each in REQUEST_FAULTS if {*each.protocols} & {*protocols})


def named(version: str | None, grpc: bool) -> str | None:
    """Return a sentence about what a server that listens is open to; None where it is to nothing.

    Args:
        version: of the server, where it is known.
        grpc: whether it listens for gRPC as well.
    """
    protocols = ("http", "grpc") if grpc else ("http",)
    if not (faults := faults_of(version, *protocols)):
        return None
    listed = "; ".join(each.request for each in faults)
    return (
        f"Triton {version or 'of an unknown version'} can be ended or exhausted by one request "
        f"({listed}): let nobody reach it whom you do not trust (docs/serving/deploy.md)"
    )


def advice(version: str) -> str | None:
    """Return what a server's version means for who runs it; None where it has no such fault."""
    if (sentence := named(version, grpc=True)) is None:
        return None
    return (
        f"{sentence}. `bertender serve` listens on this machine only, over HTTP; other machines "
        f"need Triton {WITHOUT_FAULTS} or newer: --tritonserver PATH"
    )
