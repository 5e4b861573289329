"""The commands of the stages: what they write, on which task, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertender.cli.findings import control_lines
from bertender.core.artifact import Artifact
from tests.cli.made import QUICK, Made
from tests.front import fail, last_line, succeed


def test_the_chain_of_commands_is_the_lineage(made: Made) -> None:
    cards = {
        name: Artifact.load(made[name]).card for name in ("teacher", "student", "onnx", "int8")
    }
    assert [card.stage for card in cards.values()] == ["finetune", "distill", "export", "quantize"]
    assert [card.kind for card in cards.values()] == ["torch", "torch", "onnx", "onnx"]
    assert [card.precision for card in cards.values()] == ["float32"] * 3 + ["int4"]
    for name, parent in (("student", "teacher"), ("onnx", "student"), ("int8", "onnx")):
        found = cards[name].parent
        assert found and found.digest == Artifact.load(made[parent]).digest


def test_flags_are_in_the_card(made: Made) -> None:
    config = Artifact.load(made["student"]).card.config
    assert (config["layers"], config["epochs"], config["learning_rate"]) == (2, 6, 3e-3)
    assert config["method"] == "distilbert" and config["temperature"] is None


def test_every_stage_after_the_first_knows_the_task(made: Made) -> None:
    """Only `finetune` was told of the files: the others have read it from what they start from."""
    for name in ("student", "onnx", "int8"):
        assert Artifact.load(made[name]).card.task.source["train"] == str(made.files.train)


def test_the_task_may_be_changed(made: Made, tmp_path: Path) -> None:
    words = ("distill", "--teacher", made["teacher"], "--method", "hard", *QUICK, "--epochs", "1")
    succeed(*words, "--max-train", "20", "--out", tmp_path / "few")
    card = Artifact.load(tmp_path / "few").card
    assert card.task.source["max_train"] == 20
    assert card.findings.training.steps == 2, "20 texts in batches of 16"


def test_structured_flags(made: Made, tmp_path: Path) -> None:
    words = ("distill", "--teacher", made["teacher"], "--layers", "2", *QUICK, "--epochs", "1")
    succeed(*words, "--teacher-layers", "0,3", "--weights", "cosine=0", "--out", tmp_path / "out")
    config = Artifact.load(tmp_path / "out").card.config
    assert config["teacher_layers"] == [0, 3]
    assert config["weights"] == {"cosine": 0.0}


def test_a_control_is_compared_in_one_sentence(made: Made, tmp_path: Path) -> None:
    words = ("distill", "--teacher", made["teacher"], "--layers", "2", *QUICK, "--epochs", "1")
    more = ("--control", "--max-train", "20", "--out", tmp_path / "student")
    sentences = [
        line for line in succeed(*words, *more).stdout.splitlines() if "distilling" in line
    ]
    findings = Artifact.load(tmp_path / "student").card.findings
    assert sentences == [f"  {line}" for line in control_lines(findings)] != []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("distill", "--teacher", "{teacher}", "--method", "distilbrt"),
            "no distillation method 'distilbrt'. Did you mean 'distilbert'?",
        ),
        (("distill", "--teacher", "{teacher}", "--weights", "sofd=1"), "Did you mean 'soft'?"),
        (("distill", "--teacher", "{onnx}"), "is not a trained classifier"),
        (("distill", "--teacher", "{teacher}", "--layers", "9"), "9"),
        (
            ("quantize", "{onnx}", "--scheme", "dinamic"),
            "no quantization scheme 'dinamic'. Did you mean 'dynamic'?",
        ),
        (("quantize", "{int8}"), "int4 already"),
        (("export", "{onnx}"), "only torch classifiers can be exported"),
        (("export", "{onnx}/gone"), "no model at"),
        (("export", "{student}", "--dev", "gone.csv"), "gone.csv"),
    ],
    ids=lambda words: " ".join(words[::2]) if isinstance(words, tuple) else "",
)
def test_what_is_refused_leaves_nothing(
    words: tuple[str, ...], said: str, made: Made, tmp_path: Path
) -> None:
    names = {name: made[name] for name in ("teacher", "student", "onnx", "int8")}
    message = fail(*(word.format_map(names) for word in words), "--out", tmp_path / "out")
    assert said in message
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_is_no_artifact_is_refused_before_training(made: Made, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("the only copy")
    words = ("finetune", "--teacher", made["teacher"], *made.files.flags, "--out", tmp_path)
    assert "will not be replaced" in fail(*words)
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_a_damaged_artifact_is_named(made: Made, tmp_path: Path) -> None:
    source = made["onnx"]
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in source.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.onnx").write_bytes(b"")
    said = fail("quantize", broken, "--out", tmp_path / "out")
    assert "model.onnx differs from its recorded sha256" in said


def test_the_same_command_again_needs_force(made: Made, tmp_path: Path) -> None:
    words = ("baseline", *made.files.flags, "--out", tmp_path / "words", "--json")
    first = last_line(succeed(*words))["digest"]
    for more in ((), ("--max-train", "40")):
        assert "a finished artifact is there already (stage 'baseline'). Give --force" in fail(
            *words, *more
        )
    assert last_line(succeed(*words, "--force"))["digest"] == first
    assert [path.name for path in tmp_path.iterdir()] == ["words"]


def test_what_a_run_took_is_said_at_its_end(made: Made, tmp_path: Path) -> None:
    words = ("distill", "--teacher", made["teacher"], "--layers", "1", *QUICK, "--epochs", "1")
    said = succeed(*words, "--out", tmp_path / "out").stdout
    assert re.search(r"trained on \d+ texts/s; the teacher took \d+% of \d+ s$", said, re.M)
    timing = last_line(succeed("show", tmp_path / "out", "--json"))[0]["timing"]
    assert timing["samples"] == 96 and timing["samples_per_s"] > 0
    assert 0 < timing["teacher_s"] < timing["wall_s"] and 0 < timing["teacher_share"] < 1
    said = last_line(succeed("show", made["onnx"], "--json"))
    assert said[0]["timing"] is None, "nothing was trained"


def test_words_for_a_person(made: Made, tmp_path: Path) -> None:
    said = succeed("quantize", made["onnx"], "--out", tmp_path / "out").stdout
    assert said.startswith(f"{tmp_path / 'out'}: onnx, int4, ")
    assert "parity with onnx: agreement" in said
