"""Scales and zero points: 0 is exact, errors are half a step, ends saturate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnxruntime.quantization.quant_utils import compute_scale_zp

from quantize.integers import INTEGERS, affine

NUMBERS = st.floats(-1e4, 1e4, width=32)
every_row = pytest.mark.parametrize("name", INTEGERS)


def wide(low: float, high: float) -> bool:
    return max(high, 0) - min(low, 0) > 1e-3


@every_row
@given(low=NUMBERS, high=NUMBERS, share=st.floats(0, 1))
def test_a_round_trip_inside_the_range_errs_by_half_a_step(
    name: str, low: float, high: float, share: float
) -> None:
    low, high = sorted((low, high))
    assume(wide(low, high))
    scale = affine(low, high, INTEGERS[name])
    value = np.array(low + share * (high - low))
    # the zero point is rounded, which moves the range's ends by half a step more
    assert abs(scale.rounded(value) - value) <= scale.scale * (1.001)
    inside = np.clip(value, scale.real(np.array(INTEGERS[name].lowest)), None)
    inside = np.clip(inside, None, scale.real(np.array(INTEGERS[name].highest)))
    assert abs(scale.rounded(inside) - inside) <= scale.scale * 0.5001


@every_row
@given(low=NUMBERS, high=NUMBERS)
def test_zero_is_exact(name: str, low: float, high: float) -> None:
    low, high = sorted((low, high))
    scale = affine(low, high, INTEGERS[name])
    assert scale.rounded(np.zeros(1)) == 0
    assert INTEGERS[name].lowest <= scale.zero_point <= INTEGERS[name].highest
    assert scale.scale > 0


@every_row
@given(low=NUMBERS, high=NUMBERS, beyond=st.floats(1, 1e6))
def test_what_is_beyond_the_range_saturates(
    name: str, low: float, high: float, beyond: float
) -> None:
    low, high = sorted((low, high))
    assume(wide(low, high))
    integers = INTEGERS[name]
    scale = affine(low, high, integers)
    span = scale.scale * 300
    ends = scale.quantized(np.array([min(low, 0) - span - beyond, max(high, 0) + span + beyond]))
    assert ends.tolist() == [integers.lowest, integers.highest]


@pytest.mark.parametrize(
    ("name", "lowest", "highest", "symmetric"),
    [("uint8", 0, 255, False), ("int8-symmetric", -127, 127, True)],
)
@given(low=NUMBERS, high=NUMBERS)
def test_onnx_runtime_computes_the_same(
    name: str, lowest: int, highest: int, symmetric: bool, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    assume(wide(low, high))
    kind = np.uint8 if lowest == 0 else np.int8
    zero_point, scale = compute_scale_zp(
        np.float64(low), np.float64(high), kind(lowest), kind(highest), symmetric
    )
    ours = affine(low, high, INTEGERS[name])
    assert ours.scale == pytest.approx(float(scale), rel=1e-6)
    assert abs(ours.zero_point - int(zero_point)) <= 1  # halves may round either way
    assert INTEGERS[name].lowest == lowest and INTEGERS[name].highest == highest


@given(low=NUMBERS, high=NUMBERS)
def test_symmetric_integers_have_no_zero_point(low: float, high: float) -> None:
    low, high = sorted((low, high))
    scale = affine(low, high, INTEGERS["int8-symmetric"])
    assert scale.zero_point == 0
    assert np.array_equal(scale.rounded(np.array([high])), -scale.rounded(np.array([-high])))


def test_seven_bits_cannot_saturate_a_pair_of_products() -> None:
    largest = max(-INTEGERS["int7-symmetric"].lowest, INTEGERS["int7-symmetric"].highest)
    assert 2 * INTEGERS["uint8"].highest * largest < 2**15
    assert 2 * INTEGERS["uint8"].highest * INTEGERS["int8-symmetric"].highest > 2**15


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (float("nan"), 1.0)])
def test_no_range_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a range from"):
        affine(*bounds, INTEGERS["uint8"])
