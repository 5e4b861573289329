"""Settings of `export` and of `bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from bertender.core.config import Rule, Table
from bertender.gate.config import GateConfig
from bertender.models.onnx_session import MOST_MB

OVERFLOWING = ("float16",)
"""Precisions with a smaller largest number than float32."""

EXPORT_RULES: Mapping[str, Rule[ExportConfig]] = {
    "overflow setting without overflow": Rule(
        lambda config: config.precision not in OVERFLOWING,
        "it changes nothing with precision={precision!r}, which reaches as far as float32. Give "
        f"precision {', '.join(OVERFLOWING)}, or leave it out.",
        frozenset({"overflow"}),
    ),
}
"""Conflicts of the settings of `export`."""


class ExportConfig(GateConfig):
    """Settings of `export`."""

    panel: ClassVar[str] = "Graph"
    main: ClassVar[tuple[str, ...]] = ("precision", "optimize")
    rules: ClassVar[Mapping[str, Rule[Any]]] = EXPORT_RULES

    opset: int = Field(
        18,  # from 17 on, a layer norm is one operator, which fusions of attention need
        ge=14,
        le=20,  # the exporter's first and last with every operator of these models
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


BROWSER, OPENVINO, SINGLE_FILE = "browser", "openvino", "single-file"
PROGRAMS = Table(
    "program",
    {
        BROWSER: "transformers.js, in a page or in Node",
        OPENVINO: "OpenVINO Model Server, Optimum Intel and OpenVINO itself",
        SINGLE_FILE: "ONNX Runtime with onnxruntime-extensions, which takes strings",
    },
)
"""Values of `to` -> program that opens the folder."""

BUNDLE_RULES: Mapping[str, Rule[BundleConfig]] = {
    "no program": Rule(
        lambda config: config.to is None,
        "no program is named. Give --to " + ", ".join(PROGRAMS) + ".",
    ),
    "node_modules for another program": Rule(
        lambda config: config.to != BROWSER,
        "it is what --to browser is checked with, and to is {to!r}. Leave it out.",
        frozenset({"node_modules"}),
    ),
    "stored texts for another program": Rule(
        lambda config: config.to != BROWSER,
        "a bundle for {to!r} stores no texts. Leave it out.",
        frozenset({"golden_texts"}),
    ),
    "node_modules without texts": Rule(
        lambda config: not config.golden_texts,
        "it asks the model about stored texts, and golden_texts is 0. Leave one of both out.",
        frozenset({"node_modules"}),
    ),
}
"""Conflicts of the settings of `bundle`."""


class BundleConfig(GateConfig):
    """Settings of `bundle`."""

    panel: ClassVar[str] = "Bundle"
    main: ClassVar[tuple[str, ...]] = ("to", "node_modules")
    rules: ClassVar[Mapping[str, Rule[Any]]] = BUNDLE_RULES

    to: Annotated[str | None, PROGRAMS.validator()] = Field(
        None,
        description="; ".join(f"{name}: for {title}" for name, title in PROGRAMS.items()),
    )
    node_modules: Path | None = Field(
        None,
        description="folder of npm with @huggingface/transformers, by which Node checks a bundle "
        "for a browser; without it, only ONNX Runtime does",
    )
    golden_texts: int = Field(
        200,
        ge=0,
        description="texts to store in a bundle for a browser, which its own check asks about; 0 "
        "for none, where texts must not leave this machine",
    )
