"""The record of a run, its file, cells of tables, and the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.cells import Table, mean_over, ratio_over, two
from benchmarks.harness import (
    MeasuredCommandError,
    Run,
    names_in,
    read_runs,
    recorded,
    save_runs,
    used_by,
)
from benchmarks.making import Probe, amount_for, amount_in
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, MachineBusyError
from bertender.core.machine import MachineLoad

BUSY = MachineLoad(other_work=0.5, steal=0.0)


def run_of(task: str, value: int) -> Run:
    return recorded("toy", [{"name": "a", "value": value}], task=task)


def test_a_run_takes_the_place_of_its_own_kind_alone(tmp_path: Path) -> None:
    out = tmp_path / "2026-01-02-toy.json"
    save_runs([run_of("sst2", 1)], out)
    save_runs([run_of("mrpc", 2)], out)
    save_runs([run_of("sst2", 3)], out)
    assert [(run.about["task"], run.rows[0]["value"]) for run in read_runs(out)] == [
        ("mrpc", 2),
        ("sst2", 3),
    ]
    assert read_runs(out)[0].command.startswith("python -m benchmarks")


def test_a_row_is_a_line(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    save_runs([recorded("toy", [{"a": 1}, {"a": 2}])], out)
    assert '{"a":1},\n{"a":2}\n' in out.read_text()


def test_a_record_has_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "toy", "/home/someone/teacher", "--seeds", "3"])
    assert recorded("toy", []).command == "python -m benchmarks toy teacher --seeds 3"


def test_figures_of_a_busy_machine_are_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = recorded("toy", [], BUSY)
    save_runs([noisy], tmp_path / "mine.json")
    with pytest.raises(MachineBusyError, match="no table is made"):
        read_runs(tmp_path / "mine.json")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    with pytest.raises(MachineBusyError, match="never enter results/"):
        save_runs([noisy], tmp_path / "toy.json")
    with pytest.raises(ConfigError, match="--noisy"), harness.watched(True, tmp_path / "toy.json"):
        pass


def test_the_newest_results_of_a_name_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    for name in ("2026-01-01-toy", "2026-01-03-toy", "2026-01-04-other-toy"):
        (tmp_path / f"{name}.json").touch()
    assert harness.newest("toy").stem == "2026-01-03-toy"
    with pytest.raises(ConfigError, match="no results of 'none'"):
        harness.newest("none")


def test_names_are_known_ones() -> None:
    assert names_in("--only", "", ["a", "b"]) == ["a", "b"]
    assert names_in("--only", "b, b,a", ["a", "b"]) == ["b", "a"]
    for wrong in ("c", " , "):
        with pytest.raises(ConfigError, match="there are a, b"):
            names_in("--only", wrong, ["a", "b"])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *[(0.0, "0"), (0.006, "0.006"), (0.734, "0.73"), (0.999, "1.0"), (9.96, "10")],
        *[(11.3, "11"), (154.2, "150"), (1234.0, "1,200"), (None, "-")],
    ],
)
def test_figures_have_two_digits(value: float | None, shown: str) -> None:
    assert two(value) == shown


def test_columns_of_numbers_are_aligned_right() -> None:
    rows = [["a", "1.2x [1.0, 1,300]", "590 (74%)", "-"], ["b", "-", "1,200", "ok"]]
    lines = Table(["Name", "Speed", "Rate", "Word"], rows, "A note.").markdown().splitlines()
    assert lines[1] == "| --- | ---: | ---: | --- |"
    assert lines[-1] == "A note."


def test_intervals_hold_what_differs_between_starts() -> None:
    mean = mean_over([1.0, 2.0, 3.0])
    assert mean.value == 2.0 and mean.low == pytest.approx(-0.484, abs=1e-3)
    ratio = ratio_over([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_an_amount_takes_its_budget(tmp_path: Path) -> None:
    asked: list[int] = []

    def trained(amount: int) -> Probe:
        asked.append(amount)
        return Probe(amount=amount, processor_s=10 + amount / 10)

    file = tmp_path / "amount.json"
    assert amount_in(100.0, file, "it", trained, 100, 10_000).amount == 900
    assert asked == [100, 400]
    assert amount_in(100.0, file, "it", trained, 100, 10_000).amount == 900
    assert asked == [100, 400], "it was known"
    amount_in(100.0, file, "another", trained, 100, 200)
    assert asked[2:] == [100, 200]
    same = Probe(amount=5, processor_s=1.0)
    assert amount_for(same, same, 100.0, 10) == 5


def test_the_subjects_are_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [name.replace("_", "-") for name in (*command.SUBJECTS, *command.TOOLS)]


def test_an_unknown_subject_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "none-such"])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert "none-such" in str(caught.value.code) and "rivals" in capsys.readouterr().out


def test_a_command_of_a_large_process_has_its_own_memory() -> None:
    alone = used_by("schemes")
    ballast = b"x" * 300_000_000
    assert used_by("schemes").peak_bytes < alone.peak_bytes + 20e6 < len(ballast)
    assert "static" in alone.output and 0 < alone.processor_s < 60
    with pytest.raises(MeasuredCommandError, match="none-such: exit code 2"):
        used_by("none-such")


def test_a_server_is_measured_until_it_is_ready(exported: Artifact) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    words = ("serve", str(exported.path), *ports, "--server", "embedded", "--json")
    used = used_by(*words, until_ready=True)
    assert used.peak_bytes > 50e6 and used.output == ""
