"""Table: a mapping that names the nearest row."""

from __future__ import annotations

from typing import Annotated

import pytest

from bertender.core.config import Config, Table
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
