"""The benchmark of the gate: every fault can be planted, is caught, and is counted in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import gate
from benchmarks.faults import ANSWER_FAULTS, FAULTS
from benchmarks.harness import Row, recorded
from bertender.core.artifact import Artifact
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SCHEMES
from tests.quick import quick
from tests.toy_models import save_artifact, tiny_classifier

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, task: Task) -> gate.Subject:
    """A tiny BERT of pairs, in which every fault can be planted."""

    def paired(split: Split) -> Split:
        texts = [text for (text,) in split.examples]
        return Split(tuple(zip(texts, texts[1:] + texts[:1], strict=True)), split.label_ids)

    of_pairs = replace(
        task, text_columns=("first", "second"), train=paired(task.train), dev=paired(task.dev)
    )
    folder = tmp_path_factory.mktemp("gate")
    teacher = save_artifact(tiny_classifier("bert"), of_pairs, folder / "teacher")
    source = export(teacher, of_pairs, ExportConfig(), folder / "float32")
    return gate.Subject("toy-0", teacher, source, of_pairs, folder)


def test_variants_have_every_scheme_of_graphs_and_faults_have_variants() -> None:
    schemes = {settings["scheme"] for settings in gate.VARIANTS.values() if settings}
    assert schemes == {name for name, row in SCHEMES.items() if row.source == "onnx"}
    assert all({*fault.variants} <= gate.VARIANTS.keys() for fault in FAULTS.values())


OF_LABELS = [
    name for name in FAULTS if ANSWER_FAULTS.get(name, (SINGLE_LABEL.name,))[0] == SINGLE_LABEL.name
]
"""Those of other kinds are planted in tests/problems/test_problems.py."""


@pytest.mark.parametrize("name", quick(OF_LABELS, "texts of a pair swapped"))
def test_every_fault_is_caught_where_it_is_planted(name: str, pairs: gate.Subject) -> None:
    row = gate.judged(pairs, FAULTS[name].variants[-1], name)
    assert row["refused_by"], "no check refuses it"


def test_token_types_are_dropped_where_a_graph_reads_them(
    pairs: gate.Subject, exported: Artifact, task: Task
) -> None:
    fault = FAULTS["token types dropped"]
    assert pairs.can_have(fault)
    single = replace(pairs, source=exported, task=task)
    assert not single.can_have(fault) and single.can_have(FAULTS["mask ignored"])


@pytest.mark.parametrize(
    ("variant", "fault", "refused"),
    [
        ("float32", None, []),
        ("float32", "labels permuted", ["max_abs_difference"]),
        ("dynamic", "tokenizer of another case", ["inputs"]),
        ("dynamic", "weights zeroed", ["products"]),
    ],
)
def test_the_gate_judges_sound_candidates_and_faults(
    variant: str,
    fault: str | None,
    refused: list[str],
    trained: Artifact,
    task: Task,
    once: Once,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "recorded_task", lambda artifact, changes: task)
    folder = once("benchmarks-gate", lambda folder: gate.Subject.of(trained.path, folder))
    subject = gate.Subject.of(trained.path, folder)
    row = gate.judged(subject, variant, fault)
    assert row["refused_by"] == refused


def test_a_reference_runs_once_for_a_batch() -> None:
    asked: list[Batch] = []

    class Counting:
        def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
            asked.append(batch)
            return np.full((len(batch), 2), len(asked), dtype=np.float32)

    cached = gate.Remembering(Counting())
    rows = np.array([[1, 2], [3, 4]])
    batches = [
        Batch((("a",),) * len(ids), {"input_ids": ids}) for ids in (rows, rows[:1], rows + 1, rows)
    ]
    assert [cached.logits(batch)[0, 0] for batch in batches] == [1, 2, 3, 1]


def row(variant: str, fault: str | None, *refused: str) -> Row:
    return {"teacher": "toy-0", "variant": variant, "fault": fault, "refused_by": refused}


def test_the_table_counts_refusals_and_names_the_checks() -> None:
    rows = [
        row("dynamic", None),
        row("static-mse", None, "p95_difference_low"),
        row("dynamic", "labels permuted", "decided_agreement_high"),
        row("dynamic", "mask ignored", "rest"),
        row("static-mse", "mask ignored", "rest"),
        row("dynamic", "GELU by tanh"),
    ]
    table = gate.table([recorded("gate", rows)])
    found = {first: others for first, *others in table.rows}
    assert found["sound, `dynamic`"] == ["1", "0", "-"]
    assert found["sound, `static-mse`"] == ["1", "1", "p95_difference_low (1)"]
    assert found["fault: labels permuted"] == ["1", "1", "decided_agreement_high (1)"]
    assert found["fault: wrong graph"] == ["3", "2", "graph besides products (2)"]
    assert "Of 2 sound candidates 50.0 % [9.5, 90.5] were refused" in table.note
    assert "of 4 planted faults 75.0 % [30.1, 95.4]" in table.note
