"""Files that are never half-written, and the folder of what can be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.cache import CACHE_VARIABLE, cache_directory, replacing


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert cache_directory() == tmp_path / "cache" and not cache_directory().exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, "cache")
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_directory() == Path.home() / ".cache" / "bertender"


@pytest.mark.parametrize("existing", [False, True])
def test_replaced_when_the_block_ends_well(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "deep" / "result.json"
    if existing:
        path.parent.mkdir()
        path.write_text("old")
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.exists() is existing, "nothing changes before the end"
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644, "as readable as any file"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as draft:
        draft.write_text("half")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
