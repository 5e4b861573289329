"""The parity table: arrangements, bounds, every failure, dashes."""

from __future__ import annotations

import io

from rich.console import Console

from bertender.cli.findings import parity_lines, parity_table
from bertender.comparison.table import DASH
from bertender.gate.judge import TOLERANCES, Parity, check_parity
from bertender.text.batch import Batch
from tests.fake_classifier import EXAMPLES, fake_classifier, honest


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
    text = rendered(parity)
    assert "parity of candidate with reference: passed" in text
    for case in parity.cases:
        assert case.name in text
    assert ["batch", "of", "4", "120", "0", "1"] in map(str.split, text.splitlines())


def test_a_failed_gate_lists_every_failure_and_bound() -> None:
    parity = gate(-1.0)
    text = "\n".join(parity_lines(parity))
    assert f"FAILED, {len(parity.failures)} failures" in text
    assert all(f"failed: {failure}" in text for failure in parity.failures)
    assert "difference 8.2 at most (allowed 0.0041)" in text
    single = parity.model_copy(update={"failures": parity.failures[:1]})
    assert parity_lines(single)[0].endswith(": FAILED, 1 failure")


def test_what_could_not_be_compared_is_a_dash() -> None:
    parity = gate(float("nan"))
    rows = map(str.split, rendered(parity).splitlines())
    assert ["batch", "of", "1", DASH, DASH, DASH] in rows
    assert f"agreement {DASH} of all" in "\n".join(parity_lines(parity))
    assert DASH in rendered(parity)


def test_a_gate_that_could_not_begin_shows_no_bounds() -> None:
    parity = check_parity(fake_classifier(), fake_classifier(), (), TOLERANCES["float32"])
    text = "\n".join(parity_lines(parity))
    assert f"largest reference logit {DASH}" in text and f"(allowed {DASH})" in text
