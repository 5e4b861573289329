"""Program: what a bundle is for, the base of a class for each program."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME, TIMING_NAME
from bertender.core.findings import BundleFindings
from bertender.models.classifier import Classifier, problem_of
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.runtimes import Predictor
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from export.bundle.config import BundleConfig

OF_THE_ARTIFACT = (CARD_NAME, TIMING_NAME, "golden.json")
"""Files that no bundle has from its artifact, besides the graph."""


class Program(ABC):
    """What opens a bundle: a row of PROGRAMS."""

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
        candidate: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        """Write what else belongs to a bundle that has passed, and return what there is to know."""

    def tolerance(self, source: Artifact) -> str:
        """Return the row of TOLERANCES for its outputs: another runtime, with the same weights."""
        return source.card.precision


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
