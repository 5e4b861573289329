"""Table: a mapping that names the nearest row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from bertender.core.config import Config, Table, installed_digest
from bertender.core.errors import ConfigError, UnknownNameError

FRUIT = Table("fruit", {"apple": 1, "pear": 2})


def test_it_is_a_mapping_in_its_own_order() -> None:
    assert list(FRUIT) == ["apple", "pear"] and len(FRUIT) == 2
    assert FRUIT["pear"] == 2 and FRUIT.get("plum") is None and FRUIT.get("plum", 3) == 3
    assert "pear" in FRUIT and "plum" not in FRUIT and 7 not in FRUIT
    assert {**FRUIT, "plum": 3} == {"apple": 1, "pear": 2, "plum": 3}


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no fruit 'paer'"):
        FRUIT["paer"]


def test_a_field_takes_its_names_alone() -> None:
    class Basket(Config):
        fruit: Annotated[str | None, FRUIT.validator("none")] = None

    assert Basket.parse({"fruit": "apple"}).fruit == "apple"
    assert Basket.parse({}).fruit is None and Basket.parse({"fruit": "none"}).fruit == "none"
    with pytest.raises(ConfigError, match="Known: apple, none, pear"):
        Basket.parse({"fruit": "aple"})


PLUM = 3
ENTRY_POINTS = """[toy.fruit]
plum = tests.core.test_table:PLUM
apple = tests.core.test_table:PLUM
rotten = tests.core.test_table:GONE
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table[int]:
    """A table whose rows a package adds to, as pip leaves it behind."""
    folder = tmp_path / "plums-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plums\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return Table("fruit", FRUIT, group="toy.fruit")


def test_an_installed_package_adds_rows_and_replaces_none(installed: Table[int]) -> None:
    assert "plum" in installed and "plum" not in FRUIT and "cherry" not in installed
    assert installed["plum"] == installed.get("plum") == 3
    assert installed["apple"] == 1 and installed.get("cherry", 4) == 4
    with pytest.raises(UnknownNameError, match="no fruit 'cherry'"):
        installed["cherry"]


def test_a_package_that_cannot_be_imported_is_named(installed: Table[int]) -> None:
    with pytest.raises(ConfigError, match=r"'rotten' is of an installed package.*GONE.*uninstall"):
        installed["rotten"]


def test_an_unknown_name_names_installed_rows_too(installed: Table[int]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'plum'") as error:
        installed["plumm"]
    assert "rotten" in str(error.value)


def test_an_edit_of_an_installed_row_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pears-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pears\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[toy.fruit]\npear = toy_pears:PEAR\n")
    (tmp_path / "toy_pears.py").write_text("PEAR = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = installed_digest("toy.fruit", "pear")
    (tmp_path / "toy_pears.py").write_text("PEAR = 2\n")
    assert before and installed_digest("toy.fruit", "pear") != before
    assert installed_digest("toy.fruit", "apple") is None
