"""TOLERANCES: bounds on a candidate's distance from its reference, a row for each precision."""

from __future__ import annotations

from pydantic import Field

from bertender.core.config import Record, Table


class Tolerance(Record):
    """Bounds of the parity gate; None is not judged.

    Single logits are bounded as shares of the largest reference logit, distributions as shares of
    the spread of the reference's logits over the texts, or of their size where all texts move
    alike (`PairedLogits.relative_differences`): logits have no unit of their own. An untrained
    model's are near 0.1, a confident one's near 10, and rounding grows with them.
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
        # docs/how-to/gate.md.
        "int8": Tolerance(
            max_median=0.2,
            max_p95=1.0,
            max_edge=1.5,
            min_correlation=0.5,
            min_agreement=0.98,
            tie_spreads=1.0,
            min_score_change=-1.0,
        ),
        # 4-bit weights in groups of 32: of products, with floats for activations and 8-bit tables,
        # or of tables, with 8-bit products. Tables alone move trained encoders no further than the
        # row int8 allows, and untrained ones of 32 neurons, whose logits nearly cancel, a little
        # further. Weights of 3 and 2 bits are trained: a model that has learned to bear them is
        # asked for no less.
        "int4": FOUR_BITS,
        "int3": FOUR_BITS,
        "int2": FOUR_BITS,
        # A graph with learned scales, and the fake-quantized PyTorch model that they are from. Both
        # round the same numbers; sums in another order bring a few activations to the next of 256
        # steps, and each layer passes that on.
        "fake-quantized": Tolerance(
            max_median=0.1, max_p95=0.4, max_edge=0.8, min_agreement=0.99, tie_spreads=0.4
        ),
        # The same model file behind an endpoint. Only the batches differ, and in fp32 they change
        # nothing but the order of sums. An int8 endpoint meets this with one text a request
        # (batch_sizes=(1,)); in batches it is as far from itself as the row int8 allows.
        "served": Tolerance(
            max_abs=1e-4, mean_abs=1e-5, min_cosine=0.99999, min_agreement=1.0, tie_margin=2e-4
        ),
    },
)
