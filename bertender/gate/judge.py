"""The parity gate: does a candidate agree with its reference in all batches?

TOLERANCES bounds a candidate's distance from its reference, a row for each precision, of two kinds.
If the candidate computes the same numbers in another way (another runtime, weights of fewer bits),
every single logit is bounded: one that moves further is wrong. If it rounds activations to a few
hundred steps, single texts move far without a fault, so the distribution is judged: median and 95th
percentile over texts, the order of the texts, predictions that are not near-ties, and the score. A
wrong number inside the graph whose effect on the logits is too small is found there by the checks
of `quantize`.

Each model encodes the texts itself. All failed checks are reported at once, with figure, bound and
worst text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from bertender.core.config import Record, Table
from bertender.core.errors import ParityError
from bertender.core.findings import ParitySummary
from bertender.gate.cases import (
    BATCH_SIZES,
    input_problems,
    inputs_comparable,
    questions_of,
    sampled_rows,
)
from bertender.gate.config import PARITY_TEXTS
from bertender.gate.figures import (
    BoolArray,
    Figures,
    FloatArray,
    PairedLogits,
    Truth,
    largest,
    measure_figures,
    no_logits,
    pair_logits,
    worst_figures,
)
from bertender.models.classifier import Classifier
from bertender.problems.problem import are_unnamed
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

LEAST_JUDGED = 0.1
"""Share of judged decisions below which a warning reports how few there are."""


class Tolerance(Record):
    """Bounds of the parity gate; None is not judged.

    Single logits are bounded as shares of the largest reference logit, distributions as shares of
    the spread of the reference's logits over the texts, or of their size if all texts move alike
    (`PairedLogits.relative_differences`): logits have no unit. An untrained model's are near 0.1, a
    confident one's near 10, and rounding grows with them.
    """

    max_abs: float | None = Field(None, description="most that one logit may differ")
    mean_abs: float | None = Field(None, description="most that logits may differ on average")
    min_cosine: float | None = Field(
        None, description="least cosine of a row's logits with the reference's"
    )
    max_median: float | None = Field(
        None, description="most for the low end of the median text's interval, of the spread"
    )
    max_p95: float | None = Field(
        None, description="most for the low end of the 95th percentile's interval, likewise"
    )
    max_edge: float | None = Field(
        None, description="most that the median of a case of edge texts may differ, of the spread"
    )
    min_correlation: float | None = Field(
        None,
        description="least for the upper end of the interval of the logits' correlation over texts",
    )
    min_agreement: float = Field(
        description="least share of equal predictions, near-ties left out, that the 95 % interval "
        "of what was seen must reach"
    )
    tie_margin: float | None = Field(
        None,
        description="a row whose two largest reference logits are no further apart, as a share of "
        "the largest reference logit, is a near-tie",
    )
    tie_spreads: float | None = Field(
        None, description="the same, in spreads of the reference's logits"
    )
    min_score_change: float | None = Field(
        None, description="least change of the score, in points, that its 95 % interval must reach"
    )


FOUR_BITS = Tolerance(
    max_median=0.3,
    max_p95=1.3,
    max_edge=2.0,
    min_correlation=0.4,
    min_agreement=0.97,
    tie_spreads=1.3,
    min_score_change=-2.0,
)

TOLERANCES = Table(
    "tolerance",
    {
        # Another runtime with the same weights. Measured on a 6 x 384 encoder on SST-2 dev, ONNX
        # Runtime against PyTorch, batches of 1 to 32: max 2e-6, mean 2e-7. 1e-3 leaves room for
        # deeper models and other kernels; a dropped attention mask differs by 0.5. Two logits that
        # may each move by max_abs can swap when they are within twice that, and only then: those
        # rows are the near-ties, every other prediction must be equal.
        "float32": Tolerance(
            max_abs=1e-3, mean_abs=1e-4, min_cosine=0.9999, min_agreement=1.0, tie_margin=2e-3
        ),
        # Weights of 11 significant bits, on a CPU, which computes most operators in float32 from
        # them. Same encoder: max 1.7e-3, mean 2.0e-4, fused or not, no prediction other than its
        # reference's. Untrained models of 32 neurons, whose logits nearly cancel, reach a mean of
        # 2.2e-3 and a cosine of 0.9997.
        "float16": Tolerance(
            max_abs=1.5e-2, mean_abs=3e-3, min_cosine=0.999, min_agreement=1.0, tie_margin=3e-2
        ),
        # Matrices of 8 significant bits, everything else as in float32. Same encoder: max 4.8e-3,
        # mean 6.8e-4, no prediction other than its reference's; the untrained ones reach a mean of
        # 6.6e-3.
        "bfloat16": Tolerance(
            max_abs=4e-2, mean_abs=1e-2, min_cosine=0.999, min_agreement=1.0, tie_margin=8e-2
        ),
        # Everything computed in bfloat16, as OpenVINO does on CPUs that have it: activations are
        # rounded to 8 significant bits at every operator, and a deep model can be steep at a text.
        # An encoder of 12 layers moved one of 300 texts by 0.16 of its largest logit and the median
        # one by 3e-4 spreads (95th percentile: 0.012, edge texts: 0.001), at the same score; in
        # PyTorch's bfloat16, 0.03 and 7e-4. With 6 layers: 0.01, 1e-3, 0.007 and 0.002. Untrained
        # models of 32 neurons, whose logits nearly cancel, reach a median of 0.13 and 0.26.
        "bfloat16-activations": Tolerance(
            max_median=0.2,
            max_p95=0.5,
            max_edge=0.8,
            min_agreement=0.99,
            tie_spreads=0.4,
            min_score_change=-0.5,
        ),
        # Everything computed in float16, as on GPUs: 11 significant bits at every operator, three
        # more than bfloat16 has, so an eighth of its bounds on logits. An encoder of 12 layers on
        # an H200 moved one of 300 texts by 0.011 of its largest logit and the median one by 2e-4
        # spreads (95th percentile: 0.003, edge texts: 9e-4), at the same score. With the outputs
        # of each module of PyTorch rounded so, 40 texts of each of seven encoders: 0.011, 6e-4 and
        # 0.002 at most. The row float16, of single logits, would refuse a sound one sooner or
        # later: by its largest of enough texts.
        "float16-activations": Tolerance(
            max_median=0.025,
            max_p95=0.0625,
            max_edge=0.1,
            min_agreement=0.99,
            tie_spreads=0.05,
            min_score_change=-0.5,
        ),
        # 8-bit weights per channel and 8-bit activations. The scale of a dynamic activation is that
        # of the whole batch tensor, padding included, so a text's logits legitimately change with
        # its neighbours. How these bounds were set, on which models, and what they catch:
        # benchmarks/reports/gate.md.
        "int8": Tolerance(
            max_median=0.2,
            max_p95=1.0,
            max_edge=1.5,
            min_correlation=0.5,
            min_agreement=0.98,
            tie_spreads=1.0,
            min_score_change=-1.0,
        ),
        # 4-bit weights in groups of 32: of products, with float activations and 8-bit tables, or of
        # tables, with 8-bit products. Tables alone move trained encoders no further than the row
        # int8 allows, and untrained ones of 32 neurons, whose logits nearly cancel, a little
        # further. Weights of 3 and 2 bits are trained, so they are judged no less strictly.
        "int4": FOUR_BITS,
        "int3": FOUR_BITS,
        "int2": FOUR_BITS,
        # A graph with learned scales, and its fake-quantized PyTorch source. Both round the same
        # numbers; sums in another order move a few activations to the next of 256 steps, and each
        # layer passes that on.
        "fake-quantized": Tolerance(
            max_median=0.1, max_p95=0.4, max_edge=0.8, min_agreement=0.99, tie_spreads=0.4
        ),
        # The same model file behind an endpoint. Only the batches differ, which in fp32 changes
        # only the order of sums. An int8 endpoint meets these bounds with one text per request
        # (batch_sizes=(1,)); in batches it is as far from itself as the row int8 allows.
        "served": Tolerance(
            max_abs=1e-4, mean_abs=1e-5, min_cosine=0.99999, min_agreement=1.0, tie_margin=2e-4
        ),
    },
)


def decided_by(paired: PairedLogits, tolerance: Tolerance) -> BoolArray:
    """Return whether the reference's decision is not a near-tie (rows, decisions)."""
    if tolerance.tie_spreads is not None:
        # logits that each move by d can change a prediction whose margin is within 2 d
        return np.asarray(paired.gaps / 2 > tolerance.tie_spreads * paired.spread)
    return np.asarray(paired.gaps > (tolerance.tie_margin or 0.0) * paired.scale)


