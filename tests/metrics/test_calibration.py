"""Calibration: temperatures, curves of labels, and measures of reliability, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertender.metrics.calibration import (
    Judged,
    fit_line,
    fit_points,
    fit_temperature,
    has_enough,
    on_curve,
    reliability_changes,
)


def right_ones(labels: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=bool)[labels]


def test_a_temperature_makes_confidence_the_share_that_is_right() -> None:
    """Three of four are right at a logit of 4: the softmax of 4 / T is 3/4 where T is 4 / ln 3."""
    logits = np.array([[4.0, 0.0]] * 8)
    found = fit_temperature(logits, right_ones([0, 0, 0, 1] * 2, 2))
    assert found == pytest.approx(4 / math.log(3), rel=1e-3)


def test_reliability_by_hand() -> None:
    """Confidences .9, .9, .6 and .6 with 2 and 1 right: gaps of .2 and .2 in sum, over 4 rows."""
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.6, 0.4]])
    truth = right_ones([0, 1, 0, 1], 2)
    found = Judged(probabilities, truth, np.arange(4), one_of_labels=True).reliability()
    assert found.n == 4
    assert found.ece == pytest.approx((0.2 + 0.2) / 4)
    assert found.brier == pytest.approx((0.02 + 0.02 + 0.32 + 0.72) / 4)
    assert found.nll == pytest.approx(-math.log(0.9 * 0.9 * 0.6 * 0.4) / 4)
    assert [(each.count, each.right) for each in found.bins] == [(2, 0.5), (2, 1.0)]
    # 0.6 and 0.9 are in the bins from 9/15 and from 13/15 on
    assert [round(each.low * 15) for each in found.bins] == [9, 13]


def test_each_label_of_a_set_is_a_prediction() -> None:
    judged = Judged(
        np.array([[0.8, 0.3]]), np.array([[True, False]]), np.zeros(1, int), one_of_labels=False
    )
    found = judged.reliability()
    assert (found.n, found.nll) == (2, pytest.approx(-math.log(0.8 * 0.7) / 2))
    assert found.brier == pytest.approx((0.04 + 0.09) / 2)
    assert found.ece == pytest.approx((0.2 + 0.3) / 2)


def test_certainty_is_in_the_last_bin() -> None:
    found = Judged(
        np.array([[1.0, 0.0]]), right_ones([0], 2), np.zeros(1, int), one_of_labels=True
    ).reliability()
    assert found.ece == 0 and found.bins[0].high == 1.0


def test_changes_are_paired_by_text_and_say_what_is_noise() -> None:
    generator = np.random.default_rng(0)
    truth = right_ones([int(each) for each in generator.random(600) < 0.3], 2)
    sure, honest = np.tile([0.99, 0.01], (600, 1)), np.tile([0.7, 0.3], (600, 1))
    texts = np.repeat(np.arange(300), 2)
    judged = [Judged(each, truth, texts, one_of_labels=True) for each in (sure, honest)]
    better = reliability_changes(*judged, 300)
    assert {each.words for each in better.values()} == {"better"}
    assert {each.words for each in reliability_changes(*judged[::-1], 300).values()} == {"worse"}
    same = reliability_changes(judged[0], judged[0], 300)
    assert {each.words for each in same.values()} == {"no change beyond noise"}
    plain = [each.reliability() for each in judged]
    for name, change in better.items():
        assert change.value == pytest.approx(getattr(plain[1], name) - getattr(plain[0], name))


def test_a_line_of_a_logit_that_separates_labels_has_an_end() -> None:
    """Platt's targets are 11/12 and 1/12 for ten texts each: the line meets them at both logits."""
    logits = np.repeat([2.0, -2.0], 10)
    slope, shift = fit_line(logits, logits > 0)
    assert slope * 2 + shift == pytest.approx(math.log(11), abs=1e-3)
    assert shift == pytest.approx(0, abs=1e-3)


def test_a_line_never_falls() -> None:
    """Of a logit that is larger without the label, the share of texts with it is all one knows."""
    logits = np.linspace(-1, 1, 40)
    slope, shift = fit_line(logits, logits < -0.5)
    assert slope == 0
    assert 1 / (1 + np.exp(-shift)) == pytest.approx(0.25, abs=0.02)


def test_an_isotonic_curve_rises_and_is_never_certain() -> None:
    logits = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0])
    points = fit_points(logits, np.array([False, False, True, False, True, True]))
    # the two in the middle are pooled; by Laplace's rule the ends are 1/8 from certain
    expected = [1 / 8, 1 / 8, 0.5, 0.5, 7 / 8, 7 / 8]
    np.testing.assert_allclose(on_curve(logits, points), expected)
    assert on_curve(np.array([-9.0, 9.0, 0.5]), points).tolist() == [0.125, 0.875, 0.6875]


def test_a_curve_needs_texts_on_both_sides() -> None:
    assert has_enough(np.arange(30) < 10)
    assert not has_enough(np.arange(30) < 9)
    assert not has_enough(np.arange(30) < 21)
