"""Program: what a bundle is for, the base of a class for each program; and the one for OpenVINO.

OpenVINO Model Server and Optimum Intel open OpenVINO's own format beside config and tokenizer.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME, TIMING_NAME
from bertender.core.errors import ModelError
from bertender.core.findings import BundleFindings
from bertender.models.classifier import Classifier, onnx_file, problem_of
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.runtimes import (
    FLOAT_PRECISIONS,
    RUNTIMES,
    Predictor,
    check_installed,
    import_openvino,
    tolerance_in,
)
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from export.config import BundleConfig

OF_THE_ARTIFACT = (CARD_NAME, TIMING_NAME, "golden.json")
"""Files that no bundle has from its artifact, besides the graph."""

ODD_TEXTS = (
    "\u00c9t\u00e9 na\u00efve caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m \u0130stanbul stra\u00dfe",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea ok\U0001f44d\U0001f3fd",
    "\ufb01ne \u2460 \uff21\uff22\uff23 x\u00b2 \u00bd 10\u00a0000 a\u200bb soft\u00adhyphen",
    "tab\tline\nbreak  two   spaces ",
    "don't it's \u201cquotes\u201d \u2018single\u2019 em\u2014dash e-mail@example.com #1 $5.99",
    "a" * 120 + " antidisestablishmentarianism \ufffd \x07bell",
    "[SEP] [MASK] </s> <mask> [UNK]",
)
"""Texts that two implementations of a tokenizer are likeliest to read otherwise."""


class Program(ABC):
    """A program that opens bundles: a row of PROGRAMS."""

    def __init__(self, config: BundleConfig) -> None:
        self.config = config

    @abstractmethod
    def check(self, source: Artifact) -> None:
        """Raise where a source cannot be bundled, or this machine cannot check it."""

    @abstractmethod
    def write(self, source: Artifact, folder: Path) -> None:
        """Write the graph, its config and its tokenizer into a folder."""

    @abstractmethod
    def open(self, source: Artifact, folder: Path, parameters: int, name: str) -> Classifier:
        """Open what was written, by the files of the folder alone."""

    @abstractmethod
    def complete(
        self,
        source: Artifact,
        opened: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        """Write what else belongs to a bundle that has passed, and return what there is to know."""

    def tolerance(self, source: Artifact) -> str:
        """Return the row of TOLERANCES for its outputs: another runtime, with the same weights."""
        return source.card.precision


def has_weights_beside(source: Artifact) -> bool:
    """Return whether a graph's weights lie in a file of their own."""
    return sum(ONNX_NAME in name for name in source.card.files) > 1


def copy_companions(source: Artifact, folder: Path) -> None:
    """Copy config and tokenizer, which is all but the graph and what bertender alone reads."""
    for name in source.card.files:
        if name not in OF_THE_ARTIFACT and not name.startswith(ONNX_NAME):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source.path / name, target)


def classifier_of(
    source: Artifact, folder: Path, predictor: Predictor, parameters: int, name: str
) -> Classifier:
    """Return a predictor with the tokenizer of a folder as a classifier."""
    tokenizer = load_tokenizer(folder)
    problem = problem_of(source).reading(tokenizer)
    labels = source.card.task.labels
    return Classifier(name, labels, problem.encoder(tokenizer), predictor, parameters, problem)


def calibration_notes(source: Artifact) -> tuple[str, ...]:
    """Return how probabilities are read from the logits of a calibrated model."""
    if (own := source.card.task.calibration) is None:
        return ()
    return (own.words(f"the card of {source.name}"),)


RUNTIME = "openvino"
XML_NAME = "openvino_model.xml"
"""By which Optimum Intel knows the folder; the weights lie beside it, in a file ending in .bin."""


class OpenVinoFolder(Program):
    """`--to openvino`."""

    def check(self, source: Artifact) -> None:
        check_installed(RUNTIME)
        if source.card.precision in ("int4", "int3", "int2"):
            raise ModelError(
                f"{source.path} has weights of {source.card.precision}, in operators that ONNX "
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
        # else weights of float32 are rounded to float16
        openvino.save_model(model, str(folder / XML_NAME), compress_to_fp16=False)

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
            notes=(*notes, *calibration_notes(source)),
        )