def judged_of(paired: PairedLogits, tolerance: Tolerance) -> BoolArray:
    """Return which decisions of the reference are judged (rows, decisions).

    If the rows of a text decide together, they compete: the two tokens where an answer is likely to
    start are far nearer to each other than tokens are in general, and by the spread over all tokens
    nearly every answer is a near-tie. There, a decision is judged too if its logits are further
    apart than this candidate moves logits, since smaller moves change none. So a candidate that
    moves logits far gains nothing.
    """
    decided = decided_by(paired, tolerance)
    own = ~paired.edge_rows
    if tolerance.tie_spreads is None or paired.problem.decides_within != "example" or not own.any():
        return decided
    return np.asarray(decided | (paired.gaps / 2 > np.quantile(np.abs(paired.moved[own]), 0.95)))


def margins_of(paired: PairedLogits, tolerance: Tolerance) -> FloatArray:
    """Return how far outputs move before each decision of the reference changes, in the unit of
    `least_margin` (decisions,)."""
    unit = paired.scale if tolerance.tie_spreads is None else paired.spread
    return np.asarray(paired.gaps[paired.decides].ravel() / 2 / (unit or 1.0))


def least_margin(tolerance: Tolerance) -> float:
    """Return the margin beyond which a decision is judged: in spreads of the reference's outputs,
    or as a share of the largest."""
    if tolerance.tie_spreads is not None:
        return tolerance.tie_spreads
    return (tolerance.tie_margin or 0.0) / 2


