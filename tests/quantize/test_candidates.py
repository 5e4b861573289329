"""Without a scheme the first that passes is taken; a refusal ends with the next command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from bertender.cli.findings import quantization_lines
from bertender.cli.flags import settings_of
from bertender.core.artifact import Artifact
from bertender.core.errors import (
    AccuracyError,
    ConfigError,
    GateError,
    HubCodeError,
    ModelError,
    ParityError,
)
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.config import AUTO_SCHEME, CANDIDATES, SCHEMES, QuantizeConfig, candidates
from quantize.context import QuantizationContext
from quantize.quantizer import WRITERS, in_whole_texts, next_command, quantize

REFUSALS = (ParityError("moved"), AccuracyError("lost"), GateError("runs in float"))
OTHERS = (ModelError("saturates"), HubCodeError("wants code"), ModelError("cannot be opened"))


def config_with(**settings: Any) -> QuantizeConfig:
    quick = {"target": "vnni", "parity_texts": 8}
    return QuantizeConfig.parse({**quick, **settings})


def check(monkeypatch: pytest.MonkeyPatch, scheme: str, error: Exception) -> None:
    def write(context: Any, target: Path) -> Any:
        raise error

    monkeypatch.setattr(WRITERS[scheme], "write", write)


def test_no_scheme_is_the_first_that_passes(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = quantize(float_model, task, config_with(max_drop=100), tmp_path / "int8")
    assert artifact.card.config["scheme"] == "four-bit-embeddings"
    assert artifact.card.findings.quantization.tables_of_4_bits == 1
    assert artifact.card.findings.quantization.tried == ()


@pytest.mark.parametrize("lost", [1, 2])
def test_tables_of_4_bits_are_refused_where_they_score_less(
    lost: int, float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where nobody asked for them is more than half a point, in whole texts, too much."""
    texts = len(task.choices)
    assert texts < 200, "one text is more than half a point"
    scores = iter((0.9 - lost / texts, 0.9))  # of the graph, then of the float model
    monkeypatch.setattr(QuantizationContext, "score_of", lambda context, model: next(scores))
    artifact = quantize(float_model, task, config_with(), tmp_path / "int8")
    tried = artifact.card.findings.quantization.tried
    if lost == 1:
        assert artifact.card.config["scheme"] == "four-bit-embeddings" and not tried
    else:
        assert artifact.card.config["scheme"] == "dynamic"
        assert tried[0].scheme == "four-bit-embeddings" and "points" in str(tried[0].refused)


def test_the_default_bound_is_of_whole_texts() -> None:
    found = [in_whole_texts(0.5, texts) for texts in (60, 175, 200, 392)]
    assert found == pytest.approx([100 / 60, 100 / 175, 0.5, 200 / 392], abs=1e-6)


