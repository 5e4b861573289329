"""Successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943) over candidates.

All start on a small part of the texts; the better half of each round goes on, on twice as many,
until one is left, which learns from all. The first part is so small that all the choosing takes as
long as that last training, so that half of the time goes to the model that will serve. Where the
texts are few, a part has FEWEST_TEXTS, rounds of nearly equal parts are one, and choosing takes
longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bertender.compression.records import CandidateResult, Round

__all__ = ["Budget", "Train", "halved", "parts_of_texts"]

FEWEST_TEXTS = 500
"""Below it a part says little about a candidate."""
LEAST_GROWTH = 1.5
"""Of the texts from round to round: on hardly more texts, a training says the same again."""
PART_OF_ONE = 0.1
"""Where one candidate alone shows what all texts would take."""

Train = Callable[[CandidateResult, float, int], Round]
"""(candidate, share of the texts, number of the round) -> its training"""


@dataclass
class Budget:
    """Minutes of training that may be spent: half of them to choose, the rest on the chosen one."""

    minutes: float | None
    spent: float = 0.0
    for_all_texts: list[float] = field(default_factory=list)
    """Minutes that each training so far would have taken on all texts."""

    def allows_choosing(self, result: CandidateResult, share: float) -> bool:
        """Return whether a training on a share of the texts fits in the half for choosing."""
        expected = self._expected(result)
        if self.minutes is None or expected is None:
            return True
        return self.spent + share * expected <= self.minutes / 2

    def affordable_share(self, result: CandidateResult) -> float:
        """Return the share of the texts that what is left allows to learn from, 1 at most."""
        expected = self._expected(result)
        if self.minutes is None or expected is None:
            return 1.0
        return min(max(self.minutes - self.spent, 0.0) / max(expected, 1e-9), 1.0)

    def spend(self, done: Round) -> None:
        """Note a training; one of no step takes no time, and tells nothing of others."""
        self.spent += done.minutes
        if done.minutes:
            self.for_all_texts.append(done.minutes / done.share)

    def _expected(self, result: CandidateResult) -> float | None:
        """Return the minutes on all texts: by the candidate's own training, else by the others'."""
        if result.rounds:
            return result.rounds[-1].minutes / result.rounds[-1].share
        known = self.for_all_texts
        return sum(known) / len(known) if known else None


def parts_of_texts(candidates: int, texts: int, *, budgeted: bool = False) -> list[float]:
    """Return the share of the texts that each round learns from, 1 in the last.

    Args:
        candidates: that enter.
        texts: labelled ones.
        budgeted: one candidate has a small round too, which shows what all texts would take.
    """
    rounds = range(max(math.ceil(math.log2(candidates)), int(budgeted)))
    trainings = sum(2**number * math.ceil(candidates / 2**number) for number in rounds)
    first = 1 / trainings if candidates > 1 else PART_OF_ONE
    fewest = min(FEWEST_TEXTS / max(texts, 1), 1.0)
    shares: list[float] = []
    for share in (max(2**number * first, fewest) for number in rounds):
        if not shares or share >= LEAST_GROWTH * shares[-1]:
            shares.append(share)
    return [*dict.fromkeys((*shares, 1.0))]


def halved(
    entrants: Sequence[CandidateResult], texts: int, train: Train, budget: Budget
) -> list[CandidateResult]:
    """Train candidates by rounds; return all, with their rounds, the best of the last first.

    Where half of the budget is spent, no candidate is trained to choose by any more; the best so
    far then learns from as many texts as the rest of the budget allows.

    Args:
        entrants: one at least.
        texts: labelled ones to learn from.
        train: trains a candidate, and returns its score on the texts to choose by.
        budget: what may be spent.
    """
    staying = list(entrants)
    beaten: list[CandidateResult] = []
    shares = parts_of_texts(len(entrants), texts, budgeted=budget.minutes is not None)
    choosing = shares[:-1] or (shares if len(entrants) > 1 else [])
    for number, share in enumerate(choosing):
        trained = [_if_affordable(each, share, number, train, budget) for each in staying]
        ranked = sorted(trained, key=_rank, reverse=True)
        staying = ranked[: math.ceil(len(ranked) / 2)]
        beaten[:0] = [_beaten(each, number) for each in ranked[len(staying) :]]
    leader, *others = staying
    beaten[:0] = [_beaten(each, len(choosing) - 1) for each in others]
    return [_trained_last(leader, len(choosing), train, budget), *beaten]


def _if_affordable(
    result: CandidateResult, share: float, number: int, train: Train, budget: Budget
) -> CandidateResult:
    if result.left_out:
        return result
    if not budget.allows_choosing(result, share):
        return result.model_copy(update={"left_out": "half of the budget was spent before it"})
    return _trained(result, share, number, train, budget)


def _trained_last(
    leader: CandidateResult, number: int, train: Train, budget: Budget
) -> CandidateResult:
    """Train the best on as many texts as the budget allows, if these are more than it has seen."""
    share = budget.affordable_share(leader)
    whole = leader.model_copy(update={"left_out": None})
    if leader.rounds and share <= leader.rounds[-1].share:
        return whole
    return _trained(whole, share, number, train, budget)


def _trained(
    result: CandidateResult, share: float, number: int, train: Train, budget: Budget
) -> CandidateResult:
    done = train(result, share, number)
    budget.spend(done)
    return result.model_copy(update={"rounds": (*result.rounds, done)})


def _rank(result: CandidateResult) -> tuple[int, bool, float]:
    last = result.rounds[-1] if result.rounds else None
    return (last.number, last.constant is None, last.score) if last else (-1, False, 0.0)


def _beaten(result: CandidateResult, number: int) -> CandidateResult:
    if result.left_out:
        return result
    reason = f"better ones of round {number + 1} went on without it"
    return result.model_copy(update={"left_out": reason})
