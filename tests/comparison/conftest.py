"""A saved comparison written by hand: a report needs nothing else."""

from __future__ import annotations

import pytest

from bertender.comparison.records import Comparison
from tests.comparison.rows import STUDENT, TEACHER, compared
from tests.gate.conftest import one_thread as one_thread  # a fixture of these tests too


@pytest.fixture
def comparison() -> Comparison:
    return compared(TEACHER, STUDENT)
