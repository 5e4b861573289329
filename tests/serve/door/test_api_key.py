"""`bertender api-key`: keys as the door takes them."""

from __future__ import annotations

import stat
from pathlib import Path

from serve.door.callers import Callers, read_keys
from tests.front import fail, last_line, succeed


def test_a_key_opens_the_door_whose_file_has_its_row(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    words = ("--file", file, "--json")
    first = last_line(succeed("api-key", "reader", *words))
    second = last_line(succeed("api-key", "writer", "--tokens-per-second", "500", *words))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == f"{first['row']}\n{second['row']}\n"
    assert first["key"] not in file.read_text()
    callers = Callers(file)
    assert callers.caller(f"Bearer {first['key']}", "a").name == "reader"
    limited = callers.caller(f"Bearer {second['key']}", "a").key
    assert limited is not None and limited.tokens_per_second == 500


def test_a_row_goes_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# whose file this is")
    succeed("api-key", "reader", "--file", file)
    assert [key.name for key in read_keys(file).values()] == ["reader"]


def test_a_name_is_there_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    succeed("api-key", "reader", "--file", file)
    assert "a key 'reader' already" in fail("api-key", "reader", "--file", file)
    assert "name 'two words'" in fail("api-key", "two words")
    assert "No such file" in fail("api-key", "reader", "--file", tmp_path / "none" / "keys")


def test_a_key_is_shown_in_words() -> None:
    shown = succeed("api-key", "reader").stdout.split()
    assert "reader" in shown and "once:" in shown
