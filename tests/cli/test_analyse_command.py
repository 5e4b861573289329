"""bertender analyse: JSON and pictures in a folder, which a report shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.report.analyses import read_analysis
from tests.cli.made import FAST, Made
from tests.front import fail, last_line, succeed

pytest.importorskip("vl_convert")


def test_an_analysis_is_written_and_shown_in_a_report(made: Made, tmp_path: Path) -> None:
    maps, page = tmp_path / "run" / "maps", tmp_path / "page.html"
    words = ("analyse", made["student"], "--texts", "16", "--out", maps)
    said = succeed(*words).stdout
    assert "heads cost nothing when masked" in said and "patterns.svg" in said
    found = read_analysis(maps)
    assert found.texts == 16 and found.name == "student"
    assert "<script" not in (maps / "patterns.svg").read_text()
    again = last_line(succeed(*words, "--only", "attention", "--json"))
    assert again["masking"] is None and again["attention"]
    pictures = {path.stem for path in maps.glob("*.svg")}
    assert pictures == {"patterns", "attention-on"}, "none of the analysis before"
    table = tmp_path / "run" / "table.json"
    succeed("compare", made["student"], made["int8"], *FAST, "--out", table)
    succeed("report", tmp_path / "run", "--html", page)
    assert page.read_text().count("Layers and heads of <bdi>student</bdi>") == 1
    succeed("report", table, "--html", page, "--analysis", maps)
    assert "Patterns of attention" in page.read_text()


def test_what_cannot_be_analysed_is_refused(made: Made, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "maps")
    assert "only PyTorch models are analysed" in fail("analyse", made["onnx"], *out)
    assert "'maps'" in fail("analyse", made["student"], *out, "--only", "maps")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    said = fail("analyse", made["student"], "--out", tmp_path / "full")
    assert "holds other files than an analysis" in said
    assert not (tmp_path / "maps").exists()
