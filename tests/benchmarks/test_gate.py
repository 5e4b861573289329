"""The gate's benchmark: every fault can be planted, is judged, and counted in the tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.gate import measuring as gate
from benchmarks.gate.faults import FAULTS
from benchmarks.gate.measuring import VARIANTS, GateBenchmark, Judged, Subject, judged
from benchmarks.gate.table import gate_block
from bertender.core.environment import environment
from bertender.metrics.records import Change
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch
from export.onnx_export import ExportConfig, export
from quantize.schemes import SCHEMES
from tests.toy_models import save_artifact, tiny_classifier


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Subject:
    """A tiny BERT of pairs, so that every fault is one."""

    def paired(split: Split) -> Split:
        texts = [text for (text,) in split.examples]
        return Split(tuple(zip(texts, texts[1:] + texts[:1], strict=True)), split.label_ids)

    pairs = replace(
        task, text_columns=("first", "second"), train=paired(task.train), dev=paired(task.dev)
    )
    folder = tmp_path_factory.mktemp("gate")
    teacher = save_artifact(tiny_classifier("bert"), pairs, folder / "teacher")
    source = export(teacher, pairs, ExportConfig(), folder / "float32")
    return Subject("toy-0", teacher, source, pairs, folder)


def test_variants_are_of_known_schemes_and_faults_of_known_variants() -> None:
    schemes = {settings["scheme"] for settings in VARIANTS.values() if settings}
    assert schemes == {name for name, row in SCHEMES.items() if row.source == "onnx"}
    assert all(set(fault.variants) <= VARIANTS.keys() for fault in FAULTS.values())


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_caught_where_it_is_planted(name: str, subject: Subject) -> None:
    row = judged(subject, FAULTS[name].variants[-1], name)
    assert row.refused_by, "no check refuses it"
    assert row.change is None, "it was caught"


def test_a_reference_runs_once_for_a_batch() -> None:
    asked: list[Batch] = []

    class Counting:
        def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
            asked.append(batch)
            return np.full((len(batch), 2), len(asked), dtype=np.float32)

    cached = gate.Cached(Counting())
    rows = np.array([[1, 2], [3, 4]])
    batches = [
        Batch((("a",),) * len(ids), {"input_ids": ids}) for ids in (rows, rows[:1], rows + 1, rows)
    ]
    assert [cached.logits(batch)[0, 0] for batch in batches] == [1, 2, 3, 1]


def test_a_sound_candidate_is_asked_everything(subject: Subject) -> None:
    row = judged(subject, "float32", None)
    assert row.refused_by == () and row.change == Change(value=0.0, low=0.0, high=0.0)


def test_a_call_goes_on_where_the_last_one_stopped(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def judge(subject: Subject, variant: str, fault: str | None) -> Judged:
        asked.append((variant, fault))
        return row(variant, fault)

    monkeypatch.setattr(gate, "subject_of", lambda teacher, work: subject)
    monkeypatch.setattr(gate, "judged", judge)
    out = tmp_path / "gate.json"
    done = GateBenchmark(environment=environment(), candidates=(row("dynamic", None),))
    out.write_text(done.model_dump_json(), encoding="utf-8")
    gate.run([tmp_path], tmp_path, out, faults=False)
    assert [variant for variant, _ in asked] == [name for name in VARIANTS if name != "dynamic"]
    assert len(json.loads(out.read_text())["candidates"]) == len(VARIANTS)


def row(variant: str, fault: str | None, *refused: str, change: Change | None = None) -> Judged:
    return Judged(teacher="toy-0", variant=variant, fault=fault, refused_by=refused, change=change)


def test_the_tables_count_refusals_and_name_what_caught(tmp_path: Path) -> None:
    lost = Change(value=-0.1, low=-0.4, high=0.2)
    rows = (
        row("dynamic", None, change=lost),
        row("static-mse", None, "p95_difference_low", change=lost),
        row("dynamic", "labels permuted", "decided_agreement_high"),
        row("dynamic", "GELU by tanh", change=lost),
    )
    path = tmp_path / "gate.json"
    result = GateBenchmark(environment=environment(), candidates=rows)
    path.write_text(result.model_dump_json(), encoding="utf-8")
    block = gate_block({"results/gate.json": path})
    assert "**2 sound candidates, 1 refused (50.0 % [9.5, 90.5])**" in block
    assert "**2 planted faults, 1 caught (50.0 % [9.5, 90.5])**" in block
    assert "| `static-mse` | 1 | 1 | p95_difference_low (1) | toy-0 static-mse -0.1" in block
    assert "| GELU by tanh | 1 | 0 | - | toy-0 dynamic -0.1" in block
