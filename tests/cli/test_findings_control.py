"""The sentence about what distilling gave."""

from __future__ import annotations

import pytest

from bertender.cli.findings import control_lines
from bertender.core.findings import (
    ConstantFindings,
    ControlFindings,
    ControlRun,
    Findings,
    Gain,
)

OVER = "over the same student trained on labels alone for"
SENTENCES = {
    "a gain": (
        (1.94, 0.7, 3.2, 8, 8),
        f"distilling gave +1.9 points [+0.7, +3.2] {OVER} 8 epochs (equal computation)",
    ),
    "more computation did not help the control": (
        (1.94, 0.7, 3.2, 1, 8),
        f"distilling gave +1.9 points [+0.7, +3.2] {OVER} 1 epoch (as its last phase; 8 epochs "
        "scored no more)",
    ),
    "the control has too few epochs to be equal": (
        (1.94, 0.7, 3.2, 20, 57),
        f"distilling gave +1.9 points [+0.7, +3.2] {OVER} 20 epochs (the most; equal computation "
        "is 57 epochs)",
    ),
    "no difference": (
        (0.3, -0.7, 1.2, 8, 8),
        "distilling cannot be distinguished from the same student trained on labels alone for 8 "
        "epochs (equal computation): +0.3 points [-0.7, +1.2]; labels alone do, `--method hard` "
        "is cheaper",
    ),
    "an interval that ends at 0": (
        (0.3, 0.0, 1.2, 8, 8),
        "distilling cannot be distinguished from the same student trained on labels alone for 8 "
        "epochs (equal computation): +0.3 points [+0.0, +1.2]; labels alone do, `--method hard` "
        "is cheaper",
    ),
    "a loss": (
        (-3.0, -4.0, -2.0, 8, 8),
        "distilling lost against the same student trained on labels alone for 8 epochs (equal "
        "computation): -3.0 points [-4.0, -2.0]; labels alone do, `--method hard` is cheaper",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_one_sentence_reports_whether_distilling_paid(case: str) -> None:
    (value, low, high, epochs, equal), sentence = SENTENCES[case]
    lengths = dict.fromkeys((1, min(equal, 20)))
    findings = ControlFindings(
        epochs=epochs,
        score=0.8,
        gain=Gain(value=value, low=low, high=high),
        n=100,
        choice=0.8,
        equal_epochs=equal,
        runs=tuple(ControlRun(epochs=each, score=0.8) for each in lengths),
    )
    assert control_lines(Findings(control=findings)) == [sentence]


@pytest.mark.parametrize(("choice", "count"), [(0.75, 2), (0.8, 1), (0.85, 1)])
@pytest.mark.parametrize(
    ("layers", "flags"),
    [(None, "--method hard"), ("first", "--method hard --teacher-layers first")],
)
def test_the_texts_to_choose_by_may_take_the_control(
    choice: float, count: int, layers: str | None, flags: str
) -> None:
    findings = ControlFindings(
        epochs=8,
        score=0.7,
        gain=Gain(value=1.0, low=-1.0, high=3.0),
        n=100,
        choice=choice,
        teacher_layers=layers,
        equal_epochs=8,
        runs=(ControlRun(epochs=1, score=0.9), ControlRun(epochs=8, score=0.8)),
    )
    lines = control_lines(Findings(control=findings))
    assert len(lines) == count and lines[0].endswith(f"`{flags}` is cheaper")
    if count == 2:
        assert lines[1] == (
            "on the validation texts, the control scores 0.8 and the student 0.75: deploy "
            f"the control, which `{flags} --epochs 8` makes with the same other settings"
        )


def test_without_a_control_nothing_is_reported() -> None:
    assert control_lines(Findings()) == []


def test_a_control_that_learned_nothing_is_said() -> None:
    findings = ControlFindings(
        epochs=1,
        score=0.5,
        gain=Gain(value=30.0, low=25.0, high=35.0),
        n=100,
        choice=0.8,
        equal_epochs=1,
        runs=(ControlRun(epochs=1, score=0.5),),
        constant=ConstantFindings(label="tool", share=0.5, n=100, metric="accuracy"),
    )
    gave, stuck = control_lines(Findings(control=findings))
    assert gave.startswith("distilling gave +30.0")
    assert stuck.startswith("the control predicts 'tool' everywhere; 50.0% of 100 labels are that")
