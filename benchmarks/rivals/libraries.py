"""RIVALS: libraries that run the same model in process, ours among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertender.core.card import Kind
from bertender.core.config import Table

__all__ = ["FIRST", "RIVALS", "Rival"]

TRANSFORMERS = ("numpy==1.26.4", "torch==2.13.0", "transformers==4.57.6")
"""The versions of constraints.txt, so that libraries are compared and not releases of PyTorch."""


@dataclass(frozen=True)
class Rival:
    """A row of RIVALS."""

    title: str
    opens: str
    """module:function that takes an `Opening` and returns a `Predict`; imported in the rival's own
    process and environment."""
    reads: Kind
    """The kind of artifact that it opens: each of that kind is a row of the result."""
    packages: tuple[str, ...]
    """Those whose versions are recorded."""
    requirements: tuple[str, ...] = ()
    """Packages that pip installs into a separate environment; without any it runs in this one."""
    unwanted: tuple[str, ...] = ()
    """Packages that pip uninstalls again: dependencies of the requirements that do not fit."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    """Precision of its computation, where it is not the artifact's."""
    float_precision: str | None = None
    """Precision of its computation on a float32 file, where that is not float32."""
    own: bool = False
    """It is bertender."""
    single_texts: bool = True
    """It classifies single texts, besides pairs."""
    note: str = ""
    """Note below the table."""

    def computes_in(self, precision: str) -> str:
        """Return what it computes in, by its settings, of a file of some precision."""
        if self.float_precision and precision == "float32":
            return self.float_precision
        return self.precision or precision


FIRST = "transformers"
"""The reference of speedups and predictions, where it is timed."""

RIVALS = Table(
    "rival",
    {
        FIRST: Rival(
            title="transformers, pipeline",
            opens="benchmarks.rivals.transformers_models:open_pipeline",
            reads="torch",
            packages=("transformers", "torch"),
        ),
        "torch-compile": Rival(
            title="PyTorch, `torch.compile`",
            opens="benchmarks.rivals.transformers_models:open_compiled",
            reads="torch",
            packages=("torch", "transformers"),
            settings={"dtype": "float32"},
        ),
        "torch-compile-bfloat16": Rival(
            title="PyTorch, `torch.compile`, bfloat16",
            opens="benchmarks.rivals.transformers_models:open_compiled",
            reads="torch",
            packages=("torch", "transformers"),
            settings={"dtype": "bfloat16"},
            precision="bfloat16",
        ),
        "optimum": Rival(
            title="Optimum, ONNX Runtime pipeline",
            opens="benchmarks.rivals.optimum_pipeline:open_optimum",
            reads="onnx",
            packages=("optimum", "optimum-onnx", "onnxruntime", "transformers"),
        ),
        "sentence-transformers": Rival(
            title="sentence-transformers",
            opens="benchmarks.rivals.cross_encoder:open_cross_encoder",
            reads="torch",
            packages=("sentence-transformers", "torch"),
            settings={"backend": "torch"},
            single_texts=False,
        ),
        "sentence-transformers-onnx": Rival(
            title="sentence-transformers, ONNX",
            opens="benchmarks.rivals.cross_encoder:open_cross_encoder",
            reads="onnx",
            packages=("sentence-transformers", "optimum-onnx", "onnxruntime"),
            settings={"backend": "onnx"},
            single_texts=False,
        ),
        "sentence-transformers-openvino": Rival(
            title="sentence-transformers, OpenVINO",
            opens="benchmarks.rivals.cross_encoder:open_cross_encoder",
            reads="torch",
            packages=("sentence-transformers", "optimum-intel", "openvino"),
            requirements=("sentence-transformers[openvino]==5.7.0", *TRANSFORMERS),
            # transformers imports it where it is installed, and the build that pip finds does not
            # fit a PyTorch for CPUs
            unwanted=("torchvision",),
            settings={"backend": "openvino"},
            single_texts=False,
            note="converts the PyTorch model itself, and computes in what OpenVINO takes: bfloat16 "
            "where the CPU has it",
        ),
        "ctranslate2": Rival(
            title="CTranslate2",
            opens="benchmarks.rivals.ctranslate2_encoder:open_ctranslate2",
            reads="torch",
            packages=("ctranslate2", "transformers"),
            requirements=("ctranslate2==4.8.5", "safetensors", *TRANSFORMERS),
            settings={"compute_type": "float32"},
            note="runs the encoder; the classification head is numpy's",
        ),
        "ctranslate2-int8": Rival(
            title="CTranslate2, int8",
            opens="benchmarks.rivals.ctranslate2_encoder:open_ctranslate2",
            reads="torch",
            packages=("ctranslate2", "transformers"),
            requirements=("ctranslate2==4.8.5", "safetensors", *TRANSFORMERS),
            settings={"compute_type": "int8"},
            precision="int8",
            note="runs the encoder; the classification head is numpy's",
        ),
        "onnxruntime": Rival(
            title="tokenizers and ONNX Runtime",
            opens="benchmarks.rivals.plain_onnx:open_plain",
            reads="onnx",
            packages=("onnxruntime", "tokenizers"),
        ),
        "openvino": Rival(
            title="tokenizers and OpenVINO",
            opens="benchmarks.rivals.openvino_file:open_openvino",
            reads="onnx",
            packages=("openvino", "tokenizers"),
            note="computes in what OpenVINO takes by itself: bfloat16 where the CPU has it",
        ),
        "bertender-torch": Rival(
            title="bertender, PyTorch",
            opens="benchmarks.rivals.own:open_own",
            reads="torch",
            packages=("torch", "transformers"),
            own=True,
        ),
        "bertender": Rival(
            title="bertender, ONNX Runtime",
            opens="benchmarks.rivals.own:open_own",
            reads="onnx",
            packages=("onnxruntime",),
            settings={"runtime": "onnxruntime"},
            own=True,
        ),
        "bertender-openvino": Rival(
            title="bertender, OpenVINO",
            opens="benchmarks.rivals.own:open_own",
            reads="onnx",
            packages=("openvino",),
            settings={"runtime": "openvino"},
            own=True,
        ),
        "bertender-openvino-bf16": Rival(
            title="bertender, OpenVINO in bfloat16",
            opens="benchmarks.rivals.own:open_own",
            reads="onnx",
            packages=("openvino",),
            settings={"runtime": "openvino-bf16"},
            float_precision="bfloat16",
            own=True,
        ),
    },
)
