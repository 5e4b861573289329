"""Each subject runs in its smallest form, and its table can be made of what it records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    compress,
    gate,
    memory,
    methods,
    models,
    pretraining,
    pruning,
    quantization,
    rivals,
    runtimes,
    training,
)
from benchmarks.harness import MeasuredCommandError, Run, grouped, read_runs, recorded
from benchmarks.making import scored_row
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError
from bertender.metrics.metric import Score
from bertender.tasks.task import Task
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import load_tokenizer
from tests.toys import passages

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture
def chosen_by(task: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The toy task with validation texts, as the task of every artifact."""
    apart = replace(task, train=task.train.first(48), selection=task.train.after(72))
    for subject in (methods, models, pruning, quantization, rivals, runtimes, training, gate):
        monkeypatch.setattr(subject, "recorded_task", lambda artifact, changes: apart)
    return apart


@pytest.fixture(scope="module")
def graph(trained: Artifact, task: Task, once: Once) -> Artifact:
    """The export of the trained teacher."""
    from export.config import ExportConfig
    from export.exporter import export

    def fill(folder: Path) -> None:
        export(trained, task, ExportConfig(parity_texts=8), folder / "float")

    return Artifact.load(once("benchmarks-graph", fill) / "float")


def only(out: Path) -> Run:
    (run,) = read_runs(out)
    return run


