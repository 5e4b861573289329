"""How far a candidate may be from its reference: one row of TOLERANCES for each precision."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import UnknownNameError

__all__ = ["TOLERANCES", "Tolerance", "find_tolerance"]


class Tolerance(Record):
    """What the parity gate lets pass. Differences are shares of the largest reference logit.

    A shared unit is needed because logits have none: an untrained model's are near 0.1, a
    confident one's near 10, and rounding grows with them.
    """

    max_abs: float = Field(description="most that one logit may differ")
    mean_abs: float = Field(description="most that logits may differ on average")
    min_cosine: float = Field(description="least cosine of a row's logits with the reference's")
    min_agreement: float = Field(description="least share of equal predictions, near-ties left out")
    tie_margin: float = Field(
        description="a row whose two largest reference logits are no further apart is a near-tie"
    )


TOLERANCES: Mapping[str, Tolerance] = {
    # Another runtime with the same weights. Measured on a 6 x 384 encoder on SST-2 dev, ONNX
    # Runtime against PyTorch, batches of 1 to 32: max 2e-6, mean 2e-7. 1e-3 leaves room for
    # deeper models and other kernels; a dropped attention mask differs by 0.5. Two logits that
    # may each move by max_abs can swap when they are within twice that, and only then: those
    # rows are the near-ties, every other prediction must be equal.
    "float32": Tolerance(
        max_abs=1e-3, mean_abs=1e-4, min_cosine=0.9999, min_agreement=1.0, tie_margin=2e-3
    ),
    # Weights and, on a GPU, activations of 11 significant bits. Same encoder, on a CPU, which
    # computes most operators in float32 from them: max 1.7e-3, mean 2.0e-4, fused or not, no
    # prediction other than its reference's. Untrained models of 32 neurons, whose logits nearly
    # cancel, reach a mean of 2.2e-3 and a cosine of 0.9997. What is let pass leaves room for
    # GPUs, which round after every operator.
    "float16": Tolerance(
        max_abs=1.5e-2, mean_abs=3e-3, min_cosine=0.999, min_agreement=1.0, tie_margin=3e-2
    ),
    # Matrices of 8 significant bits, everything else as in float32. Same encoder: max 4.8e-3, mean
    # 6.8e-4, no prediction other than its reference's; the untrained ones reach a mean of 6.6e-3.
    "bfloat16": Tolerance(
        max_abs=4e-2, mean_abs=1e-2, min_cosine=0.999, min_agreement=1.0, tie_margin=8e-2
    ),
    # 8-bit weights per channel and dynamic 8-bit activations, same encoder: max 0.17 to 0.21,
    # mean 0.023 to 0.026, cosine 0.986, agreement 0.982 to 0.989 of all rows and 0.993 to 0.997
    # without near-ties (0.991 in a sample of 256); a 3 x 384 student with four labels was closer
    # (max 0.08, mean 0.008). The scale of an activation is that of the whole batch tensor, padding
    # included, so a text's logits legitimately change with its neighbours: 32 texts at a time
    # against one at a time, both int8, differed by 0.17 at most and 0.024 on average. These
    # allowances are about twice (max) and three times (mean) the measured, and a dropped mask
    # (0.55, 0.14, cosine -1, agreement 0.956) is past each of them. 0.97 keeps a sound model
    # from failing by chance on a few hundred texts. The score itself is for `bertender compare`.
    "int8": Tolerance(
        max_abs=0.4, mean_abs=0.08, min_cosine=0.9, min_agreement=0.97, tie_margin=0.05
    ),
    # 4-bit weights in groups of 32, floats for activations, 8-bit tables: max 0.18 of the largest
    # logit on the 6 x 384 encoder, mean 0.037, cosine 0.998, agreement 0.974 of all rows.
    "int4": Tolerance(
        max_abs=0.6, mean_abs=0.12, min_cosine=0.8, min_agreement=0.95, tie_margin=0.05
    ),
    # A graph with learned scales, and the fake-quantized PyTorch model that they are from. Both
    # round the same numbers; sums in another order bring a few activations to the next of 256
    # steps, and each layer passes that on. Same encoder: max 0.11, mean 0.007, agreement 0.996.
    "fake-quantized": Tolerance(
        max_abs=0.2, mean_abs=0.02, min_cosine=0.99, min_agreement=0.99, tie_margin=0.05
    ),
    # The same model file behind an endpoint. Only the batches differ, and in fp32 they change
    # nothing but the order of sums. An int8 endpoint meets this with one text a request
    # (batch_sizes=(1,)); in batches it is as far from itself as the row int8 says.
    "served": Tolerance(
        max_abs=1e-4, mean_abs=1e-5, min_cosine=0.99999, min_agreement=1.0, tie_margin=2e-4
    ),
}


def find_tolerance(precision: str) -> Tolerance:
    """Return a row of TOLERANCES, or raise UnknownNameError, which names the nearest."""
    if precision not in TOLERANCES:
        raise UnknownNameError("tolerance", precision, TOLERANCES)
    return TOLERANCES[precision]
