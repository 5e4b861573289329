"""Tables and pictures of the pages are what the raw results say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy
import pytest

from benchmarks import figures, tables
from benchmarks.harness import RESULTS, newest
from bertender.core.errors import ConfigError, DataError

PINNED = re.compile(r"^numpy==(\S+) ; python_version < ", re.M)
DRAWN_WITH = PINNED.search((tables.ROOT / "constraints.txt").read_text(encoding="utf-8"))[1]
same_draws = pytest.mark.skipif(
    numpy.__version__ != DRAWN_WITH,
    reason=f"the last digit of intervals is drawn with NumPy {DRAWN_WITH}",
)
MOST_COLUMNS, MOST_WORDS = 6, 15
MOST_MB, MOST_FILES = 4.0, 40
PICTURE_KB = 60
made = cache(tables.made)


@pytest.fixture(autouse=True)
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table stands in several pages."""
    monkeypatch.setattr(tables, "made", made)


@same_draws
@pytest.mark.parametrize(
    "page", tables.pages(), ids=lambda page: str(page.relative_to(tables.ROOT))
)
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.rewritten(text) == text, "run `python -m benchmarks tables`"


@pytest.mark.parametrize("name", tables.MEASURED)
def test_a_table_is_for_a_decision(name: str) -> None:
    lines = [line for line in made(name).splitlines() if line.startswith("|")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert {len(row) for row in cells} == {len(cells[0])} and len(cells[0]) <= MOST_COLUMNS
    assert all(len(cell.split()) <= MOST_WORDS for row in cells for cell in row)
    assert "raw: `benchmarks/results/" in made(name)


@pytest.mark.parametrize("name", tables.OF_THE_PRODUCT)
def test_a_table_is_made_of_the_product(name: str) -> None:
    assert made(name).startswith("| ") and "raw:" not in made(name)


def test_a_test_of_faults_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TESTS", tmp_path)
    file = tmp_path / tables.OF_FAULTS[0]
    file.parent.mkdir()
    row = '@pytest.mark.fault("it breaks", "it is mended")\n'
    file.write_text(f"{row}def test_a(): ...\n{row}def test_b(): ...\n")
    assert tables.faults_table().rows == [("it breaks", "it is mended")]
    file.write_text(f"{row}def test_a(): ...\ndef test_b(): ...\n")
    with pytest.raises(DataError, match="test_b has no row"):
        tables.faults_table()
    file.write_text(f"{row}def test_a(): ...\n{row.replace('mended', 'not')}def test_b(): ...\n")
    with pytest.raises(DataError, match="test_b says another outcome of 'it breaks'"):
        tables.faults_table()


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no table 'none'.*serving-long"):
        tables.rewritten("<!-- table: none -->\n<!-- end -->\n")


def test_results_are_those_that_a_table_shows() -> None:
    shown = {newest(results) for results, _ in tables.MEASURED.values()}
    files = {*RESULTS.glob("*.json")}
    assert files == shown and len(files) <= MOST_FILES
    assert sum(file.stat().st_size for file in files) < MOST_MB * 1e6


@same_draws
@pytest.mark.parametrize("name", figures.PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    for mode, theme in (("light", figures.LIGHT), ("dark", figures.DARK)):
        file = figures.IMAGES / f"{name}-{mode}.svg"
        drawn = file.read_text(encoding="utf-8")
        assert drawn == figures.drawn(name, theme), "run `python -m benchmarks figures`"
        assert len(drawn) < PICTURE_KB * 1000
        _, _, width, _ = map(float, ElementTree.fromstring(drawn).attrib["viewBox"].split())
        assert width == figures.WIDTH