@pytest.mark.one_path
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refused_scheme_gives_way_to_the_next(
    error: Exception,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = ["four-bit-embeddings", "dynamic"]
    for scheme in refused:
        check(monkeypatch, scheme, error)
    artifact = quantize(float_model, task, config_with(), tmp_path / "int8")
    config, findings = artifact.card.config, artifact.card.findings
    assert (config["scheme"], config["calibrator"]) == ("static", "mse")
    for scheme, tried in zip(refused, findings.quantization.tried, strict=True):
        assert (tried.scheme, tried.refused, tried.skipped) == (scheme, str(error), None)
        assert f"scheme {scheme} was refused: {error}" in quantization_lines(findings)
        assert f"scheme {scheme} is refused: {error}" in caplog.text


def test_all_refused_says_why_and_what_is_left(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row, error in zip(CANDIDATES, (REFUSALS[0], *REFUSALS), strict=True):
        check(monkeypatch, row["scheme"], error)
    with pytest.raises(GateError, match=r"moved.*refused lost.*refused runs in float") as all_:
        quantize(float_model, task, config_with(), tmp_path / "int8")
    assert "Try next: bertender quantize" in str(all_.value)
    assert "--scheme qat" in str(all_.value) and not any(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", [AUTO_SCHEME, "four-bit-embeddings"])
@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_what_no_gate_raised_is_raised_as_it_is(
    error: Exception,
    scheme: str,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It meets every scheme: none is tried after it, and none is recommended."""
    check(monkeypatch, "four-bit-embeddings", error)
    check(monkeypatch, "dynamic", ParityError("never tried"))
    with pytest.raises(ModelError) as caught:
        quantize(float_model, task, config_with(scheme=scheme), tmp_path / "int8")
    assert caught.value is error and not any(tmp_path.iterdir())


SKIPPED = [
    ({"calibrator": "entropy"}, ["four-bit-embeddings", "dynamic"]),
    ({"base": "dynamic"}, ["four-bit-embeddings", "dynamic", "static"]),
    ({"sensitivity_texts": 8}, ["four-bit-embeddings", "dynamic", "static"]),
    ({"epochs": 2}, ["four-bit-embeddings", "dynamic", "static", "mixed"]),
    ({"percentile": 99.0}, ["four-bit-embeddings", "dynamic", "static", "mixed"]),
    ({"max_drop": 2.0, "no_embeddings": True, "seed": 3}, ["four-bit-embeddings"]),
    ({"fused_attention": True}, ["static", "mixed"]),
    ({"runtime": "openvino"}, ["four-bit-embeddings", "dynamic"]),
    ({"max_drop": 2.0, "seed": 3}, []),
]


@pytest.mark.parametrize(("settings", "skipped"), SKIPPED)
def test_a_candidate_that_would_ignore_a_setting_is_skipped(
    settings: dict[str, Any], skipped: list[str]
) -> None:
    rows = [*candidates(QuantizeConfig(**settings))]
    assert [each.scheme for each in rows if each.skipped] == skipped
    for each in rows:
        for name, value in settings.items():
            assert getattr(each.config, name) == value


def test_a_skipped_scheme_is_told(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    config = config_with(calibrator="entropy", calibration_texts=4)
    artifact = quantize(float_model, task, config, tmp_path / "int8")
    first, second = artifact.card.findings.quantization.tried
    assert (first.scheme, second.scheme) == ("four-bit-embeddings", "dynamic")
    assert "does not read it" in first.skipped and "does not read it" in second.skipped
    assert artifact.card.config["calibrator"] == "entropy"


def test_settings_that_no_candidate_reads_are_refused(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    said = r"reads all of your settings.*--scheme qat"
    with pytest.raises(ConfigError, match=said):
        config_with(epochs=2)
    with pytest.raises(ConfigError, match=said):
        quantize(float_model, task, QuantizeConfig(epochs=2), tmp_path / "out")
    assert not any(tmp_path.iterdir())


STEPS = [
    ({"scheme": "dynamic"}, {"scheme": "static", "calibrator": "mse"}),
    ({"scheme": "static", "calibrator": "minmax"}, {"scheme": "static", "calibrator": "mse"}),
    ({"scheme": "static"}, {"scheme": "mixed", "base": "static", "max_drop": 0.5}),
    ({"scheme": "mixed", "max_drop": 2.0}, {"scheme": "mixed", "base": "static", "max_drop": 2.0}),
    ({"scheme": "mixed", "max_drop": 0.1, "base": "static"}, {"scheme": "qat", "max_drop": 0.1}),
    ({"scheme": "four-bit"}, {"scheme": "four-bit", "max_drop": 0.5}),
    ({"scheme": "four-bit", "max_drop": 1.0}, {"scheme": "dynamic", "max_drop": 1.0}),
    ({"scheme": "qat", "no_embeddings": True}, {"scheme": "qat", "epochs": 3}),
    ({"scheme": "qat", "epochs": 3}, {"scheme": "qat", "epochs": 10}),
    ({"scheme": "qat", "epochs": 5}, {"scheme": "qat", "epochs": 10}),
    (
        {"scheme": "static", "calibrator": "percentile", "percentile": 99.9},
        {"scheme": "static", "calibrator": "mse", "percentile": 99.99},
    ),
    (
        {"scheme": "mixed", "base": "static", "max_drop": 1.0, "calibration_texts": 64},
        {"scheme": "qat", "calibration_texts": 64},
    ),
    ({"scheme": "static", "max_drop": None}, {"scheme": "mixed", "max_drop": 0.5}),
]


@pytest.mark.parametrize(("settings", "wanted"), STEPS)
def test_the_next_command_can_be_typed(
    settings: dict[str, Any], wanted: dict[str, Any], float_model: Artifact, task: Task
) -> None:
    config = config_with(**settings)
    said = next_command(config, float_model, task, Path("out folder"))
    words = shlex.split(said.removeprefix("Try next: "))
    assert words[:2] == ["bertender", "quantize"] and words[-2:] == ["--out", "out folder"]
    assert Artifact.load(Path(words[2])).card.kind == SCHEMES[wanted["scheme"]].source
    typed = QuantizeConfig.parse(settings_of(QuantizeConfig, flags(words[3:-2])))
    typed.check_rules()
    assert {name: getattr(typed, name) for name in wanted} == wanted
    for name in ("target", "parity_texts", "no_embeddings"):
        assert getattr(typed, name) == getattr(config, name)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_whoever_types_each_next_command_comes_to_an_end(
    scheme: str, float_model: Artifact, task: Task
) -> None:
    drop = {"max_drop": 1.0} if scheme == "mixed" else {}
    said, config = "", config_with(scheme=scheme, **drop)
    for _ in range(sum(len(row.then) for row in SCHEMES.values()) + 1):
        said = next_command(config, float_model, task, Path("out"))
        if not said.startswith("Try next: "):
            break
        words = shlex.split(said.removeprefix("Try next: "))
        config = QuantizeConfig.parse(settings_of(QuantizeConfig, flags(words[3:-2])))
    assert said.startswith("Keep the float model")


class TunedConfig(QuantizeConfig):
    """With a setting that is on by default."""

    parity_texts: bool = True


@pytest.mark.parametrize(
    ("value", "flag"), [(False, "--no-parity-texts"), (True, "--parity-texts")]
)
def test_what_was_turned_off_stays_off(
    value: bool, flag: str, float_model: Artifact, task: Task
) -> None:
    config = TunedConfig(scheme="dynamic", parity_texts=value)
    assert flag in shlex.split(next_command(config, float_model, task, Path("out")))


def flags(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            value = words[place + 1] if place + 1 < len(words) else "--"
            found[word[2:].replace("-", "_")] = True if value.startswith("--") else value
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_explicit_scheme_that_is_refused_ends_with_the_next_command(
    scheme: str,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(row["scheme"] in SCHEMES for scheme in SCHEMES.values() for row in scheme.then)
    check(monkeypatch, scheme, ParityError("it moved."))
    source = float_model
    if SCHEMES[scheme].source == "torch":
        assert float_model.card.parent is not None
        source = Artifact.load(float_model.path / float_model.card.parent.path)
    drop = {"max_drop": 1.0} if scheme == "mixed" else {}
    config = config_with(scheme=scheme, **drop)
    with pytest.raises(ParityError, match=r"it moved\. Try next: bertender quantize \S+ --\S+"):
        STAGES["quantize"].make([source], task, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
