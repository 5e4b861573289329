"""Settings of `bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule, Table
from bertender.gate.config import GateConfig

BROWSER, OPENVINO, SINGLE_FILE = "browser", "openvino", "single-file"
PROGRAMS = Table(
    "program",
    {
        BROWSER: "transformers.js, in a page or in Node",
        OPENVINO: "OpenVINO Model Server, Optimum Intel and OpenVINO itself",
        SINGLE_FILE: "ONNX Runtime with onnxruntime-extensions, which takes strings",
    },
)
"""Values of `to` -> what opens the folder."""

RULES: Mapping[str, Rule[BundleConfig]] = {
    "no program": Rule(
        lambda config: config.to is None,
        "no program is named. Give --to " + ", ".join(PROGRAMS) + ".",
    ),
    "node_modules of others": Rule(
        lambda config: config.to != BROWSER,
        "it is what --to browser is checked with, and to is {to!r}. Leave it out.",
        frozenset({"node_modules"}),
    ),
    "texts of others": Rule(
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
"""Conflicts of settings."""


class BundleConfig(GateConfig):
    """Settings of `bundle`."""

    panel: ClassVar[str] = "Bundle"
    main: ClassVar[tuple[str, ...]] = ("to", "node_modules")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

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