def warn_of_near_ties(
    name: str, figures: Figures, judged: int, margins: FloatArray, tolerance: Tolerance
) -> None:
    """Log a warning if so few decisions are judged that their agreement says little.

    Args:
        name: name of the candidate.
        figures: figures of all decisions.
        judged: number of judged decisions.
        margins: `margins_of` all decisions.
        tolerance: bounds of the candidate's precision.
    """
    ties = figures.near_ties or 0
    if judged >= LEAST_JUDGED * (judged + ties):
        return
    of_spread = tolerance.tie_spreads is not None
    others = f"Whether the other {judged} are equal says little" if judged else "None is judged"
    unit = "spreads of its outputs over texts" if of_spread else "of its largest output"
    logger.warning(
        "%s: of %d decisions, %d are so near a tie in the reference, by what rounding may move, "
        "that they are not judged: the median one changes where outputs move by %.2g %s, and one "
        "is judged beyond %.2g. %s; the outputs themselves%s are judged as ever. These margins say "
        "nothing of the reference's accuracy",
        *(name, judged + ties, ties, float(np.median(margins)), unit, least_margin(tolerance)),
        *(others, "" if figures.score_change is None else " and the score"),
    )


@dataclass(frozen=True)
class Check:
    """A row of CHECKS: a bound of the tolerance on one figure."""

    figure: str
    bound: str
    at_most: bool = False
    unit: Literal["scale", "spread", None] = None
    """Unit of the bound: the largest reference logit, if the figure is in logits; or the spread of
    the reference's logits over texts, if the figure is in spreads too."""


LARGEST: Mapping[str, str] = {
    "logit": "largest reference logit",
    "number": "largest distance of a reference number from their mean",
}
"""`Problem.output` -> subject of `Problem.scale`."""
CHECKS = (
    Check("max_abs_difference", "max_abs", at_most=True, unit="scale"),
    Check("mean_abs_difference", "mean_abs", at_most=True, unit="scale"),
    Check("min_cosine", "min_cosine"),
    Check("median_difference_low", "max_median", at_most=True, unit="spread"),
    Check("p95_difference_low", "max_p95", at_most=True, unit="spread"),
    Check("edge_difference", "max_edge", at_most=True, unit="spread"),
    Check("correlation_high", "min_correlation"),
    Check("decided_agreement_high", "min_agreement"),
    Check("score_change_high", "min_score_change"),
)


