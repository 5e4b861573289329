"""The row to deploy: limits first, then scores that noise does not tell apart, then time."""

from __future__ import annotations

import pytest

from bertender.report.choice import LimitsConfig, choice_of
from tests.comparison.rows import STUDENT, compared
from tests.report.conftest import row, scored

ROWS = (
    row("teacher", 0.893, 9.9, 91.6, parity=None),
    row("student", 0.885, 3.1, 70.0),
    row("int8", 0.880, 1.7, 17.6),
    row("tiny", 0.850, 0.4, 4.0),
)


def chosen(**limits: float) -> str | None:
    table = compared(*ROWS)
    return choice_of(table, LimitsConfig.model_validate(limits)).row


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({}, "int8"),  # 0.880 is in [0.873, 0.913], 0.850 is not
        ({"max_mb": 10.0}, "tiny"),
        ({"max_ms": 5.0}, "int8"),
        ({"min_score": 0.882}, "student"),
        ({"min_score": 0.89}, "teacher"),
        ({"max_ms": 1.0, "max_mb": 20.0}, "tiny"),
        ({"max_ms": 0.1}, None),
    ],
)
def test_limits_choose(limits: dict[str, float], name: str | None) -> None:
    assert chosen(**limits) == name


def test_the_sentence_names_the_gain_or_what_is_missed() -> None:
    table = compared(*ROWS)
    best = choice_of(table, LimitsConfig())
    assert best.sentence.startswith("Deploy int8 in place of teacher: 18 MB instead of 92")
    assert "teacher: 0.893 [0.873, 0.913]" in best.reason
    first = choice_of(table, LimitsConfig(min_score=0.89))
    assert first.sentence == "Deploy teacher: 92 MB, 9.9 ms a text, accuracy 0.89."
    none = choice_of(table, LimitsConfig(max_ms=1, max_mb=50, min_score=0.86))
    assert none.sentence == "No row holds --max-ms 1 --max-mb 50 --min-score 0.86."
    assert none.reason == "Nearest is int8, which has 1.7 ms."


def test_what_failed_or_says_nothing_is_not_deployed() -> None:
    assert STUDENT.parity is not None
    failed = STUDENT.parity.model_copy(update={"passed": False})
    undefined = scored(0.0).model_copy(update={"undefined": "one label"})
    rows = (
        row("failed", 0.9, 1.0, 1.0, parity=failed),
        row("undefined", 0.0, 1.0, 1.0, score=undefined),
    )
    table = compared(*rows)
    found = choice_of(table, LimitsConfig())
    assert found.row is None and found.sentence == "Deploy none of these."
    sound = choice_of(
        table.model_copy(update={"rows": (*rows, row("sound", 0.5, 9.0, 9.0))}), LimitsConfig()
    )
    assert sound.row == "sound"
