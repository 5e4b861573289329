"""CONTRIBUTING.md names files and tables that are there."""

from __future__ import annotations

import re

import pytest

from tests.packages import PACKAGES, ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACES = sorted({word for word in re.findall(r"`([\w/.]+/[\w/.]*)`", TEXT) if "NAME" not in word})
TABLES = sorted({word for word in re.findall(r"`([A-Z_]{5,})`", TEXT) if word != "BERTENDER_DATA"})


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_there(place: str) -> None:
    assert (ROOT / place).exists()


@pytest.mark.parametrize("folder", sorted(set(re.findall(r"`([\w/]+)/NAME\.", TEXT))))
def test_a_folder_for_new_files_is_there(folder: str) -> None:
    assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_there(table: str) -> None:
    folders = (*PACKAGES, "benchmarks")
    files = (path for package in folders for path in (ROOT / package).rglob("*.py"))
    found = re.compile(rf"^{table}(:| =)", re.M)
    assert any(found.search(path.read_text(encoding="utf-8")) for path in files)
