"""Settings of every scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from bertender.core.errors import ConfigError
from bertender.gate.config import GateConfig
from bertender.models.runtimes import DEFAULT_RUNTIME, WITH_INTEGERS, RuntimeName
from bertender.training.config import JudgedConfig, TrainingConfig
from quantize.integers import AUTO, CALIBRATORS, TARGETS
from quantize.sensitivity import SENSITIVITIES

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Numbers of values that share a 4-bit scale."""
WEIGHT_BITS = (2, 3, 4)
"""Those of `packing.WIDTHS`, which a test compares: that module loads onnx."""
TABLE_BITS = (4, 8)
"""Bits of large embedding tables."""


def _one_of(allowed: Sequence[int], error: str) -> AfterValidator:
    """Return what refuses other numbers; the error follows `SETTING=VALUE: `, and `{allowed}` of it
    is filled in."""

    def checked(value: int | None, info: ValidationInfo) -> int | None:
        if value is None or value in allowed:
            return value
        reason = error.format(allowed=", ".join(map(str, allowed)))
        raise ConfigError(f"{info.field_name}={value}: {reason}")

    return AfterValidator(checked)


KNOWN_BLOCK = _one_of(
    BLOCK_SIZES,
    "there is no kernel for such blocks; allowed are {allowed}. Small blocks are nearer to the "
    "float weights, large ones smaller.",
)
KNOWN_WEIGHT_BITS = _one_of(
    WEIGHT_BITS, "such weights are not packed; allowed are {allowed}. Scheme qat has 8."
)
KNOWN_TABLE_BITS = _one_of(
    TABLE_BITS,
    "such tables have no look-up; allowed are {allowed}. To leave them in float, give "
    "--no-embeddings.",
)


class SchemeConfig(GateConfig, TrainingConfig, JudgedConfig):
    """Settings of every scheme. Those of training are read by `qat` and `q-bert`."""

    panel: ClassVar[str] = "Scheme"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Calibration": ("calibrator", "percentile", "calibration_texts"),
        "Mixed and low bits": (
            "base",
            "sensitivity",
            "sensitivity_texts",
            "block_size",
            "weight_bits",
            "sensitive_bits",
            "sensitive_share",
            "weight_groups",
            "table_bits",
        ),
    }
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "sensitivity": "leave-one-out; hessian-trace with sensitive_bits"
    }
    judging: ClassVar[frozenset[str]] = frozenset(
        {"allow_constant", "max_drop", "golden_texts", "parity_texts", "runtime"}
    )

    max_length: int | None = Field(
        None,
        ge=8,
        description="texts to train on are truncated to so many tokens; the model's by default",
    )
    target: Annotated[str, TARGETS.validator(AUTO)] = Field(
        AUTO, description=f"the machine that will serve: {AUTO} (this one), {', '.join(TARGETS)}"
    )
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME,
        description="the runtime whose kernels, sums and logits the gates check: "
        f"{', '.join(WITH_INTEGERS)}",
    )
    no_embeddings: bool = Field(False, description="leave embedding tables in float")
    max_drop: float | None = Field(
        None, ge=0, description="most points of the metric to lose; more is refused"
    )
    calibrator: Annotated[str, CALIBRATORS.validator()] = Field(
        "mse", description=f"where static activations are clipped: {', '.join(CALIBRATORS)}"
    )
    percentile: float = Field(
        99.99, gt=50, le=100, description="share of the values that calibrator percentile keeps"
    )
    calibration_texts: int = Field(
        512, ge=1, description="training texts to calibrate activations on, at most"
    )
    base: Literal["dynamic", "static"] = Field(
        "dynamic", description="scheme of the parts that scheme mixed leaves quantized"
    )
    sensitivity: Annotated[str, SENSITIVITIES.validator()] = Field(
        "leave-one-out",
        description="what mixed and four-bit return first, and what has more bits in q-bert: "
        f"{', '.join(SENSITIVITIES)}",
    )
    sensitivity_texts: int = Field(
        256, ge=1, description="training texts to measure sensitivity on, at most"
    )
    block_size: Annotated[int, KNOWN_BLOCK] = Field(
        32,
        description="inputs of a product, or values of a row of a table, that share a 4-bit "
        f"scale: {', '.join(map(str, BLOCK_SIZES))}",
    )
    weight_bits: Annotated[int, KNOWN_WEIGHT_BITS] = Field(
        3, description=f"bits of the weights of layers: {', '.join(map(str, WEIGHT_BITS))}"
    )
    sensitive_bits: Annotated[int | None, KNOWN_WEIGHT_BITS] = Field(
        None,
        description="bits of the weights that the loss is most sensitive to, by its Hessian; by "
        "default as the others",
    )
    sensitive_share: float = Field(
        0.5, gt=0, lt=1, description="share of the products that have sensitive_bits"
    )
    weight_groups: int = Field(
        128,
        ge=1,
        description="groups of a product's outputs that share a scale in q-bert, as in the paper; "
        "the file is as large with any number",
    )
    table_bits: Annotated[int, KNOWN_TABLE_BITS] = Field(
        8, description=f"bits of large embedding tables: {', '.join(map(str, TABLE_BITS))}"
    )
    fused_attention: bool = Field(
        False,
        description="make one operator, which ONNX Runtime alone has, of each attention that its "
        "optimizer finds: faster for single texts on some CPUs",
    )
    soft_labels: float = Field(
        1.0, ge=0, description="weight of the float model's logits next to the labels in training"
    )
    epochs: int = Field(1, ge=1, description="passes over the training examples, if it trains")
    learning_rate: float = Field(2e-5, gt=0, description="peak learning rate of AdamW in training")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "fp32",
        description="precision to train in; bf16 has hardly more digits than 8-bit steps",
    )
    seed: int = Field(0, ge=0, description="which texts are drawn, and the order of training")

    @property
    def has_tables_of_4_bits(self) -> bool:
        """Whether a scheme that reads `table_bits` gives large tables 4."""
        return self.table_bits == 4
