"""The table of `bertender tune`: every setting, its fresh rounds, and the choice."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.common.saving import RESULTS
from benchmarks.documents.tune_table import tune_block

RAW = RESULTS / "2026-11-23-sst2-tune-cpu.json"


def test_every_setting_is_a_row_and_the_choice_is_said(tmp_path: Path) -> None:
    content = json.loads(RAW.read_text(encoding="utf-8"))
    content["tried"][1].update(texts_per_second=None, against_default=None, failure="no memory")
    path = tmp_path / "tune.json"
    path.write_text(json.dumps(content))
    lines = tune_block("tune.json", path).splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("| ")}
    assert [*rows][2:] == [each["name"] for each in content["tried"]]
    default, failed, *_ = [rows[each["name"]] for each in content["tried"]]
    assert default.endswith("| - | - |") and failed.endswith("| - | - | - |")
    chosen = content["choice"]["setting"]
    (again,) = (each for each in content["fresh"] if each["name"] == chosen)
    assert f"{again['against_default']['value']:.2f}x" in rows[chosen].rsplit(" | ", 1)[1]
    assert f"Chosen: `{chosen}`" in lines[-3]


def test_no_folder_of_a_machine_is_published() -> None:
    assert "/" not in json.loads(RAW.read_text(encoding="utf-8"))["path"]
