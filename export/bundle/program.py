"""Program: the target of a bundle, the base class of all programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bertender.core.artifact import Artifact
from bertender.core.findings import BundleFindings
from bertender.gate.judge import AGAIN
from bertender.models.classifier import Classifier, problem_of
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.runtimes import (
    Predictor,
)
from bertender.text.batch import Example, Tokenize
from bertender.text.tokenizer import load_tokenizer
from bertender.text.windows import windows_of
from export.config import BundleConfig

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
"""Texts that two implementations of a tokenizer are most likely to read differently."""


class Program(ABC):
    """A program that opens bundles: a row of PROGRAMS."""

    next_step: ClassVar[str] = AGAIN
    """The next step where its predictions differ."""

    def __init__(self, config: BundleConfig) -> None:
        self.config = config

    @abstractmethod
    def check(self, source: Artifact) -> None:
        """Raise an error if a source cannot be bundled, or not checked on this machine."""

    @abstractmethod
    def write(self, source: Artifact, folder: Path) -> None:
        """Write the graph, its config and its tokenizer into a folder."""

    @abstractmethod
    def open(self, source: Artifact, folder: Path, parameters: int, name: str) -> Classifier:
        """Open the bundle, using only the files in the folder."""

    @abstractmethod
    def complete(
        self,
        source: Artifact,
        opened: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        """Write the remaining files of a bundle that has passed, and return notes for the user."""

    def tolerance(self, source: Artifact) -> str:
        """Return the row of TOLERANCES for its outputs: by default another runtime with equal
        weights."""
        return source.card.precision


def has_weights_beside(source: Artifact) -> bool:
    """Return whether a graph's weights are in a separate file."""
    return sum(ONNX_NAME in name for name in source.card.files) > 1


def classifier_of(
    source: Artifact, folder: Path, predictor: Predictor, parameters: int, name: str
) -> Classifier:
    """Return a predictor with the tokenizer of a folder as a classifier."""
    tokenizer = load_tokenizer(folder)
    problem = problem_of(source).reading(tokenizer)
    labels = source.card.task.labels
    return Classifier(name, labels, problem.encoder(tokenizer), predictor, parameters, problem)


def notes_of(source: Artifact, opened: Classifier) -> tuple[str, ...]:
    """Return what another program leaves to its user: fitted values, calibration and windows."""
    notes = []
    if fitted := source.card.task.fitted:
        values = ", ".join(f"{name} {value:.4g}" for name, value in fitted.items())
        notes.append(f"fitted besides the weights, and for your program to apply: {values}")
    notes += calibration_notes(source)
    encode = opened.encode
    assert isinstance(encode, Tokenize)
    if windows_of(encode.tokenizer) is not None or opened.problem.window is not None:
        notes.append(
            f"longer texts are cut at {encode.max_length} tokens; elsewhere bertender reads them "
            "in windows"
        )
    return tuple(notes)


def calibration_notes(source: Artifact) -> tuple[str, ...]:
    """Return how probabilities are computed from the logits of a calibrated model."""
    if (own := source.card.task.calibration) is None:
        return ()
    return (own.words(f"the card of {source.name}"),)
