"""BOUNDS: the figures of a healthy quantized part, and the findings that are held against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertender.core.errors import GateError
from bertender.core.findings import PartLikeness, ProductCheck

__all__ = ["BOUNDS", "WRONG", "ProductFindings", "check_products", "summary_of"]

SHOWN = 5
NO_LIMIT = float("inf")
WRONG_PRODUCT = (
    "The graph's scales or weights are wrong there, or its activations are clipped: quantize "
    "again, with another --calibrator or --scheme."
)
WRONG: Mapping[str, str] = {
    "8-bit": WRONG_PRODUCT,
    "4-bit": WRONG_PRODUCT,
    "table": "A table of 8 bits has one scale for all of its rows: leave tables in float, with "
    "--no-embeddings.",
    "4-bit table": "Its integers or scales are wrong, or a group of its values has few steps: "
    "quantize again, with a smaller --block-size, or --scheme dynamic.",
}
"""Row of BOUNDS -> what may be wrong, and the next step."""
BOUNDS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "8-bit": {
        "weights_snr_db": (18.0, NO_LIMIT),
        "weights_gain": (0.96, 1.04),
        "offset_snr_db": (10.0, NO_LIMIT),
        "outputs_snr_db": (-1.0, NO_LIMIT),
        "outputs_gain": (0.0, 1.5),
        "rounding_again": (0.0, 1e-3),
        "range": (0.98, 1.02),
    },
    "4-bit": {
        "weights_snr_db": (10.0, NO_LIMIT),
        "weights_gain": (0.96, 1.04),
        "offset_snr_db": (5.0, NO_LIMIT),
    },
    "table": {"weights_snr_db": (12.0, NO_LIMIT), "weights_gain": (0.96, 1.04)},
    "4-bit table": {
        "weights_snr_db": (10.0, NO_LIMIT),
        "weights_gain": (0.92, 1.04),
        "worst_row_snr_db": (3.0, NO_LIMIT),
        "worst_row_offset": (0.0, 0.5),
    },
}
"""Bounds of a healthy part: figure -> the least and the most.

Measured on encoders of 6 x 384, fine-tuned on SST-2, CoLA and MRPC (seed 7), 41 parts each:
dynamic with 8 and 7 bits, static with every calibrator and with 99.9 %, signed activations, weights
of 4 bits in groups of 32, 128 and 256. Ratios lowest, gains lowest and highest:

    8-bit   weights 30.6 dB, 0.998 to 1.003, offset 26.4 dB; outputs 9.6 dB, 0.904 to 1.036
    4-bit   weights 16.5 dB, 0.992 to 1.006, offset 13.6 dB
    table   20.4 dB, 0.9998 to 1.0006

Tables of 4 bits, of these encoders, a 12 x 768 one and a static student, in groups of 16 to 256:
11.7 to 22.7 dB and 0.932 to 0.991; the static student's in the largest groups is the worst by far,
and the scale of least squared error is a little too small for the largest values. Its worst row has
7.7 dB and those of the others 8.9 or more; a row of another token, or with another token's scales,
has less than 0, which is lost in the whole table's ratio if few rows are wrong.

Integers of such a table that are all one too high leave it 10.1 to 10.3 dB in groups of 32, and a
gain of 0.95: within bounds that the static student needs. A step is no constant that a layer norm
would take out, since groups have scales of either sign. `worst_row_offset` is the mean error of a
row in its own steps: over whole tables, sound ones have 0.006 at most and those have 0.98 or more;
single rows of a 6 x 384 encoder, in groups of 16 and 32, have 0.056 at most and 0.91 or more.

A weight scale that is a tenth off has a gain of 1.1 and 20 dB. `offset` is of the weights too, on
inputs without a sign, among which a wrong zero point shows. Outputs have the widest bounds, and
refuse little but more noise than signal. Calibrators clip on purpose, some of them most of what a
few tokens have; and where a neuron fires far above all others, rounding takes most of the rest: a
dynamic 12 x 768 encoder has outputs of 3.4 dB and 0.566 in one layer, and weights as all others.
`range` is the scale over that of the range that was calibrated, and `rounding_again` what
rounding changes of values that are rounded already, over the largest; where both halves of a pair
agree, nothing.
"""


@dataclass(frozen=True)
class ProductFindings:
    """Figures of a quantized product, or a quantized table, against its float twin."""

    node: str
    """Its name in the float graph."""
    kind: str
    """A row of BOUNDS."""
    figures: Mapping[str, float]
    """By their names in BOUNDS: signal-to-noise ratios, and gains, which are <actual, wanted> /
    <wanted, wanted>: 1.1 where a scale is a tenth too large."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Every figure that is out of bounds, in words; empty for a healthy product."""
        bounds = BOUNDS[self.kind]
        return tuple(
            f"{name} is {value:.4g}, allowed is {_words(*bounds[name])}"
            for name, value in self.figures.items()
            if not bounds[name][0] <= value <= bounds[name][1]
        )


def _words(low: float, high: float) -> str:
    return f"at least {low:g}" if high == NO_LIMIT else f"{low:g} to {high:g}"


def check_products(findings: Sequence[ProductFindings]) -> None:
    """Raise GateError where a product is out of bounds; it names the worst few."""
    failed = [each for each in findings if each.failures]
    if failed:
        listed = "; ".join(f"{each.node}: {', '.join(each.failures)}" for each in failed[:SHOWN])
        steps = " ".join(dict.fromkeys(WRONG[each.kind] for each in failed))
        raise GateError(
            f"{len(failed)} of {len(findings)} quantized products and tables do not compute what "
            f"their float twins do. {listed}. {steps}"
        )


def summary_of(findings: Sequence[ProductFindings]) -> ProductCheck:
    """Return their findings for the artifact: how many there are, and the worst few by noise."""
    worst = sorted(findings, key=lambda each: min(_ratios(each)))[:SHOWN]
    likeness = {each.node: PartLikeness(kind=each.kind, figures=each.figures) for each in worst}
    return ProductCheck(checked=len(findings), worst=likeness)


def _ratios(findings: ProductFindings) -> list[float]:
    return [value for name, value in findings.figures.items() if name.endswith("_snr_db")]
