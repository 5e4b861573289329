"""What is printed: JSON that any reader takes, and words as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bertender.cli import output
from bertender.cli.output import (
    print_artifact,
    print_entry,
    print_json,
    print_rows,
    print_words,
)
from bertender.core.artifact import Artifact
from bertender.core.findings import Findings

LONG = "/a/very/long/path/" + "x" * 90


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": float("nan"), "b": [float("inf"), 1.5]}, '{"a": null, "b": [null, 1.5]}'),
        ({"path": Path("a/b")}, '{"path": "a/b"}'),
        ((1, None, True, 0), "[1, null, true, 0]"),
        ("größe\n漢", '"gr\\u00f6\\u00dfe\\n\\u6f22"'),
    ],
)
def test_json_is_one_plain_line(value: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(value)
    assert capsys.readouterr().out == line + "\n"


@pytest.mark.parametrize("words", ["[bold]x[/bold]", "[/nothing]", f"{LONG} and more", ":smile:"])
def test_words_are_printed_as_they_are(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_words(words)
    assert capsys.readouterr().out == words + "\n"


def test_an_entry_is_wrapped_but_no_path_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", 40)
    print_entry("name", ["many words " * 8, f"found at {LONG}"])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "name"
    assert all(line.startswith("    ") for line in lines)
    assert f"    {LONG}" in lines
    assert max(len(line) for line in lines if LONG not in line) <= 40


def test_cells_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("text",), [("[red]not a colour[/red]",)])
    assert "[red]not a colour[/red]" in capsys.readouterr().out


UNTRAINED: dict[str, Any] = {"steps": 1, "losses": [], "epochs": []}
BESIDE = {"artifact": "out-rte", "epochs": [{"accuracy": 0.625}]}


@dataclass(frozen=True)
class Shown:
    findings: dict[str, Any]
    said: str


@pytest.mark.parametrize(
    "shown",
    [
        Shown({"parameters": 1_500_000}, "torch, float32, 1.5M parameters, "),
        Shown({}, "torch, float32, - parameters, "),
        Shown(
            {"training": {**UNTRAINED, "epochs": [{"accuracy": 0.5}, {"accuracy": 0.75}]}},
            "last epoch: accuracy 0.75",
        ),
        Shown(
            {
                "training": {**UNTRAINED, "epochs": [{"accuracy": 0.75}]},
                "scores": {"chosen_on": "selection", "score": 0.625, "scores": {}},
            },
            "validation after the last epoch: accuracy 0.75\n  held-out, read once: 0.625",
        ),
        Shown(
            {
                "training": {**UNTRAINED, "epochs": [{"f1": 0.5}]},
                "scores": {"chosen_on": "dev", "score": 0.5, "scores": {}},
            },
            "held-out after the",
        ),
        Shown(
            {"training": {**UNTRAINED, "together": {"rte": BESIDE}}},
            "task rte, in out-rte next to it: accuracy 0.625",
        ),
        Shown(
            {
                "parity": {
                    "reference": "student",
                    "agreement": 0.995,
                    "texts": 256,
                    "rows": 772,
                    "passed": True,
                    "max_abs_difference": 0.0123,
                    "mean_abs_difference": None,
                    "min_cosine": None,
                }
            },
            "parity with student: agreement 0.9950 over 256 texts, largest logit difference 0.012",
        ),
    ],
    ids=["size", "no size", "score", "scores apart", "scores not apart", "another task", "parity"],
)
def test_an_artifact_is_shown_with_what_was_measured(
    shown: Shown, teacher: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = Findings.model_validate(shown.findings)
    card = teacher.card.model_copy(update={"findings": findings})
    print_artifact(Artifact(teacher.path, card))
    assert shown.said in capsys.readouterr().out


def test_json_round_trips_an_artifact(
    teacher: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json(output.artifact_summary(teacher))
    said = json.loads(capsys.readouterr().out)
    assert said["digest"] == teacher.digest and said["size"]["artifact_size_bytes"] > 0
