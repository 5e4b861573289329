"""The table of a compression: what will be trained is shown, and the front has what is worth it."""

from __future__ import annotations

import pytest

from bertender.compression.candidates import all_candidates
from bertender.compression.config import CompressConfig
from bertender.compression.plan import entrants, excess
from bertender.compression.report import CompressionReport
from tests.compression.toy_costs import ENCODER, TEACHER, candidate, cost, plan, result, shown


def _on_front(report: CompressionReport) -> dict[str, bool]:
    return {name.split(" (")[0]: front == "yes" for name, front in shown(report).items()}


@pytest.mark.parametrize("limits", [{}, {"max_mb": 14.0, "max_ms": 2.0}, {"max_ms": 1.5}])
def test_all_that_would_be_trained_is_in_the_table(limits: dict[str, float]) -> None:
    """Without limits all of it is on the front; with them, one of another depth may beat it."""
    config = CompressConfig.parse({**limits, "schemes": "dynamic,static", "candidates": 20})
    fits = [
        result(each, fits=excess(cost(each), config) <= 1)
        for each in all_candidates([TEACHER, ENCODER], config)
    ]
    entering = {each.candidate for each in entrants(fits, config)}
    results = [each.model_copy(update={"enters": each.candidate in entering}) for each in fits]
    report = plan(results, config)
    on_front, names = _on_front(report), {each.name for each in entering}
    assert names and names <= on_front.keys()
    assert all(f"{name} (to train)" in shown(report) for name in names)
    assert limits or all(on_front[name] for name in names)


def test_what_is_beaten_in_everything_is_not_on_the_front() -> None:
    slow = cost(candidate(2)).model_copy(update={"single_ms": 9.0, "model_mb": 99.0})
    config = CompressConfig.parse({"schemes": "dynamic,static"})
    results = [result(candidate(2)), result(candidate(2, scheme="static"), predicted=slow)]
    assert _on_front(plan(results, config))["teacher-2-static"] is False


def test_what_was_refused_is_not_on_the_front_and_beats_nothing() -> None:
    refused, real = result(candidate(2), refused=True), result(candidate(2, scheme="static"))
    report = plan([refused, real], CompressConfig.parse({"schemes": "dynamic,static"}))
    assert _on_front(report) == {"teacher-2-dynamic": False, "teacher-2-static": True}
