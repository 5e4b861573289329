"""Lists of names in the options of benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.common.options import names_in
from bertender.core.errors import ConfigError


def test_names_come_once_in_their_order() -> None:
    assert names_in("--ways", " b, a,,b ") == ["b", "a"]
    assert names_in("--ways", "") == []


@pytest.mark.parametrize(("value", "required"), [(" , ", False), (",", True), ("", True)])
def test_a_list_without_a_name_is_refused(value: str, required: bool) -> None:
    with pytest.raises(ConfigError, match=r"--ways '.*' names none\. There are one, two\."):
        names_in("--ways", value, ("one", "two"), required=required)
    with pytest.raises(ConfigError, match="Give names by commas"):
        names_in("--ways", value, required=required)
