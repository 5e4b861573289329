"""How much of a training a processor time holds, by probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.budget import Amount, Probe, amount_for, amount_in
from bertender.core.saving import save_result


@pytest.mark.parametrize(
    ("probes", "amount"),
    [
        (((200, 10.0), (800, 40.0)), 2000),  # 0.05 s a text: 100 s hold 2000
        (((200, 30.0), (800, 40.0)), 4400),  # 26.7 s before the first text
        (((1, 300.0), (4, 900.0)), 1),  # never none
        (((200, 1.0), (800, 1.01)), 9000),  # no more than there are
        (((200, 1.0), (800, 0.9)), 800),
        (((200, 1.0),), 200),
    ],
)
def test_the_amount_fills_the_budget(probes: tuple[tuple[int, float], ...], amount: int) -> None:
    made = tuple(Probe(amount=each, processor_s=seconds) for each, seconds in probes)
    assert amount_for(made, 100.0, 9000) == amount


def test_probes_grow_until_they_can_be_told_apart(tmp_path: Path) -> None:
    asked: list[int] = []

    def trained(amount: int) -> Probe:
        asked.append(amount)
        return Probe(amount=amount, processor_s=2.0 + amount / 1000)

    place = tmp_path / "amount.json"
    found = amount_in(100.0, place, "a", trained, 200, 300_000)
    assert asked == [200, 800, 3200, 12800, 51200]  # the last takes 51 s longer than the first
    assert found.amount == 98_000
    assert amount_in(100.0, place, "a", trained, 200, 300_000) == found
    assert len(asked) == 5  # nothing was timed again
    assert amount_in(50.0, place, "a", trained, 200, 300_000).amount == 48_000


def test_probes_that_differ_too_little_are_made_anew(tmp_path: Path) -> None:
    """As those of a file that an earlier version wrote."""
    place = tmp_path / "amount.json"

    def trained(amount: int) -> Probe:
        return Probe(amount=amount, processor_s=2.0 + amount / 100)

    few = (trained(200), trained(1000))  # 8 s apart, of 100
    save_result(Amount(amount=9000, budget_s=100.0, identity="a", probes=few), place)
    found = amount_in(100.0, place, "a", trained, 200, 300_000)
    assert [each.amount for each in found.probes] == [200, 800, 3200]


def test_probes_end_where_there_is_no_more(tmp_path: Path) -> None:
    def trained(amount: int) -> Probe:
        return Probe(amount=amount, processor_s=1.0)

    found = amount_in(100.0, tmp_path / "amount.json", "a", trained, 200, 900)
    assert [each.amount for each in found.probes] == [200, 800, 900]
    assert found.amount == 900
    assert amount_in(100.0, tmp_path / "few.json", "a", trained, 200, 90).amount == 90


def test_another_identity_is_measured_anew(tmp_path: Path) -> None:
    place = tmp_path / "amount.json"
    for identity, second in (("a", 1.0), ("b", 2.0)):

        def trained(amount: int, second: float = second) -> Probe:
            return Probe(amount=amount, processor_s=second * amount)

        found = amount_in(100.0, place, identity, trained, 10, 900)
        assert found.amount == round(100 / second)


def test_a_probe_says_on_how_much_it_was(tmp_path: Path) -> None:
    """Whole epochs of 40 texts: the line goes through what was trained, not what was asked for."""

    def trained(amount: int) -> Probe:
        seen = max(round(amount / 40), 1) * 40
        return Probe(amount=seen, processor_s=seen / 10)

    found = amount_in(100.0, tmp_path / "amount.json", "a", trained, 10, 9000)
    assert [each.amount for each in found.probes] == [40, 160, 640] and found.amount == 1000
