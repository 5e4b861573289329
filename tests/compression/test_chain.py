"""The steps of a candidate: when its vocabulary is cut, and what a probe does instead."""

from __future__ import annotations

from typing import Any

from bertender.compression.candidates import Candidate, Start
from bertender.compression.chain import probe_steps, student_steps
from bertender.compression.config import CompressConfig

TEACHER = Start(name="teacher", layers=6)
ENCODER = Start(name="encoder", layers=6, encoder="some/encoder")
STATIC = Start(name="static", layers=0, method="static")
CONFIG = CompressConfig.parse({"max_mb": 1, "vocab_size": 900, "vocab_floor": 3})
VOCABULARY = {"vocab_size": 900, "vocab_floor": 3}


def candidate(start: Start, **changes: Any) -> Candidate:
    shape = {"layers": 2, "heads": 0.0, "ffn": 0.0, "vocab": True, "scheme": "dynamic"}
    return Candidate.model_validate({"start": start, **shape, **changes})


def test_a_student_of_another_start_learns_with_the_cut_vocabulary() -> None:
    for start, layers in ((ENCODER, 2), (STATIC, 0)):
        (step,) = student_steps(candidate(start, layers=layers), CONFIG, 5)
        assert step.stage == "distill"
        assert VOCABULARY.items() <= step.settings.items()


def test_the_epochs_of_a_recovery_that_is_not_needed_go_to_the_training() -> None:
    config = CompressConfig.parse({"max_mb": 1, "epochs": 3, "recovery_epochs": 2})
    cases = {"vocab": {}, "whole": {"vocab": False}, "heads": {"heads": 0.5}}
    epochs = {
        name: student_steps(candidate(ENCODER, **changes), config, 5)[0].settings["epochs"]
        for name, changes in cases.items()
    }
    assert epochs == {"vocab": 5, "whole": 3, "heads": 3}


def test_heads_are_cut_after_that_with_a_recovery() -> None:
    student, pruned = student_steps(candidate(ENCODER, heads=0.5), CONFIG, 5)
    assert VOCABULARY.items() <= student.settings.items()
    assert pruned.stage == "prune" and pruned.settings["heads"] == 0.5
    assert "vocab" not in pruned.settings and "vocab_size" not in pruned.settings


def test_a_student_of_the_teachers_layers_is_cut_after_it_has_learned() -> None:
    student, pruned = student_steps(candidate(TEACHER), CONFIG, 5)
    assert "vocab_size" not in student.settings
    assert {"vocab": "task", **VOCABULARY}.items() <= pruned.settings.items()


def test_a_whole_vocabulary_stays() -> None:
    (step,) = student_steps(candidate(ENCODER, vocab=False), CONFIG, 5)
    assert "vocab_size" not in step.settings


def test_a_probe_learns_from_few_texts_and_is_cut_by_all() -> None:
    """Its vocabulary would be that of the few texts, if it learned with it."""
    (student,), (cut,) = probe_steps(candidate(ENCODER), CONFIG)
    assert "vocab_size" not in student.settings
    assert cut.stage == "prune" and VOCABULARY.items() <= cut.settings.items()
    assert cut.settings["recover"] is False
