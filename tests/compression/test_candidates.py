"""Candidates: what the settings allow, and nothing twice."""

from __future__ import annotations

import pytest

from bertender.compression.candidates import all_candidates
from bertender.compression.config import CompressConfig
from bertender.core.errors import ConfigError
from tests.compression.toy_costs import ENCODER, STATIC, TEACHER, candidate


def test_every_combination_is_a_candidate_once() -> None:
    config = CompressConfig.parse(
        {"layers": "1,3", "heads": "0,0.5", "ffn": "0", "schemes": "dynamic,static"}
    )
    made = all_candidates([TEACHER, ENCODER], config)
    assert len(made) == len(set(made)) == 2 * 2 * 2 * 1 * 2 * 2
    assert len({each.name for each in made}) == len(made)


def test_no_student_is_deeper_than_its_start() -> None:
    made = all_candidates([ENCODER], CompressConfig())
    assert {each.layers for each in made} == {1, 2, 3}


def test_a_student_without_layers_has_its_vocabulary_alone_to_cut() -> None:
    made = all_candidates([STATIC], CompressConfig.parse({"layers": "2,3", "schemes": "dynamic"}))
    assert [each.name for each in made] == ["static-dynamic", "static-vocab-dynamic"]
    assert all(each.is_distilled and not each.remaining for each in made)


def test_a_vocabulary_that_cannot_be_cut_is_not() -> None:
    assert not any(each.vocab for each in all_candidates([TEACHER], CompressConfig(), vocab=False))


def test_the_teacher_itself_is_not_distilled() -> None:
    whole, shorter, other = candidate(6), candidate(3), candidate(3, ENCODER)
    assert [each.is_distilled for each in (whole, shorter, other)] == [False, True, True]


def test_remaining_weights_are_in_layers() -> None:
    assert candidate(6).remaining == pytest.approx(6)
    assert candidate(6, heads=0.5, ffn=0.5).remaining == pytest.approx(3)


@pytest.mark.parametrize(
    "settings",
    [{"heads": "0,1"}, {"ffn": "-0.1"}, {"schemes": ()}, {"heads": ()}, {"runtimes": ()}],
)
def test_settings_that_leave_no_candidate_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        CompressConfig.parse(settings)