def failures_of(
    figures: Figures, paired: PairedLogits, tolerance: Tolerance, decided: BoolArray
) -> list[str]:
    """Return the measured and allowed values and the worst text of every failed check."""
    failures = []
    for check in CHECKS:
        value, share = getattr(figures, check.figure), getattr(tolerance, check.bound)
        if value is None or share is None:
            continue
        allowed = share * paired.scale if check.unit == "scale" else share
        if value <= allowed if check.at_most else value >= allowed:
            continue
        limit = f"at {'most' if check.at_most else 'least'} {allowed:.4g}"
        if check.unit == "scale":
            limit += f" ({share:g} x the {LARGEST[paired.problem.output]}, {paired.scale:.4g})"
        elif check.unit == "spread":
            limit += (
                f" spreads (a spread of the reference's {paired.problem.output}s over texts is "
                f"{paired.spread:.4g})"
            )
        worst = paired.describe(int(_badness(paired, decided)[check.figure].argmax()))
        failures.append(f"{check.figure} is {value:.4g}, allowed {limit}; worst: {worst}")
    return failures


def _badness(paired: PairedLogits, decided: BoolArray) -> Mapping[str, FloatArray]:
    """Return how bad each row is (rows,), by the kind of figure."""
    relative, turned = paired.relative_differences, ~paired.agrees
    of_texts = relative * ~paired.edge_rows
    return {
        "max_abs_difference": paired.differences.max(axis=1),
        "mean_abs_difference": paired.differences.mean(axis=1),
        "min_cosine": -np.nan_to_num(paired.cosines, nan=1.0),
        "median_difference_low": of_texts,
        "p95_difference_low": of_texts,
        "edge_difference": relative * paired.edge_rows,
        "correlation_high": of_texts,
        "decided_agreement_high": (paired.gaps * (decided & turned)).max(axis=1, initial=0.0),
        "score_change_high": (paired.gaps * turned).max(axis=1, initial=0.0),
    }


class CaseParity(Record):
    """Result for the candidate in one arrangement of the texts."""

    name: str
    rows: int
    max_abs_difference: float | None
    agreement: float | None


class Parity(Figures):
    """Findings of the gate."""

    reference: str
    candidate: str
    runtime: str | None = Field(None, description="of the candidate; None where it is not onnx")
    tolerance: Tolerance
    output: str = Field("logit", description="what one output is: a logit, or a number")
    texts: int = Field(description="whole ones; some are asked about in parts as well")
    rows: int = Field(description="predictions compared: each text once for each arrangement")
    logit_scale: float | None = Field(
        description="largest absolute reference logit, or, of numbers, distance from their mean; "
        "None of none"
    )
    logit_spread: float | None = Field(
        None,
        description="standard deviation of the reference's centred logits over the texts, or the "
        "least that counts",
    )
    logit_size: float | None = Field(
        None,
        description="root mean square over labels of the reference's average centred logits, plus "
        "their spread; None of none",
    )
    heads: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="scale and spread of each of several heads, by name"
    )
    inputs_compared: bool = Field(description="whether both read tokens of one vocabulary")
    graphs_compared: bool | None = Field(
        None, description="whether the float graph of a quantized one was there; None if not asked"
    )
    cases: tuple[CaseParity, ...]
    failures: tuple[str, ...] = Field(description="every check that failed; empty when all passed")

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def scale_name(self) -> str:
        """Meaning of `logit_scale`, in words."""
        return LARGEST[self.output]

    @property
    def failure_count(self) -> str:
        """The number of failures, in words."""
        return "1 failure" if len(self.failures) == 1 else f"{len(self.failures)} failures"

    def summary(self) -> ParitySummary:
        """Return the figures for an artifact's card."""
        return ParitySummary(**{name: getattr(self, name) for name in ParitySummary.model_fields})


