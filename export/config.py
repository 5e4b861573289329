"""Settings of `export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from bertender.core.config import Rule
from bertender.gate.config import GateConfig
from bertender.models.onnx_session import MOST_MB

OVERFLOWING = ("float16",)
"""Precisions whose largest number is below that of float32."""

RULES: Mapping[str, Rule[ExportConfig]] = {
    "overflow of what cannot": Rule(
        lambda config: config.precision not in OVERFLOWING,
        "it changes nothing with precision={precision!r}, which reaches as far as float32. Give "
        f"precision {', '.join(OVERFLOWING)}, or leave it out.",
        frozenset({"overflow"}),
    ),
}
"""Conflicts of settings."""


class ExportConfig(GateConfig):
    """Settings of `export`."""

    panel: ClassVar[str] = "Graph"
    main: ClassVar[tuple[str, ...]] = ("precision", "optimize")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    opset: int = Field(
        18,  # from 17 on, a layer norm is one operator, as fusions of attention want it
        ge=14,
        le=20,  # the exporter's first with every operator of these models, and its last
        description="ONNX operator set",
    )
    precision: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="of the graph; float16 is for GPUs, bfloat16 halves the file and computes in "
        "float32",
    )
    overflow: Literal["refuse", "allow"] = Field(
        "refuse", description="what to do where held-out texts come near the largest float16"
    )
    optimize: Literal["none", "basic", "fused"] = Field(
        "none",
        description="fold constants (basic), or also make each layer a few operators that ONNX "
        "Runtime alone has (fused)",
    )
    external_above_mb: int = Field(
        MOST_MB,
        ge=0,
        le=MOST_MB,
        description="megabytes of weights that one file may hold; more lie in a file next to it",
    )
