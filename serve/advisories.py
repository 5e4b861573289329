"""Published advisories of Triton, and which of them a server's version predates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ADVISORIES", "Advisory", "advice", "by_version", "predated"]


RELEASED = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Advisory:
    """An advisory of NVIDIA's security bulletins, and the first version without its fault."""

    name: str
    fault: str
    fixed_in: str
    release: str
    """The container's name of that version."""

    def fixes(self, version: str) -> bool:
        """Return whether a version has the fix."""
        return _numbers(version) >= _numbers(self.fixed_in)


ADVISORIES = (
    Advisory("CVE-2025-23310", "stack overflow by chunked HTTP requests", "2.59.1", "25.07"),
    Advisory("CVE-2025-23311", "stack overflow by chunked HTTP requests", "2.59.1", "25.07"),
    Advisory("CVE-2025-23319", "write past shared memory, Python backend", "2.59.1", "25.07"),
    Advisory("CVE-2025-23320", "name of its shared memory in an error", "2.59.1", "25.07"),
    Advisory("CVE-2025-23334", "read past shared memory, Python backend", "2.59.1", "25.07"),
    Advisory("CVE-2025-23316", "code run by a model's name in model control", "2.60.0", "25.08"),
    Advisory("CVE-2026-24206", "authentication bypass", "2.67.0", "26.03"),
    Advisory("CVE-2026-24207", "authentication bypass", "2.67.0", "26.03"),
)
"""Those that concern what `bertender serve` runs: HTTP, gRPC and the Python backend."""


def predated(version: str | None) -> tuple[Advisory, ...]:
    """Return the advisories whose fix a version does not have: all, where it is unknown."""
    if version is None:
        return ADVISORIES
    return tuple(advisory for advisory in ADVISORIES if not advisory.fixes(version))


def by_version(advisories: Sequence[Advisory]) -> str:
    """Return advisories by the version that has their fix: "CVE-... (fixed in 2.59.1, 25.07)"."""
    fixes = {(advisory.fixed_in, advisory.release): None for advisory in advisories}
    return "; ".join(
        f"{', '.join(each.name for each in advisories if each.fixed_in == version)} "
        f"(fixed in {version}, release {release})"
        for version, release in fixes
    )


def advice(version: str | None) -> str | None:
    """Return what a server's version means for who runs it; None where it has every fix."""
    if not (missing := predated(version)):
        return None
    return (
        f"predates the fixes of {by_version(missing)}: `bertender serve` listens on this machine "
        "only and closes the administrative routes; put a proxy in front of it, or take a newer "
        "server with --tritonserver"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a released version; none of another, which is before all of them."""
    return tuple(map(int, version.split("."))) if RELEASED.fullmatch(version) else ()