def test_models_are_scored_by_seeds(
    trained: Artifact, graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    models.run(trained.path, [graph.path], tmp_path / "seeds.json", untimed=True)
    run = only(tmp_path / "seeds.json")
    assert [row["group"] for row in run.rows] == ["teacher", "float"]
    assert [row[0] for row in models.seeds_table([run]).rows] == ["teacher", "float"]


def test_models_are_timed_in_turns(
    trained: Artifact, graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    models.run(trained.path, [graph.path], tmp_path / "models.json", processes=1, threads=1)
    run = only(tmp_path / "models.json")
    assert run.load is not None and run.about["task"] == "toy"
    first, second = models.table([run]).rows
    assert first[:2] == ["teacher", "PyTorch"] and second[1] == "ONNX Runtime"
    assert first[-1] == "-" and "x [" in second[-1]


def test_a_cascade_is_one_more_row(
    trained: Artifact, graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    settings = {"processes": 1, "threads": 1, "cascade": True, "noisy": True}
    models.run(trained.path, [graph.path], tmp_path / "cascade.json", **settings)
    table = models.cascade_table([only(tmp_path / "cascade.json")])
    assert [row[0] for row in table.rows] == ["teacher", "float", "float, then teacher"]
    # the graph predicts as the teacher does, and keeps all texts
    assert [row[2] for row in table.rows] == ["-", "-", "0%"]
    assert "validation texts" in table.note


@pytest.mark.server
def test_models_are_scored_behind_an_endpoint(
    trained: Artifact, graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    models.run(trained.path, [graph.path], tmp_path / "models.json", untimed=True, served=True)
    (row,) = only(tmp_path / "models.json").rows
    local = scored_row(graph, chosen_by)
    assert row["score"] == row["score_of_file"] == local["score"]
    assert row["max_abs_difference"] < 1e-5 and row["latency"] is None


def test_models_need_texts_to_choose_by(
    trained: Artifact, graph: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "recorded_task", lambda artifact, changes: task)
    with pytest.raises(ConfigError, match="Fine-tune it with --select"):
        models.run(trained.path, [graph.path], untimed=True)
    with pytest.raises(ConfigError, match="two artifacts are called"):
        models.run(trained.path, [trained.path], untimed=True)


@pytest.mark.parametrize(
    ("layers", "chosen", "start"),
    [
        (2, "first", "first"),
        (3, [0, 1, 2], "first"),
        (3, [0, 1, 5], "first and last"),
        (3, "first-and-last", "first and last"),
        (3, None, "default"),
        (None, "first", "first"),
        (3, "alternating", "every n-th"),
    ],
)
def test_a_start_is_told_by_the_layers(
    layers: int | None, chosen: Any, start: str, trained: Artifact
) -> None:
    config = {"method": "hard", "layers": layers, "teacher_layers": chosen}
    card = trained.card.model_copy(update={"stage": "distill", "config": config})
    assert models.how_made(replace(trained, card=card))["start"] == start


@pytest.mark.slow
def test_methods_train_for_the_same_epochs(
    trained: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    out, work = tmp_path / "methods.json", tmp_path / "work"
    settings: dict[str, Any] = {
        "systems": "hard,distilbert,hard:2",
        "epochs": 1,
        "layers": 1,
        "seeds": 1,
    }
    methods.run(trained.path, work, out, **settings)
    run = only(out)
    assert [row["group"] for row in run.rows] == ["hard", "distilbert", "hard:2"]
    assert run.about["absent"] == {} and all(row["processor_s"] >= 0 for row in run.rows)
    table = methods.epochs_table([run])
    assert [row[0] for row in table.rows] == ["`distilbert`", "`hard:2`"]
    before = (work / "hard-0" / "artifact.json").stat().st_mtime_ns
    methods.run(trained.path, work, out, **settings)
    assert (work / "hard-0" / "artifact.json").stat().st_mtime_ns == before, "it is not made again"


def test_a_method_with_too_few_epochs_is_left_out_with_the_reason(
    trained: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"systems": "hard,internal", "epochs": 1, "layers": 2, "seeds": 1}
    methods.run(trained.path, tmp_path / "work", tmp_path / "methods.json", **settings)
    assert "too few" in only(tmp_path / "methods.json").about["absent"]["internal"]


@pytest.mark.slow
def test_systems_train_for_the_same_time(
    trained: Artifact, chosen_by: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, other = (
        methods.System(name, "", {"method": name, "layers": 1}, in_epochs=True, is_control=control)
        for name, control in (("hard", True), ("distilbert", False))
    )
    half = replace(control, share=0.5)
    systems = {"control": control, "half": half, "other": other}
    monkeypatch.setattr(methods, "SYSTEMS", systems)
    monkeypatch.setattr(methods, "MOST_EPOCHS", 2)
    settings: dict[str, Any] = {"minutes": 0.5, "seeds": 2, "processes": 1}
    methods.run(trained.path, tmp_path / "work", tmp_path / "methods.json", **settings)
    scores, speeds = read_runs(tmp_path / "methods.json")
    assert [*grouped(scores.rows, "group")] == ["control", "half", "other"]
    assert {*scores.about["graphs"]} == {"control", "other"}, "a part of the time is not timed"
    assert len(speeds.rows) == 6
    (row,) = methods.table([scores, speeds]).rows
    assert row[0] == "distilbert" and row[2].endswith("x") and "x [" in row[3]


def test_texts_beyond_the_labelled_ones_have_no_labels(
    trained: Artifact, chosen_by: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = methods.ForMinutes(trained, chosen_by, 1e-4, {}, None, tmp_path, 60.0)
    assert trainer._settings("distilbert-6", 96)["epochs"] == 2, "there are no others"
    monkeypatch.setitem(trainer.__dict__, "_others", 1000)
    settings = trainer._settings("distilbert-6", 100)
    assert (settings["epochs"], settings["unlabelled_texts"]) == (1, 52)
    assert trainer._settings("hard-6", 96)["epochs"] == 2
    assert trainer._settings("mobilebert", 10)["learning_rate"] > 1e-4, "that of the method"


def test_ways_to_train_are_compared(
    trained: Artifact, chosen_by: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        training, "WAYS", {name: training.WAYS[name] for name in ("usual", "cached")}
    )
    settings: dict[str, Any] = {"seeds": 1, "epochs": 1, "layers": 1}
    training.run(trained.path, tmp_path / "work", tmp_path / "training.json", **settings)
    run = only(tmp_path / "training.json")
    assert [row["way"] for row in run.rows] == ["usual", "cached"]
    first, second = training.table([run]).rows
    assert first[2:] == ["-", "-"] and "x [" in second[2]


@pytest.mark.slow
def test_heads_are_cut_by_every_importance(
    trained: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"shares": "0.5", "seeds": 1, "epochs": 1}
    pruning.run(trained.path, tmp_path / "work", tmp_path / "pruning.json", **settings)
    run = only(tmp_path / "pruning.json")
    assert len(run.rows) == 3 * 2
    assert {*pruning.curve(run, "random", True)} == {0.0, 0.5}


def test_objectives_have_the_same_time(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(passages(60)))
    monkeypatch.setattr(pretraining, "load_task", lambda config: task)
    settings: dict[str, Any] = {"objectives": "untrained,mlm", "tasks": "toy", "seeds": 1}
    settings |= {"layers": 1, "hidden_size": 16, "epochs": 1, "minutes": 0.01}
    out = tmp_path / "pretraining.json"
    pretraining.run(str(corpus), tmp_path / "work", out, **settings)
    assert only(out).about["corpus"] == "corpus.txt"
    assert [row[0] for row in pretraining.table([only(out)]).rows] == ["`untrained`", "`mlm`"]


@pytest.mark.slow
def test_schemes_are_measured_on_short_and_long_texts(
    trained: Artifact, chosen_by: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = {"dynamic": {"scheme": "dynamic"}}
    monkeypatch.setattr(quantization, "VARIANTS", variants)
    out = tmp_path / "quantization.json"
    quantization.run(trained.path, tmp_path / "work", out, processes=1)
    run = only(out)
    assert [row["name"] for row in run.rows] == ["float32", "dynamic"]
    assert run.rows[1]["long"]["single_ms"] and run.about["refused"] == {}
    assert [row[0] for row in quantization.table([run]).rows] == ["`dynamic`"]


@pytest.mark.slow
def test_runtimes_are_compared_with_floats_in_onnx_runtime(
    graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    runtimes.run(
        [graph.path], tmp_path / "runtimes.json", runtime="onnxruntime", threads=1, processes=1
    )
    run = only(tmp_path / "runtimes.json")
    (row,) = runtimes.table([run]).rows
    assert row[0].startswith("float32 in")
    with pytest.raises(ConfigError, match="as first --runtime"):
        runtimes.run([graph.path], runtime="openvino")


def test_long_texts_fill_the_input(trained: Artifact) -> None:
    made, tokens = runtimes.long_texts(trained, [("apple pear",), ("plum",)], 3)
    encode = Tokenize(load_tokenizer(trained.path), tokens)
    assert [encode([text]).arrays["input_ids"].shape[1] for text in made] == [tokens] * 3
    with pytest.raises(DataError, match=f"0 texts of {tokens} tokens"):
        runtimes.long_texts(trained, [("",)], 1)


@pytest.mark.slow
def test_rivals_predict_and_take_turns(
    trained: Artifact, graph: Artifact, chosen_by: Task, tmp_path: Path
) -> None:
    out = tmp_path / "rivals.json"
    settings: dict[str, Any] = {"only": "onnxruntime", "processes": 1, "rounds": 2}
    rivals.run([graph.path], out, threads=1, **settings)
    run = only(out)
    assert [row["name"] for row in run.rows] == ["onnxruntime"]
    assert run.rows[0]["agreement"] == 1.0 and run.rows[0]["versions"]["onnxruntime"]
    assert np.array(run.rows[0]["single_ms"]).shape == (1, 2, rivals.SINGLES)
    assert len(rivals.table([run]).rows) == 1


def test_a_rival_that_cannot_open_the_model_is_absent_with_the_reason(
    exported: Artifact, chosen_by: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(rivals.RIVALS["onnxruntime"], opens="none-such")
    monkeypatch.setattr(rivals, "RIVALS", {"broken": broken})
    contest = rivals.Contest(chosen_by, {"broken": ("broken", exported)}, 1, 32)
    rows, absent = contest.predicted()
    assert rows == [] and "ended" in absent["broken"]


def test_a_command_is_measured(tmp_path: Path) -> None:
    row = memory.measured("tasks", tmp_path)
    assert row["largest_process_bytes"] > 1e7 and row["left_on_disk_bytes"] == 0
    with pytest.raises(MeasuredCommandError, match="none-such: exit code 2"):
        memory.measured("none-such", tmp_path)


def test_a_compression_is_recorded_on_its_own_machine(tmp_path: Path) -> None:
    environment = recorded("x", []).environment.model_dump(mode="json")
    machine = {
        "environment": {**environment, "cpu_model": "another"},
        "load": {"other_work": 0, "steal": 0},
    }
    score = Score(metric="accuracy", value=0.9, low=0.8, high=1.0, n=10).model_dump()
    start = {"name": "teacher", "layers": 6}
    row = {
        "candidate": {"start": start, "layers": 1, "heads": 0.5, "ffn": 0.0, "scheme": "dynamic"},
        "predicted": {"model_mb": 3.0, "single_ms": 0.5},
        "measured": {"model_mb": 3.1, "single_ms": 0.6},
        "fits": True,
        "rounds": [{"score": 0.8}],
        "choice": 0.85,
        "score": score,
        "left_out": None,
    }
    limits = {"max_mb": 4.0, "max_ms": 1.0, "min_score": 0.9}
    report: dict[str, Any] = {**machine, "candidates": [row], "probes": [], "config": limits}
    report |= {"metric": "accuracy", "minutes": 1.0}
    (tmp_path / "report.json").write_text(json.dumps(report))
    table = {"circumstances": machine, "rows": []}
    (tmp_path / "table.json").write_text(json.dumps(table))
    compress.run(tmp_path, "bertender compress", tmp_path / "compress.json")
    runs = read_runs(tmp_path / "compress.json")
    assert [run.about["part"] for run in runs] == ["report", "table"]
    assert runs[0].environment.cpu_model == "another" and runs[0].command == "bertender compress"
    assert compress.table(runs).rows == [
        [
            "teacher, 1 layer, less 50 % of heads, dynamic",
            "3.1",
            "0.60",
            "0.85",
            "0.90 [0.80, 1.00]",
            "chosen",
        ]
    ]
