"""A saved comparison written by hand: a report needs nothing else."""

from __future__ import annotations

import pytest

from bertender.comparison.records import Comparison
from tests.comparison.rows import AGAIN, CONSTANT, STUDENT, TEACHER, conditions
from tests.gate.conftest import one_thread as one_thread  # a fixture of these tests too


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(
        circumstances=conditions(), rows=(TEACHER, STUDENT), constant=CONSTANT, noise_floor=AGAIN
    )
