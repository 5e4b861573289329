"""The gate's benchmark: every fault can be planted, is judged, and counted in the tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import typer

from benchmarks.gate import measuring as gate
from benchmarks.gate.faults import FAULTS
from benchmarks.gate.measuring import judged
from benchmarks.gate.records import GateBenchmark, Judged
from benchmarks.gate.subject import VARIANTS, Cached, Subject
from benchmarks.gate.table import gate_block
from bertender.core.environment import environment
from bertender.core.errors import UnknownNameError
from bertender.measure.parity_checks import Figures
from bertender.measure.tolerances import TOLERANCES
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
    assert row.figures is not None and row.refused_by_logits is not None


def test_a_reference_runs_once_for_a_batch() -> None:
    asked: list[Batch] = []

    class Counting:
        def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
            asked.append(batch)
            return np.full((len(batch), 2), len(asked), dtype=np.float32)

    cached = Cached(Counting())
    rows = np.array([[1, 2], [3, 4]])
    batches = [
        Batch((("a",),) * len(ids), {"input_ids": ids}) for ids in (rows, rows[:1], rows + 1, rows)
    ]
    assert [cached.logits(batch)[0, 0] for batch in batches] == [1, 2, 3, 1]


def test_token_types_are_dropped_where_a_graph_reads_them(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS["token types dropped"]
    assert subject.can_have(fault)
    monkeypatch.setitem(subject.__dict__, "_inputs", {"input_ids", "attention_mask"})
    assert not subject.can_have(fault) and subject.can_have(FAULTS["mask ignored"])


def test_an_unknown_variant_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="dynamik"):
        gate.run([tmp_path / "none"], tmp_path, tmp_path / "gate.json", variants="dynamik")


def test_what_inputs_refuse_is_not_refused_by_the_logits(subject: Subject) -> None:
    row = judged(subject, "dynamic", "tokenizer of another case")
    assert row.refused_by == ("inputs",) and row.refused_by_logits is not None
    assert "inputs" not in row.refused_by_logits


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
    done = gate.started().model_copy(update={"candidates": (row("dynamic", None),)})
    out.write_text(done.model_dump_json(), encoding="utf-8")
    gate.run([tmp_path], tmp_path, out, faults=False)
    assert [variant for variant, _ in asked] == [name for name in VARIANTS if name != "dynamic"]
    assert len(json.loads(out.read_text())["candidates"]) == len(VARIANTS)


def test_candidates_of_another_gate_are_not_added_to(tmp_path: Path) -> None:
    bounds = {"int8": TOLERANCES["int8"].model_copy(update={"min_correlation": 0.8})}
    earlier = gate.started().model_copy(update={"bounds": bounds})
    out = tmp_path / "gate.json"
    out.write_text(earlier.model_dump_json(), encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="made with other bounds: give another --out"):
        gate.run([tmp_path / "none"], tmp_path, out)


def row(variant: str, fault: str | None, *refused: str, **fields: Any) -> Judged:
    return Judged(
        teacher="toy-0",
        variant=variant,
        fault=fault,
        refused_by=refused,
        **{"change": None, **fields},
    )


def test_the_tables_count_refusals_and_name_what_caught(tmp_path: Path) -> None:
    lost = Change(value=-0.1, low=-0.4, high=0.2)
    moved = Figures(median_difference_low=0.123, common_shift=0.0456, correlation=0.987)
    rows = (
        row("dynamic", None, change=lost, figures=moved),
        row("static-mse", None, "p95_difference_low", change=lost),
        row("dynamic", "labels permuted", "decided_agreement_high"),
        row("dynamic", "mask ignored", "rest", refused_by_logits=("p95_difference_low",)),
        row("static-mse", "mask ignored", "rest", refused_by_logits=()),
        row("dynamic", "GELU by tanh", change=lost),
    )
    path = tmp_path / "gate.json"
    result = GateBenchmark(environment=environment(), candidates=rows)
    path.write_text(result.model_dump_json(), encoding="utf-8")
    block = gate_block({"results/gate.json": path})
    assert "**2 sound candidates, 1 refused (50.0 % [9.5, 90.5])**" in block
    assert "**4 planted faults, 3 caught (75.0 % [30.1, 95.4])**" in block
    assert "95th percentile" not in block, "no row has it"
    assert "| `dynamic` | 1 | 0 | - | 0.12 | 0.046 | 0.99 | - |" in block
    assert "| `static-mse` | 1 | 1 | p95_difference_low (1) | - | - | - | toy-0 static-m" in block
    assert "| labels permuted | 1 | 1 | decided_agreement_high (1) | - | - |" in block
    assert "| mask ignored | 2 | 2 | rest (2) | 1 | - |" in block
    assert "| GELU by tanh | 1 | 0 | - | - | toy-0 dynamic -0.1" in block
