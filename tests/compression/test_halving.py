"""Successive halving: the better half goes on, and the budget holds."""

from __future__ import annotations

import pytest

from bertender.compression.report import CandidateResult, Round
from bertender.compression.training import Budget, halved, parts_of_texts
from tests.compression.toy_costs import candidate, result, trained

ENTRANTS = [result(candidate(layers)) for layers in (1, 2, 3, 4, 5, 6)]
TEXTS = 16_000


class _Trainer:
    """Scores a candidate by its depth; ten minutes for all texts."""

    def __init__(self) -> None:
        self.trainings: list[tuple[int, float]] = []

    def __call__(self, entrant: CandidateResult, share: float, number: int) -> Round:
        layers = entrant.candidate.layers
        self.trainings.append((layers, share))
        return trained(number, layers / 10, share, minutes=10 * share)


def test_the_better_half_goes_on_to_twice_as_many_texts() -> None:
    trainer = _Trainer()
    ranked = halved(ENTRANTS, TEXTS, trainer, Budget(None))
    assert [each.candidate.layers for each in ranked] == [6, 5, 4, 3, 2, 1]
    by_share = {
        share: sum(1 for _, other in trainer.trainings if other == share)
        for _, share in trainer.trainings
    }
    assert by_share == {0.05: 6, 0.1: 3, 0.2: 2, 1.0: 1}
    choosing = [share for _, share in trainer.trainings][:-1]
    assert sum(choosing) == pytest.approx(1.0), "as long as the last training"


def test_one_label_everywhere_is_worse_than_any_score() -> None:
    """Of skewed texts, it may be the highest."""
    trainer = _Trainer()

    def train(entrant: CandidateResult, share: float, number: int) -> Round:
        done = trainer(entrant, share, number)
        stuck = entrant.candidate.layers > 4
        return done.model_copy(update={"constant": "no" if stuck else None})

    ranked = halved(ENTRANTS, TEXTS, train, Budget(None))
    assert [each.candidate.layers for each in ranked] == [4, 3, 2, 1, 6, 5]


def test_those_left_behind_say_why() -> None:
    ranked = halved(ENTRANTS, TEXTS, _Trainer(), Budget(None))
    assert ranked[0].left_out is None
    assert all(each.left_out for each in ranked[1:])


def test_one_candidate_learns_from_all_texts_at_once() -> None:
    trainer = _Trainer()
    halved(ENTRANTS[:1], TEXTS, trainer, Budget(None))
    assert trainer.trainings == [(1, 1.0)]


def test_choosing_among_few_texts_takes_longer_than_the_last_training() -> None:
    trainer = _Trainer()
    halved(ENTRANTS, 1000, trainer, Budget(None))
    assert [share for _, share in trainer.trainings] == [0.5] * 6 + [1.0]


def test_few_texts_are_not_divided_to_nothing() -> None:
    assert parts_of_texts(8, 600) == [500 / 600, 1.0]
    assert parts_of_texts(8, 100) == [1.0]
    assert parts_of_texts(3, 2000) == [0.25, 1.0], "the next would be 0.29 of them"
    assert parts_of_texts(8, 4000) == pytest.approx([0.125, 1.0]), "and 0.167 here"
    assert parts_of_texts(1, 16_000) == [1.0]
    assert parts_of_texts(1, 16_000, budgeted=True) == [0.1, 1.0]


@pytest.mark.parametrize("texts", [100, 600])
def test_few_texts_are_learned_from_once(texts: int) -> None:
    trainer = _Trainer()
    ranked = halved(ENTRANTS, texts, trainer, Budget(None))
    assert len(trainer.trainings) == len(set(trainer.trainings))
    assert ranked[0].candidate.layers == 6
    assert ranked[0].rounds[-1].share == 1.0
    assert all(each.rounds for each in ranked)


@pytest.mark.parametrize("minutes", [2.0, 20.0, 40.0])
def test_a_budget_goes_by_what_the_candidate_itself_takes(minutes: float) -> None:
    """The deepest takes many times as long as the others, and leads."""

    def train(entrant: CandidateResult, share: float, number: int) -> Round:
        layers = entrant.candidate.layers
        return trained(number, layers / 10, share, minutes=share * 10**layers / 20_000)

    budget = Budget(minutes)
    halved(ENTRANTS, TEXTS, train, budget)
    assert budget.spent <= max(minutes, 0.125 * 50 + minutes / 2) + 1e-6


def test_one_candidate_keeps_to_its_budget() -> None:
    budget = Budget(8.0)
    (only,) = halved(ENTRANTS[:1], TEXTS, _Trainer(), budget)
    assert only.rounds and budget.spent <= 8.0
    assert only.left_out is None


@pytest.mark.parametrize("minutes", [1.0, 4.0, 8.0, 15.0, 20.0])
def test_a_budget_is_held(minutes: float) -> None:
    budget = Budget(minutes)
    ranked = halved(ENTRANTS, TEXTS, _Trainer(), budget)
    # what a training takes is known when the first is done
    assert budget.spent <= max(minutes, 10 * 0.125) + 1e-9
    assert len(ranked) == len(ENTRANTS)
    assert ranked[0].rounds
    assert ranked[0].left_out is None
    assert all(each.left_out for each in ranked[1:])


def test_a_larger_budget_trains_more() -> None:
    spent = []
    for minutes in (4.0, 15.0, 60.0):
        budget = Budget(minutes)
        halved(ENTRANTS, TEXTS, _Trainer(), budget)
        spent.append(budget.spent)
    assert spent == sorted(spent)
    assert spent[-1] > spent[0]
