"""Heads against neurons: what fits into a time, and is worth most of what does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertender.core.findings import LatencyLoad
from bertender.models.own_models import PRUNABLE, heads_of
from distill.pruning import latency
from distill.pruning.cutting import Remaining, cut
from distill.pruning.importance import Importance
from distill.pruning.latency import HERE, LatencyTable, Point, fastest_ms, fitting
from tests.distill.pruning.toys import everything, made_up_table
from tests.toy_models import tiny_classifier

HEADS, NEURONS = 3, 4
"""Of each layer of the made-up importances: few enough to try all choices."""

worth = st.floats(0, 1, width=32)
layers = st.lists(
    st.tuples(
        st.lists(worth, min_size=HEADS, max_size=HEADS),
        st.lists(worth, min_size=NEURONS, max_size=NEURONS),
    ),
    min_size=1,
    max_size=2,
)
times_ms = st.floats(0.01, 2.0)
curves = st.tuples(
    st.lists(times_ms, min_size=HEADS, max_size=HEADS),
    st.lists(times_ms, min_size=NEURONS, max_size=NEURONS),
)


def importance(given_layers: list[tuple[list[float], list[float]]]) -> Importance:
    heads, neurons = zip(*given_layers, strict=True)
    return Importance(tuple(map(torch.tensor, heads)), tuple(map(torch.tensor, neurons)))


def table(given_curves: tuple[list[float], list[float]]) -> LatencyTable:
    attention, feed_forward = (
        tuple(Point(count=n + 1, rounds_ms=(time_ms,)) for n, time_ms in enumerate(curve))
        for curve in given_curves
    )
    return made_up_table(attention=attention, feed_forward=feed_forward)


def predicted_ms(kept: Remaining, times: LatencyTable) -> float:
    return times.predicted_ms([len(each) for each in kept.heads], [*map(len, kept.neurons)])


def lost(kept: Remaining, worths: Importance) -> float:
    whole = sum(float(layer.double().sum()) for layer in (*worths.heads, *worths.neurons))
    parts = zip((*worths.heads, *worths.neurons), (*kept.heads, *kept.neurons), strict=True)
    return whole - sum(float(layer.double()[list(numbers)].sum()) for layer, numbers in parts)


def least_lost(worths: Importance, times: LatencyTable, limit_ms: float) -> float:
    """What the best of all choices loses."""
    depth = len(worths.heads)
    ordered = [layer.double().sort(descending=True)[0] for layer in worths.heads + worths.neurons]
    counts = [range(1, len(layer) + 1) for layer in ordered]
    return min(
        sum(float(layer[n:].sum()) for layer, n in zip(ordered, chosen, strict=True))
        for chosen in itertools.product(*counts)
        if times.predicted_ms(chosen[:depth], chosen[depth:]) <= limit_ms
    )


@given(layers, curves, st.floats(0, 1))
def test_it_fits_and_loses_little_more_than_the_best_of_all(
    given_layers: list[tuple[list[float], list[float]]],
    given_curves: tuple[list[float], list[float]],
    share: float,
) -> None:
    """By no more than one part's importance: a price cannot tell apart what lies between."""
    worths, times = importance(given_layers), table(given_curves)
    depth = len(given_layers)
    fastest = fastest_ms(times, depth)
    whole = times.predicted_ms([HEADS] * depth, [NEURONS] * depth)
    limit_ms = fastest + share * (whole - fastest) + 1e-9
    kept = fitting(worths, times, limit_ms, step=1)
    assert predicted_ms(kept, times) <= limit_ms + 1e-9
    assert all((*kept.heads, *kept.neurons))
    for layer, numbers in zip(
        (*worths.heads, *worths.neurons), (*kept.heads, *kept.neurons), strict=True
    ):
        gone = sorted(set(range(len(layer))) - set(numbers))
        assert not gone or layer[gone].max() <= layer[list(numbers)].min()
    largest = max(float(layer.double().sum()) for layer in (*worths.heads, *worths.neurons))
    assert lost(kept, worths) <= least_lost(worths, times, limit_ms) + largest + 1e-9


