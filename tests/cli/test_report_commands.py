"""bertender report: from a saved table, from the folder of a run, or from models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertender.comparison.records import Comparison
from bertender.report import charts
from tests.cli.made import FAST, Made
from tests.front import fail, last_line, succeed


@pytest.fixture(scope="session")
def run_folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe's run: a model and a saved table, with other JSON files."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copytree(made["student"], folder / "student")
    words = (made["student"], made["int8"], *FAST, "--out", folder / "table.json")
    succeed("compare", *words)
    (folder / "endpoint.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def quick_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the library that draws, which takes seconds to be bundled."""
    monkeypatch.setattr(charts, "runtime", lambda: "globalThis.drawn = true")
    monkeypatch.setattr(charts, "check_charts", lambda: None)
    from bertender.cli import measuring

    monkeypatch.setattr(measuring, "check_charts", lambda: None)


def test_a_comparison_has_what_a_report_shows(run_folder: Path) -> None:
    saved = Comparison.model_validate_json((run_folder / "table.json").read_text())
    student, int8 = saved.rows
    assert student.disagreements is None and int8.disagreements is not None
    assert sum(each.texts for each in int8.confusion or ()) == saved.circumstances.n
    stages = [each.stage for each in int8.lineage]
    assert stages[:4] == ["quantize", "export", "distill", "finetune"]
    assert int8.products is not None and student.products is None
    ((warm, *_),) = int8.latency.single_ms
    assert saved.timed_lengths is not None and len(saved.timed_lengths[0][0]) == len(warm)


def test_a_run_and_its_table_give_the_same_page(run_folder: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "run.html", tmp_path / "table.html"
    limits = ("--max-mb", "1000", "--min-score", "0.01")
    made = last_line(succeed("report", run_folder, "--html", one, *limits, "--json"))
    said = succeed("report", run_folder / "table.json", "--html", other, *limits).stdout
    assert one.read_text() == other.read_text() and str(made["html"]) == str(one)
    assert made["deploy"] in ("student", "int8") and made["sentence"] in said


@pytest.mark.parametrize("limit", [("--max-mb", "0.0001"), ("--max-ms", "0.0001")], ids=str)
def test_limits_that_no_row_holds_are_said_after_the_page_is_written(
    limit: tuple[str, str], run_folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    missed = fail("report", run_folder, "--html", page, *limit, status=1)
    assert f"No row holds {' '.join(limit)}. Nearest is " in missed
    assert f"No row holds {' '.join(limit)}." in page.read_text()


def test_models_are_compared_first(made: Made, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found = last_line(
        succeed("report", made["student"], made["onnx"], *FAST, "--html", page, "--json")
    )
    assert found["deploy"] in ("student", "onnx")
    text = page.read_text()
    assert "bertender compare " in text and "bertender export " in text


def test_what_is_no_source_is_refused(run_folder: Path, made: Made, tmp_path: Path) -> None:
    html = ("--html", tmp_path / "page.html")
    assert "Give it alone" in fail("report", run_folder, made["student"], *html)
    said = fail("report", run_folder, *html, "--rounds", "3")
    assert "measures nothing, so it takes no rounds" in said
    (tmp_path / "empty").mkdir()
    assert "no step of stage compare" in fail("report", tmp_path / "empty", *html)
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in ("one.json", "two.json"):
        shutil.copy(run_folder / "table.json", twice / name)
    assert "several tables" in fail("report", twice, *html)
    assert "nowhere.json is not a saved comparison" in fail("report", "nowhere.json", *html)
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    assert "is not a saved comparison" in fail("report", tmp_path / "other.json", *html)
    assert "is not a saved analysis" in fail("report", run_folder, *html, "--analysis", tmp_path)
    assert not (tmp_path / "page.html").exists()


def test_texts_stay_out_of_a_table_where_that_is_asked(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    words = ("compare", made["student"], made["int8"], *FAST, "--disagreements", "0")
    succeed(*words, "--out", out)
    saved = Comparison.model_validate_json(out.read_text())
    assert saved.rows[1].disagreements == ()
