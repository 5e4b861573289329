"""How much of a training a processor time holds: probes on less of it, and a line through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import Field

from bertender.core.config import Record
from bertender.core.files import save_result

__all__ = ["Amount", "Probe", "amount_for", "amount_in"]

FACTOR = 4
"""Each probe has so many times as much as the one before."""
LEAST_SHARE = 0.2
"""Of the budget, by which the last probe must take longer than the first: with a difference of a
tenth of it, a training took 1.4 times its budget."""


class Probe(Record):
    """A training that was timed."""

    amount: int
    processor_s: float


class Amount(Record):
    """How much a training has, and why."""

    amount: int = Field(description="texts, passages or epochs")
    budget_s: float
    identity: str = Field("", description="of what is trained")
    probes: tuple[Probe, ...]


def amount_in(
    budget_s: float,
    place: Path,
    identity: str,
    trained: Callable[[int], Probe],
    first: int,
    most: int,
) -> Amount:
    """Return how much of a training a processor time holds, measured now or before.

    Args:
        budget_s: the processor time.
        place: file that has the result.
        identity: of what is trained; another one is measured anew.
        trained: trains on about so much, and returns on how much it was and its processor time.
        first: amount of the first probe.
        most: the largest amount.
    """
    if place.exists():
        known = Amount.model_validate_json(place.read_text(encoding="utf-8"))
        same = (known.budget_s, known.identity) == (budget_s, identity)
        if same and _are_enough(known.probes, budget_s, most):
            return known
    probes = tuple(_probes(budget_s, trained, min(first, most), most))
    amount = amount_for(probes, budget_s, most)
    chosen = Amount(amount=amount, budget_s=budget_s, identity=identity, probes=probes)
    save_result(chosen, place)
    return chosen


def _probes(
    budget_s: float, trained: Callable[[int], Probe], first: int, most: int
) -> Iterator[Probe]:
    """Train on larger amounts, until the difference can be measured or the largest is reached."""
    start = probe = trained(first)
    yield probe
    while not _are_enough((start, probe), budget_s, most):
        probe = trained(min(FACTOR * probe.amount, most))
        yield probe


def _are_enough(probes: Sequence[Probe], budget_s: float, most: int) -> bool:
    """Return whether times of probes can be extrapolated, or one has the largest amount."""
    first, last = probes[0], probes[-1]
    return last.processor_s - first.processor_s >= LEAST_SHARE * budget_s or last.amount >= most


def amount_for(probes: tuple[Probe, ...], budget_s: float, most: int) -> int:
    """Return the amount that takes the budget, on the line through the first and last probe."""
    first, last = probes[0], probes[-1]
    if last.amount == first.amount or last.processor_s <= first.processor_s:
        return last.amount
    slope = (last.processor_s - first.processor_s) / (last.amount - first.amount)
    return min(max(round(first.amount + (budget_s - first.processor_s) / slope), 1), most)
