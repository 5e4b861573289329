"""Texts survive the wire; what is no text is refused by name and row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertender.core.errors import DataError
from bertender.text.batch import Example, is_blank
from serve.wire import Wishes, from_arrays, to_arrays

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
).filter(lambda text: not is_blank(text))


@given(examples=st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_pairs_come_back_as_they_went(examples: list[Example]) -> None:
    arrays = to_arrays(examples, text_columns=2)
    assert [array.shape for array in arrays] == [(len(examples), 1)] * 2
    assert from_arrays(arrays) == tuple(examples)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (("",), "TEXT row 1 is empty"),
        ((" \n\t",), "TEXT row 1 is empty"),
        (("\ufeff\u200b",), "TEXT row 1 is empty"),
        (("\ud800",), "row 1 holds a lone surrogate"),
        (("a", "b"), "row 1 has 2 texts, but the model takes 1"),
        ((), "row 1 has 0 texts"),
    ],
)
def test_a_bad_example_is_refused_before_it_is_sent(example: Example, said: str) -> None:
    with pytest.raises(DataError, match=said):
        to_arrays([("fine",), example], text_columns=1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((b"fine", b"\xff\xfe"), "TEXT_PAIR row 1 is not UTF-8"),
        ((b"fine", b"  "), "TEXT_PAIR row 1 is empty"),
    ],
)
def test_a_bad_request_is_named_by_input_and_row(values: tuple[bytes, ...], said: str) -> None:
    fine = np.array([[b"fine"], [b"fine"]], np.object_)
    with pytest.raises(DataError, match=said):
        from_arrays([fine, np.array(values, np.object_)[:, None]])


def test_parameters_of_a_request_are_read() -> None:
    sent = '{"truncate": true, "caller": "me", "wait_ms": 2.5, "number": 7, "other": 1}'
    assert Wishes.parse(sent) == Wishes(truncate=True, caller="me", wait_ms=2.5, number=7)
    assert Wishes.parse("") == Wishes.parse("{}") == Wishes()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("truncate", '"yes"', "'truncate' is 'yes'; it must be true or false"),
        ("truncate", "1", "'truncate' is 1; it must be true or false"),
        ("caller", "5", "'caller' is 5; it must be a text"),
        ("wait_ms", '"long"', "'wait_ms' is 'long'; it must be a number"),
        ("number", "true", "'number' is True; it must be a whole number"),
        ("abandon", "1.5", "'abandon' is 1.5; it must be a whole number"),
    ],
)
def test_a_parameter_of_another_type_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Wishes.parse(f'{{"{name}": {value}}}')
