"""bertender compress, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertender.compression.compress import REPORT
from bertender.compression.report import MODEL, CompressionReport
from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from tests.compression.brief import brief_probes
from tests.front import fail, last_line, succeed, write_toy_files

__all__ = ["brief_probes"]

pytestmark = pytest.mark.usefixtures("brief_probes")

SMALL = (
    *("--students", "", "--layers", "1", "--heads", "0", "--ffn", "0,0.5", "--epochs", "1"),
    *("--recovery-epochs", "1", "--learning-rate", "3e-3", "--processes", "1", "--noisy"),
    *("--threads", "1"),  # tests share the cores
)


@pytest.fixture(scope="module")
def words(
    trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str | Path, ...]:
    folder = tmp_path_factory.mktemp("files")
    files = write_toy_files(folder, task)
    with files.dev.open("a", encoding="utf-8") as dev:  # so that no model has every label right
        dev.write("apple pear plum,tool\n")
    out = folder / "out"
    return "compress", "--teacher", trained.path, *files.flags, "--out", out, *SMALL


@pytest.fixture(scope="module")
def out(brief_probes: None, words: tuple[str | Path, ...]) -> Path:
    """The folder of a compression with one candidate."""
    result = succeed(*words, "--candidates", "1", "--json")
    report = CompressionReport.model_validate(last_line(result))
    assert report.verdict == "met"
    return Path(words[words.index("--out") + 1])


def test_the_json_is_the_report(out: Path) -> None:
    saved = CompressionReport.model_validate_json((out / REPORT).read_text())
    assert saved.chosen is not None
    assert Artifact.load(out / MODEL).card.precision == "int8"


@pytest.mark.usefixtures("out")
def test_a_plan_is_shown_and_trains_nothing(words: tuple[str | Path, ...]) -> None:
    shown = succeed(*words, "--dry-run").stdout
    assert "teacher-1-ffn-50" in shown
    assert "Nothing was trained" in shown
    assert "…" not in shown


@pytest.mark.usefixtures("out")
def test_a_missed_score_is_an_exit_status(words: tuple[str | Path, ...]) -> None:
    message = fail(*words, "--min-score", "1", "--candidates", "1", status=1)
    assert "min_score=1 is not reached" in message
    assert "model" in message


@pytest.mark.usefixtures("out")
def test_limits_beyond_reach_name_the_nearest_point(words: tuple[str | Path, ...]) -> None:
    message = fail(*words, "--max-mb", "0.001")
    assert "The nearest is teacher-1" in message


def test_a_wrong_setting_is_refused_before_any_work(words: tuple[str | Path, ...]) -> None:
    message = fail(*words, "--schemes", "dynamik")
    assert "dynamic" in message


def test_json_is_one_line(words: tuple[str | Path, ...], out: Path) -> None:
    printed = succeed(*words, "--dry-run", "--json").stdout.strip()
    assert json.loads(printed)["verdict"] == "planned"
