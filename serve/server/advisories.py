"""Published security advisories of Triton's versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

AS_OF = "2026-11"
"""Month of the latest of NVIDIA's bulletins in ADVISORIES."""

RELEASED = re.compile(r"\d+\.\d+\.\d+")

VERSIONS: Mapping[str, str] = {
    **{"24.12": "2.53.0", "25.05": "2.58.0", "25.06": "2.59.0", "25.07": "2.59.1"},
    **{"25.08": "2.60.0", "25.09": "2.61.0", "25.10": "2.62.0", "26.01": "2.65.0"},
    **{"26.02": "2.66.0", "26.03": "2.67.0", "26.04": "2.68.0", "26.05": "2.69.0"},
    **{"26.06": "2.70.0", "26.07": "2.71.0"},
}
"""Version of the server by release (name of the container)."""


@dataclass(frozen=True)
class Advisory:
    """An advisory of NVIDIA's security bulletins, and the first release with its fix."""

    name: str
    fault: str
    score: float
    """Base score of CVSS 3.1 in the bulletin, 0 to 10."""
    release: str
    """First release with the fix (name of the container)."""

    @property
    def fixed_in(self) -> str:
        """Version of the server in that release."""
        return VERSIONS[self.release]

    def fixes(self, version: str) -> bool:
        """Return whether a version has the fix."""
        return release_numbers(version) >= release_numbers(self.fixed_in)


def _of(release: str, *rows: tuple[str, float, str]) -> Iterator[Advisory]:
    return (Advisory(f"CVE-{name}", fault, score, release) for name, score, fault in rows)


ADVISORIES = (
    *_of("24.12", ("2024-53880", 4.9, "integer overflow by a large model in model control")),
    *_of(
        "25.05",
        ("2025-23323", 7.5, "integer overflow by an invalid request"),
        ("2025-23324", 7.5, "integer overflow by an invalid request"),
        ("2025-23325", 7.5, "uncontrolled recursion by nested input"),
        ("2025-23326", 7.5, "integer overflow by crafted input"),
        ("2025-23327", 7.5, "integer overflow by crafted input"),
        ("2025-23335", 4.4, "underflow, TensorRT backend"),
    ),
    *_of(
        "25.06",
        ("2025-23322", 7.5, "memory freed twice by a cancelled stream"),
        ("2025-23331", 7.5, "memory of any size taken by an invalid request"),
    ),
    *_of(
        "25.07",
        ("2025-23310", 9.8, "stack overflow by chunked HTTP requests"),
        ("2025-23311", 9.8, "stack overflow by chunked HTTP requests"),
        ("2025-23317", 9.1, "code run by an HTTP request"),
        ("2025-23318", 8.1, "write past a buffer, Python backend"),
        ("2025-23319", 8.1, "write past shared memory, Python backend"),
        ("2025-23320", 7.5, "name of its shared memory in an error"),
        ("2025-23321", 7.5, "division by zero by an invalid request"),
        ("2025-23333", 5.9, "read past shared memory, Python backend"),
        ("2025-23334", 5.9, "read past shared memory, Python backend"),
    ),
    *_of(
        "25.08",
        ("2025-23316", 9.8, "code run by a model's name in model control"),
        ("2025-23328", 7.5, "write past a buffer by crafted input"),
        ("2025-23329", 7.5, "shared memory of the Python backend written by others"),
        ("2025-23336", 4.4, "end of the server by a model that is configured wrongly"),
    ),
    *_of("25.09", ("2025-33202", 6.5, "stack overflow by large requests")),
    *_of(
        "25.10",
        ("2025-33201", 7.5, "end of the server by large requests"),
        ("2025-33211", 7.5, "end of the server by a quantity in a request"),
    ),
    *_of(
        "26.01",
        ("2025-33238", 7.5, "end of the server by its routes of SageMaker"),
        ("2025-33254", 7.5, "internal state damaged by a race"),
        ("2026-24158", 7.5, "memory taken by a compressed HTTP request"),
    ),
    *_of(
        "26.02",
        ("2026-24146", 7.5, "end of the server by many outputs"),
        ("2026-24147", 4.8, "files read by the configuration of a model"),
        ("2026-24173", 7.5, "end of the server by a malformed request"),
        ("2026-24174", 7.5, "end of the server by a malformed request"),
        ("2026-24175", 7.5, "end of the server by a malformed header"),
    ),
    *_of(
        "26.03",
        ("2026-24206", 7.3, "authentication bypass"),
        ("2026-24207", 9.8, "authentication bypass"),
        ("2026-24208", 5.3, "end of the server by a path"),
        ("2026-24209", 7.5, "end of the server by a path"),
        ("2026-24210", 7.5, "integer overflow"),
        ("2026-47487", 4.4, "files outside the repository, MLflow plugin"),
    ),
    *_of(
        "26.04",
        ("2026-24264", 7.5, "memory taken by highly compressed data"),
        ("2026-24266", 5.9, "memory used after it was freed"),
        ("2026-47625", 7.5, "missing authorization"),
    ),
    *_of(
        "26.05",
        ("2026-47476", 7.5, "resources used without limit"),
        ("2026-47477", 7.5, "stack overflow"),
        ("2026-47478", 7.5, "use of a closed file descriptor"),
        ("2026-47479", 7.5, "resources used without limit"),
        ("2026-47480", 7.5, "uncaught exception"),
        ("2026-47481", 6.5, "authentication bypass"),
        ("2026-47482", 7.5, "memory that is never freed"),
    ),
    *_of(
        "26.06",
        ("2026-47606", 6.5, "code run by an absolute path"),
        ("2026-47627", 9.8, "files outside the repository by a path"),
        ("2026-47628", 7.5, "resources taken without limit"),
        ("2026-47629", 7.5, "end of the server by invalid input"),
        ("2026-47630", 5.5, "code run by an absolute path"),
    ),
    *_of("26.07", ("2026-16497", 7.5, "a loop that hardly ends")),
)
"""Advisories of the server, without those of the DALI backend, which is not used.

https://github.com/NVIDIA/product-security: the bulletins 5612, 5687, 5691, 5723, 5734, 5790, 5816,
5828, 5848, 5853, 5860, 5865 and 5875.
"""


