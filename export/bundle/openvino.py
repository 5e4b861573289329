"""The folder of OpenVINO Model Server and Optimum Intel: OpenVINO's format next to config and
tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertender.core.artifact import Artifact, copy_companions
from bertender.core.errors import ModelError
from bertender.core.findings import BundleFindings
from bertender.models.classifier import Classifier, onnx_file
from bertender.models.runtimes import (
    FLOAT_PRECISIONS,
    RUNTIMES,
    check_installed,
    import_openvino,
    tolerance_in,
)
from bertender.text.batch import Example
from export.bundle.program import Program, classifier_of, notes_of

RUNTIME = "openvino"
XML_NAME = "openvino_model.xml"
"""File by which Optimum Intel recognises the folder; the weights are next to it, in a .bin file."""


class OpenVinoFolder(Program):
    """`--to openvino`."""

    def check(self, source: Artifact) -> None:
        check_installed(RUNTIME)
        if source.card.precision in ("int4", "int3", "int2"):
            raise ModelError(
                f"{source.place} has weights of {source.card.precision}, in operators that ONNX "
                "Runtime alone has. Give a float artifact, or quantize it with --scheme static "
                "--runtime openvino."
            )
        if source.card.kind != "onnx":
            return
        try:
            RUNTIMES[RUNTIME].open(onnx_file(source))
        except ModelError as error:
            raise ModelError(
                f"{error} Fused attention is one of ONNX Runtime's own operators: export without "
                "--optimize fused, and quantize without --fused-attention."
            ) from None

    def write(self, source: Artifact, folder: Path) -> None:
        openvino = import_openvino()
        copy_companions(source, folder)
        model = openvino.Core().read_model(str(onnx_file(source)))
        # else float32 weights would be rounded to float16
        try:
            openvino.save_model(model, str(folder / XML_NAME), compress_to_fp16=False)
        except RuntimeError as error:  # it names neither the file nor the reason
            raise OSError(
                f"OpenVINO cannot write {XML_NAME} into {folder}: {error}. Is the disk full?"
            ) from None

    def open(self, source: Artifact, folder: Path, parameters: int, name: str) -> Classifier:
        predictor = RUNTIMES[RUNTIME].open(folder / XML_NAME)
        return classifier_of(source, folder, predictor, parameters, name)

    def tolerance(self, source: Artifact) -> str:
        return tolerance_in(RUNTIME, source.card.precision)

    def complete(
        self,
        source: Artifact,
        opened: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        row = RUNTIMES[RUNTIME]
        notes = [
            "on CPUs with bfloat16, OpenVINO computes in it by default; the check ran "
            "with INFERENCE_PRECISION_HINT f32"
        ]
        quantization = source.card.findings.quantization
        in_floats = quantization is None or quantization.runtime != RUNTIME
        if source.card.precision not in FLOAT_PRECISIONS and in_floats:
            notes.append(
                "quantized for ONNX Runtime: whether OpenVINO multiplies in integers was not "
                "checked, and scales found while running make it multiply in floats. For its "
                "speed, quantize with --scheme static --runtime openvino"
            )
        return BundleFindings(
            opens_as=f"{XML_NAME}: version 1 of a model of OpenVINO Model Server, or a folder of "
            "Optimum Intel",
            checked_by=f"{row.title} {row.version}",
            notes=(*notes, *notes_of(source, opened)),
        )
