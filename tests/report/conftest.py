"""A saved comparison written by hand: reports must need nothing else."""

from __future__ import annotations

import pytest

from bertender.comparison.records import Comparison
from tests.report.rows import AGAIN, CONSTANT, STUDENT, TEACHER, conditions


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(
        circumstances=conditions(), rows=(TEACHER, STUDENT), constant=CONSTANT, noise_floor=AGAIN
    )
