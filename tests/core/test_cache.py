"""The folder of what can be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.files import CACHE_VARIABLE, cache_directory


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert cache_directory() == tmp_path / "cache" and not cache_directory().exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, "cache")
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_directory() == Path.home() / ".cache" / "bertender"