@given(layers, curves)
def test_with_time_enough_nothing_of_worth_goes(
    given_layers: list[tuple[list[float], list[float]]],
    given_curves: tuple[list[float], list[float]],
) -> None:
    worths, times = importance(given_layers), table(given_curves)
    depth = len(given_layers)
    whole = times.predicted_ms([HEADS] * depth, [NEURONS] * depth)
    assert lost(fitting(worths, times, whole + 1e-9, step=1), worths) == pytest.approx(0, abs=1e-9)


def test_where_heads_are_dear_they_go_and_where_they_are_cheap_they_stay() -> None:
    worths = importance([([0.4, 0.2, 0.3], [0.1] * NEURONS)])
    dear = table(([1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4]))
    kept = fitting(worths, dear, 1.0 + 2.45, step=1)
    assert (kept.heads, kept.neurons) == (((0, 2),), ((0, 1, 2, 3),))
    cheap = table(([0.1, 0.2, 0.3], [1.0, 2.0, 3.0, 4.0]))
    kept = fitting(worths, cheap, 1.0 + 2.35, step=1)
    assert (kept.heads, kept.neurons) == (((0, 1, 2),), ((0, 1),))


@pytest.mark.parametrize("dearest", [0, 1])
def test_time_that_is_left_goes_to_what_is_worth_most(dearest: int) -> None:
    """Two parts of two heads each, and time for one more."""
    parts = [
        latency._Part(np.array([1, 2]), np.array([worth_of_one, 0.0]), np.array([1.0, 2.0]))
        for worth_of_one in ((0.9, 0.1) if dearest == 0 else (0.1, 0.9))
    ]
    filled = latency._fill_spare_time(parts, [0, 0], limit_ms=3.0)
    assert filled == [int(number == dearest) for number in range(2)]


@pytest.mark.parametrize("limit_ms", [1.5, 4.0, 6.5, 9.0, 20.0])
def test_neurons_stay_in_steps_that_are_fast(limit_ms: float) -> None:
    torch.manual_seed(0)
    worths = Importance((torch.rand(4), torch.rand(4)), (torch.rand(64), torch.rand(40)))
    kept = fitting(worths, made_up_table(), limit_ms)
    assert set(map(len, kept.neurons)) <= {1, 16, 32, 48, 64, 40}
    assert len(kept.neurons[1]) in (1, 16, 32, 40)


def test_times_between_points_lie_on_lines_and_never_fall() -> None:
    points = [(8, 2.0), (1, 1.0), (4, 3.0)]
    found = made_up_table(
        attention=tuple(Point(count=n, rounds_ms=(9.0, ms, 0.0)) for n, ms in points)
    )
    assert found.attention_ms([1, 2, 3, 4, 6, 8]) == pytest.approx([1, 5 / 3, 7 / 3, 3, 3, 3])
    assert LatencyTable.model_validate_json(found.model_dump_json()) == found


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", PRUNABLE)
def test_a_table_has_times_of_all_parts(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clock says is another matter, and no test's."""
    monkeypatch.setattr(latency, "ROUNDS", 2)
    whole = tiny_classifier(model_type)
    uneven = cut(whole, Remaining(((0, 1), *[(0,)] * 3), everything(whole.config).neurons))
    load = LatencyLoad(texts=2, tokens=7, threads=1)
    for model, heads in ((whole, [1, 2, 3, 4]), (uneven, [1, 2])):
        found = HERE.table(model, load)
        assert [point.count for point in found.attention] == heads
        assert [point.count for point in found.feed_forward] == [1, 16, 32, 48, 64]
        assert found.machine_load is not None, "how busy the machine was"
        assert found.load == load and all(time_ms > 0 for time_ms in found.rest_ms)
        assert 0 < found.predicted_ms([1] * 4, [1] * 4) < 1000
    speed = HERE.speedup(whole, uneven, load)
    assert 0 < speed.low <= speed.value <= speed.high
    assert heads_of(whole.config) == [4] * 4, "what is timed is a copy"
