"""Where a result goes is checked before minutes of work, and it appears whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertender.core.errors import ConfigError
from bertender.core.files import check_savable, save_text


def test_a_new_file_in_a_new_folder_is_savable(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "result.json"
    check_savable("--out", out, "JSON")
    assert not out.parent.exists(), "checking writes nothing"
    save_text("{}", out)
    check_savable("--out", out, "JSON")
    check_savable("--out", None, "JSON")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--html {tmp_path} is a directory; give the name of"):
        check_savable("--html", tmp_path, "HTML")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"cannot be written: .*file is not a folder that this user"
    ):
        check_savable("--out", tmp_path / "file" / "result.json", "JSON")


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ConfigError, match=f"cannot be written: {tmp_path} is not a folder that"):
        check_savable("--out", tmp_path / "result.json", "JSON")


def test_a_pipe_or_a_device_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=f"--out {pipe} is a device or a pipe.*give the name of"):
        check_savable("--out", pipe, "JSON")


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "dated").mkdir()
    file, link = tmp_path / "dated" / "result.json", tmp_path / "latest.json"
    link.symlink_to(file)
    for text in ("first", "second"):
        save_text(text, link)
        assert link.is_symlink() and file.read_text() == text
    assert [each.name for each in file.parent.iterdir()] == [file.name]
