"""The plan: which candidates fit, the nearest where none does, and which are trained."""

from __future__ import annotations

import pytest

from bertender.compression.candidates import Candidate, Variant, all_candidates
from bertender.compression.config import CompressConfig
from bertender.compression.plan import (
    NEAR,
    TOO_MUCH,
    CostModels,
    Measured,
    check_feasible,
    decided,
    decided_near_limits,
    entrants,
    excess,
    fitted,
    predicted,
    probes_of,
    undecided,
)
from bertender.compression.report import Cost, Probe
from bertender.core.errors import ConfigError, GateError
from tests.compression.toy_costs import ENCODER, TEACHER, candidate, cost, probe, result

STARTS = (TEACHER, ENCODER)


def _models(config: CompressConfig) -> CostModels:
    models: CostModels = {}
    for start in STARTS:
        probes = [probe(each) for each in probes_of(all_candidates([start], config))]
        models[start.name, Variant(scheme="dynamic")] = fitted(probes)
    return models


def test_what_is_predicted_beyond_a_limit_does_not_fit() -> None:
    config = CompressConfig.parse({"max_mb": 10.0, "max_ms": 1.4})
    results = predicted(all_candidates(STARTS, config), _models(config), config)
    assert any(each.fits for each in results)
    for each in results:
        right = cost(each.candidate)
        assert each.fits == (right.model_mb <= 10 and right.single_ms <= 1.4)
        assert (each.left_out is None) == each.fits


SHARES_OF_THE_LIMIT = {0.5: False, 1 - NEAR / 2: True, 1 + NEAR / 2: True, 1 + 2 * NEAR: False}


@pytest.mark.parametrize("share", SHARES_OF_THE_LIMIT)
def test_what_is_predicted_near_a_limit_is_undecided(share: float) -> None:
    one = candidate(3)
    config = CompressConfig.parse({"max_ms": cost(one).single_ms / share})
    asked = undecided([result(one, fits=share <= 1)], config)
    assert asked == [one] * SHARES_OF_THE_LIMIT[share]
    assert undecided([result(one)], CompressConfig()) == []


def test_only_what_would_be_trained_is_probed() -> None:
    """Of a start and depth one enters, and if it surely holds the limits, nothing is in doubt."""
    whole, cut = candidate(3), candidate(3, heads=0.1)
    near = CompressConfig.parse({"max_ms": cost(whole).single_ms * 1.01})
    assert undecided([result(cut), result(whole)], near) == [whole]
    far = CompressConfig.parse({"max_ms": cost(whole).single_ms * 2})
    assert undecided([result(cut), result(whole)], far) == []
    both = [result(candidate(2)), result(whole)]
    assert undecided(both, near.model_copy(update={"candidates": 1})) == [whole]


@pytest.mark.parametrize(("share", "fits"), [(0.99, True), (1.01, False)])
def test_a_probe_decides_against_its_prediction(share: float, fits: bool) -> None:
    one, other = candidate(3), candidate(2)
    config = CompressConfig.parse({"max_ms": cost(one).single_ms})
    made = probe(one).model_copy(
        update={"cost": Cost(model_mb=1.0, single_ms=share * cost(one).single_ms)}
    )
    before = [result(one, fits=not fits), result(other)]
    after, untouched = decided(before, [made], config)
    assert untouched == before[1]
    assert (after.fits, after.left_out is None, after.cost) == (fits, fits, made.cost)
    assert (after in entrants([after, untouched], config)) == fits


def test_what_takes_the_place_of_another_is_probed_too() -> None:
    """All are predicted just beyond the limit; the last one's probe holds it, one has none."""
    shapes = [candidate(3, heads=share) for share in (0.0, 0.01, 0.02)]
    limit = cost(shapes[2]).single_ms / 1.005
    config = CompressConfig.parse({"max_ms": limit})
    results = [result(each, fits=False, left_out=TOO_MUCH) for each in shapes]
    asked: list[Candidate] = []

    def measure(one: Candidate) -> Measured:
        asked.append(one)
        if one == shapes[1]:
            raise GateError("its graph differs")
        own = Cost(model_mb=1.0, single_ms=limit * (0.99 if one == shapes[2] else 1.1))
        return Measured(probes=(Probe(candidate=one, entries=1, cost=own),), teacher=own, load=None)

    after, made = decided_near_limits(results, config, measure)
    assert asked == shapes and len(made) == 2
    assert [each.fits for each in after] == [False, False, True]
    assert after[1].left_out == "its graph differs"
    assert entrants(after, config) == [after[2]]