def check_parity(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    tolerance: Tolerance,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
    truth: Truth | None = None,
) -> Parity:
    """Compare a candidate's logits with its reference's on real text.

    Args:
        reference: correct model; it runs on single texts.
        candidate: checked model; it runs on every arrangement.
        examples: texts of the task, for instance from `parity_sample`; all are used.
        tolerance: a row of TOLERANCES.
        batch_sizes: sizes of the candidate's batches over all examples.
        seed: seed that decides which texts share a batch.
        truth: the labels of the examples; without them the score is not judged.

    Returns:
        A Parity, whose `failures` name everything that is wrong. An error raised by the candidate
        is a failure like others; an error of the reference is raised.
    """
    problems = _problems_of_inputs(reference, candidate, examples)
    if examples and len(reference.labels) == len(candidate.labels):
        paired = pair_logits(reference, candidate, examples, batch_sizes=batch_sizes, seed=seed)
    else:
        paired = no_logits(len(reference.labels))
    failures: list[str] = []
    by_head: list[Figures] = []
    judged, margins = 0, []
    heads = paired.by_head()
    for head, own in heads.items():
        decided = judged_of(own, tolerance)
        own_truth = truth and truth.of_head(head, own.problem)
        by_head.append(measure_figures(own, decided, own_truth, paired))
        said = failures_of(by_head[-1], own, tolerance, decided)
        failures += (f"{head}: {each}" for each in said) if head else said
        judged += int(decided[own.decides].sum())
        margins.append(margins_of(own, tolerance))
    figures = worst_figures(by_head)
    warn_of_near_ties(candidate.name, figures, judged, np.concatenate(margins), tolerance)
    of_cases = [paired.case_ids == index for index in range(len(paired.cases))]
    return Parity(
        reference=reference.name,
        candidate=candidate.name,
        tolerance=tolerance,
        output=reference.problem.output,
        texts=sum(text.tokens is None for text in paired.texts),
        rows=len(paired),
        logit_scale=paired.scale or None,
        logit_spread=paired.spread or None,
        logit_size=paired.size or None,
        heads={head: (own.scale, own.spread) for head, own in heads.items() if head},
        inputs_compared=inputs_comparable(reference, candidate),
        cases=tuple(
            CaseParity(
                name=case.name,
                rows=int(rows.sum()),
                max_abs_difference=largest(paired.differences[rows]),
                agreement=_mean(paired.agrees[rows & paired.decides]),
            )
            for case, rows in zip(paired.cases, of_cases, strict=True)
        ),
        failures=(
            *problems,
            *paired.problems,
            *failures,
        ),
        **figures.model_dump(),
    )


def _mean(truths: BoolArray) -> float | None:
    return float(truths.mean()) if truths.size else None


def _problems_of_inputs(
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
        return [*problems, "no examples to compare, allowed at least 1: give texts of the task"]
    # the edge texts show the length of truncation
    questions = questions_of(reference, reference, examples)
    whole = tuple(question.example for question in questions if question.tokens is None)
    return [*problems, *input_problems(reference, candidate, whole)]


AGAIN = "export or quantize again, with other settings, from the reference."
"""The next step after a failure."""


def require_parity(parity: Parity, next_step: str = AGAIN) -> None:
    """Raise ParityError with all failures, unless the candidate passed."""
    if parity.passed:
        return
    raise ParityError(
        f"{parity.candidate} does not agree with {parity.reference} "
        f"({parity.failure_count} over {parity.rows} predictions):\n"
        + "\n".join(f"  - {failure}" for failure in parity.failures)
        + f"\nDo not deploy it: {next_step}"
    )


def parity_sample(
    examples: Sequence[Example], count: int = PARITY_TEXTS, seed: int = 0
) -> tuple[Example, ...]:
    """Return at most `count` examples, including the shortest and the longest."""
    return tuple(examples[row] for row in sampled_rows(examples, count, seed))


def labelled_sample(
    task: Task, split: Split, count: int, seed: int
) -> tuple[tuple[Example, ...], Truth]:
    """Return the `parity_sample` of a task's split, and its truth."""
    rows = sampled_rows(split.examples, count, seed)
    label_ids = [split.label_ids[row] for row in rows]
    truth = Truth(label_ids, task.metric, task.labels)
    return tuple(split.examples[row] for row in rows), truth
