"""bertender tasks, methods and doctor."""

from __future__ import annotations

import pytest

from bertender.cli import output
from bertender.cli.doctor import findings
from bertender.cli.looking_up import LISTED_LAYERS
from bertender.core.machine import environment
from bertender.tasks.named import TASKS
from distill.methods import GENERAL_METHODS, METHODS
from tests.front import last_line, succeed


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_listed(name: str) -> None:
    said = {row["task"]: row for row in last_line(succeed("tasks", "--json"))}
    assert said[name]["labels"] == list(TASKS[name].labels)
    shown = " ".join(succeed("tasks").stdout.split())
    assert f"{name} {TASKS[name].description}" in shown


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_listed(name: str) -> None:
    listed = {row["method"]: row for row in last_line(succeed("methods", "--json"))}
    assert (listed[name]["on a corpus"] == "yes") == (name in GENERAL_METHODS)
    shown = " ".join(succeed("methods").stdout.split())
    assert f"{name} {METHODS[name].summary}" in shown


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_shown_in_full(name: str) -> None:
    said = {row["method"]: row for row in last_line(succeed("methods", name, "--json"))}
    assert METHODS[name].name == name
    assert set(METHODS[name].needs) <= set(said[name]["needs"])
    assert set(METHODS[name].conditions) <= set(said[name]["needs"])
    assert bool(said[name]["on a corpus"]) == (name in GENERAL_METHODS)
    assert len(said[name]["loss"]) == len(METHODS[name].at(LISTED_LAYERS).phases)
    assert said[name]["paper"] == METHODS[name].paper
    assert said[name]["augmentation"] == [row for row in [METHODS[name].augmentation] if row]
    assert METHODS[name].paper.split(",")[0] in succeed("methods", name).stdout


@pytest.mark.parametrize("name", GENERAL_METHODS)
def test_a_general_method_loads_by_its_name(name: str) -> None:
    assert GENERAL_METHODS[name].name == name


def test_doctor_says_what_each_finding_means() -> None:
    said = last_line(succeed("doctor", "--json"))["findings"]
    assert [row["name"] for row in said] == [each.name for each in findings(environment())]
    shown = succeed("doctor").stdout
    for finding in said:
        mark = "ok" if finding["ok"] else "--"
        assert f"{mark}  {finding['name']}: {finding['value']}\n" in shown
        assert finding["meaning"].split()[0] in shown


@pytest.mark.parametrize("name", ["tasks", "methods", "doctor", "recipes"])
def test_lists_fit_a_narrow_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.console, "width", 60)
    lines = succeed(name).stdout.splitlines()
    indented = [line for line in lines if line.startswith("    ")]
    assert indented
    assert [line for line in indented if len(line) > 60 and " " in line.strip()] == []