def predated(version: str | None) -> tuple[Advisory, ...]:
    """Return the advisories whose fix a version lacks; all for an unknown version."""
    if version is None:
        return ADVISORIES
    return tuple(advisory for advisory in ADVISORIES if not advisory.fixes(version))


def by_version(advisories: Sequence[Advisory]) -> str:
    """Return advisories by the version with their fix, repeating no year: "CVE-2025-23328, 23329
    (fixed in 2.60.0, release 25.08)"."""
    releases = dict.fromkeys(advisory.release for advisory in advisories)
    return "; ".join(
        f"{short_names([each for each in advisories if each.release == release])} "
        f"(fixed in {VERSIONS[release]}, release {release})"
        for release in releases
    )


def short_names(advisories: Sequence[Advisory]) -> str:
    """Return the names of advisories, without years that repeat the previous one."""
    names = [advisory.name for advisory in advisories]
    years = ["", *(name.rpartition("-")[0] for name in names)]
    return ", ".join(
        name.removeprefix(f"{before}-") if before else name
        for name, before in zip(names, years, strict=False)
    )


def advice_on_advisories(version: str | None) -> str | None:
    """Return the warning about a server's version; None where it has every fix."""
    if not (missing := predated(version)):
        return None
    worst = max(advisory.score for advisory in missing)
    return (
        f"predates the fixes of {len(missing)} advisories, of those known as of {AS_OF}, the worst "
        f"of score {worst}: {by_version(missing)}. `bertender serve` keeps clients from it: the "
        "door parses and rewrites each request. Use a newer server with --tritonserver"
    )


def none_known() -> str:
    """Return the note about a version with all fixes."""
    return f"it has no known advisory as of {AS_OF}; see NVIDIA's bulletins for later ones"


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a released version; empty for other versions, which sort first."""
    return tuple(map(int, version.split("."))) if RELEASED.fullmatch(version) else ()
