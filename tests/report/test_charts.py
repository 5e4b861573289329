"""Charts without their library: the extra is named."""

from __future__ import annotations

import importlib.util

import pytest

from bertender.core.errors import ConfigError
from bertender.report import charts


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bertender\[report\]'"):
        charts.check_charts()


def test_a_chart_is_drawn_as_a_file() -> None:
    pytest.importorskip("vl_convert")
    text = charts.svg({**charts.heat_map([[0.5, 0.25]], "importance"), "title": "Heads"})
    assert text.startswith("<svg") and "Heads" in text and "href" not in text
