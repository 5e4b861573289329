"""What a server's version lacks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from serve.config import ServeConfig
from serve.server.advisories import (
    ADVISORIES,
    VERSIONS,
    Advisory,
    advice_on_advisories,
    by_version,
    predated,
)
from serve.server.installation import find_installation
from serve.server.server import Server

NAMED = "CVE-2025-23319, 23320, 23334, 23310, 23311, 23316"
NEWEST = max(VERSIONS.values(), key=lambda text: [*map(int, text.split("."))])


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: advisory.name)
def test_a_fix_begins_with_its_version(advisory: Advisory) -> None:
    major, minor, patch = map(int, advisory.fixed_in.split("."))
    assert re.fullmatch(r"CVE-20\d\d-\d{4,}", advisory.name) and advisory.fault
    assert re.fullmatch(r"2\d\.(0[1-9]|1[0-2])", advisory.release) and 0 < advisory.score <= 10
    for version in (advisory.fixed_in, f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 10}.0"):
        assert advisory.fixes(version)
    for version in (f"{major}.{minor - 1}.9", "2.9.0", f"{advisory.fixed_in}dev", "", "unknown"):
        assert not advisory.fixes(version)


def test_the_advisories_of_the_bundled_server_are_known() -> None:
    names = " ".join(advisory.name for advisory in predated("2.51.0"))
    assert all(number in names for number in re.findall(r"\d{5}", NAMED))


@pytest.mark.parametrize("name", ["CVE-2026-47627", "CVE-2026-16497"])
def test_the_list_does_not_end_at_26_03(name: str) -> None:
    assert name in {advisory.name for advisory in predated("2.67.0")}


def test_later_releases_have_later_versions() -> None:
    """From 25.08 on, a release a month and a minor version a release."""
    versions = [tuple(map(int, VERSIONS[release].split("."))) for release in sorted(VERSIONS)]
    assert versions == sorted(set(versions))
    for release, version in VERSIONS.items():
        year, month = map(int, release.split("."))
        if release >= "25.08":
            assert version == f"2.{60 + 12 * (year - 25) + month - 8}.0"


def test_an_unknown_version_has_no_fix() -> None:
    assert predated(None) == ADVISORIES and advice_on_advisories("unknown")


def test_a_version_with_every_fix_is_as_it_should_be() -> None:
    assert predated(NEWEST) == () and advice_on_advisories(NEWEST) is None


def test_advisories_are_named_by_the_version_that_has_their_fix() -> None:
    shown = by_version(predated("2.59.1"))
    first = "CVE-2025-23316, 23328, 23329, 23336 (fixed in 2.60.0, release 25.08); CVE-2025-33202 ("
    assert shown.startswith(first)
    assert "CVE-2025-33238, 33254, CVE-2026-24158 (fixed in 2.65.0" in shown
    assert "23319" not in shown


@pytest.mark.server
@pytest.mark.parametrize("served", ["triton"], indirect=True)
def test_the_version_of_the_wheels_server_is_what_it_says(served: Server) -> None:
    assert (
        f"| server_version                   | {find_installation().version} "
        in served.log_file.read_text()
    )


def test_where_no_server_is_installed_the_start_reports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert ServeConfig.parse({"host": "0.0.0.0"}).host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "198.51.100.7"])
def test_the_door_listens_anywhere_whatever_is_behind_it(host: str) -> None:
    assert ServeConfig.parse({"host": host}).host == host