def test_without_limits_all_fit() -> None:
    config = CompressConfig()
    assert excess(cost(candidate()), config) == 0


def test_limits_that_nothing_holds_name_the_nearest_point() -> None:
    config = CompressConfig.parse({"max_mb": 3.0, "max_ms": 0.2})
    results = predicted(all_candidates(STARTS, config), _models(config), config)
    with pytest.raises(ConfigError) as caught:
        check_feasible(results, config)
    message = str(caught.value)
    assert "max_mb=3, max_ms=0.2" in message
    smallest = min(cost(each.candidate).model_mb for each in results)
    assert f"{smallest:.2f} MB" in message


def test_what_the_error_names_is_feasible() -> None:
    asked = {"max_mb": 3.0, "max_ms": 0.2}
    config = CompressConfig.parse(asked)
    results = predicted(all_candidates(STARTS, config), _models(config), config)
    with pytest.raises(ConfigError) as caught:
        check_feasible(results, config)
    words = str(caught.value).split()
    named = {name: float(words[words.index(name) + 1]) for name in asked}
    wider = CompressConfig.parse(named)
    check_feasible(predicted(all_candidates(STARTS, wider), _models(wider), wider), wider)


def test_the_least_cut_of_each_start_and_depth_enters() -> None:
    results = [
        result(candidate(6, heads=0.5, ffn=0.5)),
        result(candidate(6, heads=0.5)),
        result(candidate(3)),
        result(candidate(3, vocab=True)),
        result(candidate(3, ENCODER)),
        result(candidate(6), fits=False),
    ]
    chosen = [each.candidate for each in entrants(results, CompressConfig())]
    assert set(chosen) == {candidate(6, heads=0.5), candidate(3), candidate(3, ENCODER)}


@pytest.mark.parametrize("schemes", [("dynamic", "static"), ("static", "dynamic")])
def test_of_schemes_that_fit_the_first_that_is_listed_enters(schemes: tuple[str, str]) -> None:
    """Their times may differ by noise alone; 4 bits of a table are as fast, and lose more."""
    fast = cost(candidate()).model_copy(update={"single_ms": 0.01})
    results = [
        result(candidate(scheme="static"), predicted=fast),
        result(candidate()),
        result(candidate(3), fits=False),
        result(candidate(3, scheme="static")),
    ]
    chosen = entrants(results, CompressConfig.parse({"schemes": schemes}))
    assert [each.candidate for each in chosen] == [
        candidate(scheme=schemes[0]),
        candidate(3, scheme="static"),
    ]


def test_attention_as_one_operator_and_other_runtimes_enter_where_they_let_less_be_cut() -> None:
    settings = {"schemes": "static,dynamic", "runtimes": "onnxruntime,openvino"}
    config = CompressConfig.parse({**settings, "fused_attention": True})
    fused, elsewhere = {"fused_attention": True}, {"scheme": "static", "runtime": "openvino"}
    results = [
        result(candidate(6, **fused)),
        result(candidate(6, heads=0.5)),
        result(candidate(4, **elsewhere)),
        result(candidate(4, heads=0.5)),
        result(candidate(3, **fused)),
        result(candidate(3, **elsewhere)),
        result(candidate(3)),
    ]
    chosen = [each.candidate for each in entrants(results, config)]
    assert chosen == [candidate(6, **fused), candidate(4, **elsewhere), candidate(3)]


def test_no_more_enter_than_are_asked_for_and_starts_have_turns() -> None:
    results = [result(candidate(layers)) for layers in (6, 5, 4)]
    results.append(result(candidate(3, ENCODER)))
    chosen = entrants(results, CompressConfig(candidates=2))
    assert {each.candidate.start for each in chosen} == {TEACHER, ENCODER}
