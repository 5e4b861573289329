"""The cache: made once, made again when damaged, never half written, never in the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest

from bertender.core.build_once import STAMPS
from bertender.core.files import cache_directory
from bertender.tasks.docs import cached_table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes a table, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> pyarrow.Table:
        self.calls += 1
        return pyarrow.table({"text": ["a", "b"]})


def test_made_once(cache: Path) -> None:
    make = Maker()
    tables = [cached_table("t", make) for _ in range(3)]
    assert make.calls == 1
    assert [table.to_pydict() for table in tables] == [{"text": ["a", "b"]}] * 3
    assert sorted(file.name for file in cache.iterdir()) == [STAMPS, "t.parquet"]


@pytest.mark.parametrize("content", [b"", b"no parquet at all"])
def test_made_again_when_damaged(
    cache: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    make = Maker()
    cached_table("t", make)
    (cache / "t.parquet").write_bytes(content)
    assert cached_table("t", make).num_rows == 2
    assert cached_table("t", make).num_rows == 2
    assert make.calls == 2
    assert "damaged" in caplog.text


def test_a_folder_that_cannot_be_written(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file in the folder's place")
    make = Maker()
    assert cached_table("t", make).num_rows == 2
    assert cached_table("t", make).num_rows == 2
    assert make.calls == 2
    assert "cannot be cached" in caplog.text and "BERTENDER_CACHE" in caplog.text


def test_the_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BERTENDER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "bertender"
