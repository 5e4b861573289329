"""The parity table: arrangements, bounds, every failure, dashes."""

from __future__ import annotations

import io

from rich.console import Console

from bertender.comparison.cells import DASH
from bertender.gate.judge import Parity, check_parity
from bertender.gate.table import markdown_parity, parity_lines, parity_table
from bertender.gate.tolerances import TOLERANCES
from bertender.text.batch import Batch
from tests.measure.fakes import EXAMPLES, fake_classifier, honest


def gate(factor: float) -> Parity:
    def answer(batch: Batch):
        return honest(batch) * factor

    reference, candidate = fake_classifier("reference"), fake_classifier("candidate", answer)
    return check_parity(reference, candidate, EXAMPLES, TOLERANCES["float32"])


def rendered(parity: Parity) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(parity_table(parity))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_passed_gate_shows_each_arrangement() -> None:
    parity = gate(1.0)
    for text in (rendered(parity), markdown_parity(parity)):
        assert "parity of candidate with reference: passed" in text
        for case in parity.cases:
            assert case.name in text
    assert "| batch of 4 | 120 | 0 | 1 |" in markdown_parity(parity)


def test_a_failed_gate_lists_every_failure_and_bound() -> None:
    parity = gate(-1.0)
    text = markdown_parity(parity)
    assert f"FAILED, {len(parity.failures)} failures" in text
    assert all(f"- failed: {failure}" in text for failure in parity.failures)
    assert "difference 8.2 at most (allowed 0.0041)" in text


def test_what_could_not_be_compared_is_a_dash() -> None:
    parity = gate(float("nan"))
    assert f"| batch of 1 | {DASH} | {DASH} | {DASH} |" in markdown_parity(parity)
    assert f"agreement {DASH} of all" in "\n".join(parity_lines(parity))
    assert DASH in rendered(parity)


def test_a_gate_that_could_not_begin_shows_no_bounds() -> None:
    parity = check_parity(fake_classifier(), fake_classifier(), (), TOLERANCES["float32"])
    text = markdown_parity(parity)
    assert f"largest reference logit {DASH}" in text and f"(allowed {DASH})" in text
