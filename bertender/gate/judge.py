"""The parity gate: does a candidate agree with its reference in every batch that it may meet?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.comparison.accuracy import word_count
from bertender.core.config import Record
from bertender.core.errors import ParityError
from bertender.core.findings import ParitySummary
from bertender.gate.cases import (
    Arrangement,
    input_problems,
    inputs_comparable,
    pair_logits,
    questions_of,
)
from bertender.gate.config import PARITY_TEXTS
from bertender.gate.figures import (
    CHECKS,
    Figures,
    PairedLogits,
    Truth,
    largest,
    mean,
    measure_figures,
    no_logits,
)
from bertender.gate.tolerances import Tolerance
from bertender.models.classifier import Classifier
from bertender.problems.problem import are_unnamed
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example

ORDINARY = Arrangement()


class CaseParity(Record):
    """Result of the candidate in one arrangement of the texts."""

    name: str
    rows: int
    max_abs_difference: float | None
    agreement: float | None


class Parity(Figures):
    """Findings of the gate."""

    reference: str
    candidate: str
    runtime: str | None = Field(
        None, description="of the candidate; None where it is not onnx, and in older results"
    )
    tolerance: Tolerance
    texts: int = Field(description="whole ones; some are asked about in parts as well")
    rows: int = Field(description="predictions compared: each text once for each arrangement")
    logit_scale: float | None = Field(description="largest absolute reference logit; None of none")
    logit_spread: float | None = Field(
        None,
        description="standard deviation of the reference's centred logits over the texts, or the "
        "least that counts",
    )
    logit_size: float | None = Field(
        None,
        description="root mean square over labels of the reference's average centred logits, plus "
        "their spread; None in older results",
    )
    inputs_compared: bool | None = Field(
        None, description="whether both read tokens of one vocabulary; None in older results"
    )
    graphs_compared: bool | None = Field(
        None, description="whether the float graph of a quantized one was there; None if not asked"
    )
    cases: tuple[CaseParity, ...]
    failures: tuple[str, ...] = Field(description="every check that failed; empty when all passed")

    @property
    def passed(self) -> bool:
        return not self.failures

    def summary(self) -> ParitySummary:
        """Return the part of it that an artifact's card holds."""
        return ParitySummary(**{name: getattr(self, name) for name in ParitySummary.model_fields})


def check_parity(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    tolerance: Tolerance,
    *,
    arrangement: Arrangement = ORDINARY,
    truth: Truth | None = None,
) -> Parity:
    """Compare a candidate's logits with its reference's on real text.

    Args:
        reference: what is right; asked one text at a time.
        candidate: what is checked; asked in every arrangement.
        examples: texts of the task, all of which are used: see `parity_sample`.
        tolerance: a row of TOLERANCES.
        arrangement: how the candidate's batches are laid out.
        truth: the labels of the examples; without them the score is not judged.

    Returns:
        A Parity, whose `failures` name everything that is wrong. A candidate that raises is a
        failure like others; an error of the reference is raised.
    """
    problems = _input_problems(reference, candidate, examples)
    comparable = examples and len(reference.labels) == len(candidate.labels)
    paired = (
        pair_logits(reference, candidate, examples, arrangement)
        if comparable
        else no_logits(len(reference.labels))
    )
    figures = measure_figures(paired, tolerance, truth)
    failures = (check.failure(figures, paired, tolerance) for check in CHECKS)
    return Parity(
        reference=reference.name,
        candidate=candidate.name,
        tolerance=tolerance,
        texts=sum(text.tokens is None for text in paired.texts),
        rows=len(paired),
        logit_scale=paired.scale or None,
        logit_spread=paired.spread or None,
        logit_size=paired.size or None,
        inputs_compared=inputs_comparable(reference, candidate),
        cases=_cases(paired),
        failures=(*problems, *paired.problems, *filter(None, failures)),
        **figures.model_dump(),
    )


def parity_sample(
    examples: Sequence[Example], count: int = PARITY_TEXTS, seed: int = 0
) -> tuple[Example, ...]:
    """Return at most `count` examples, the shortest and the longest among them."""
    return tuple(examples[row] for row in _sampled_rows(examples, count, seed))


def labelled_sample(
    task: Task, split: Split, count: int, seed: int
) -> tuple[tuple[Example, ...], Truth]:
    """Return the `parity_sample` of a split of a task, and the truth of it."""
    rows = _sampled_rows(split.examples, count, seed)
    label_ids = [split.label_ids[row] for row in rows]
    truth = Truth(label_ids, task.metric, task.labels)
    return tuple(split.examples[row] for row in rows), truth


def _sampled_rows(examples: Sequence[Example], count: int, seed: int) -> list[int]:
    if len(examples) <= count:
        return [*range(len(examples))]
    by_length = sorted(range(len(examples)), key=lambda index: word_count(examples[index]))
    between = np.random.default_rng(seed).choice(by_length[1:-1], max(count - 2, 0), replace=False)
    return sorted([by_length[0], by_length[-1], *between.tolist()][:count])


def require_parity(parity: Parity) -> None:
    """Raise ParityError, listing every failure, unless the candidate passed."""
    if parity.passed:
        return
    raise ParityError(
        f"{parity.candidate} does not agree with {parity.reference} "
        f"({len(parity.failures)} failures over {parity.rows} predictions):\n"
        + "\n".join(f"  - {failure}" for failure in parity.failures)
        + "\nDo not deploy it: export or quantize again, with other settings, from the reference."
    )


def _input_problems(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> list[str]:
    problems = []
    expected, actual = reference.labels, candidate.labels
    if len(expected) != len(actual):
        problems.append(
            f"label count is {len(actual)} {actual}, must be {len(expected)} {expected}"
        )
    elif expected != actual and not (are_unnamed(expected) or are_unnamed(actual)):
        kind = "label order" if sorted(expected) == sorted(actual) else "label names"
        problems.append(f"{kind}: {actual}, must be {expected}: predictions would have wrong names")
    if not examples:
        problems.append("no examples to compare, allowed at least 1: give texts of the task")
    return [*problems, *input_problems(reference, candidate, _asked_of(reference, examples))]


def _asked_of(reference: Classifier, examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return the examples and the edge texts, which show where texts are truncated."""
    if not examples:
        return ()
    questions = questions_of(reference, reference, examples)
    return tuple(question.example for question in questions if question.tokens is None)


def _share(truths: npt.NDArray[np.bool_]) -> float | None:
    return mean(truths) if len(truths) else None


def _cases(paired: PairedLogits) -> tuple[CaseParity, ...]:
    return tuple(
        CaseParity(
            name=case.name,
            rows=int((paired.case_ids == index).sum()),
            max_abs_difference=largest(paired.differences[paired.case_ids == index]),
            agreement=_share(paired.agrees[paired.case_ids == index]),
        )
        for index, case in enumerate(paired.cases)
    )
