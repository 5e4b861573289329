"""The seam that parity, metrics and latency stand on: `Predictor.logits(batch)`.

A predictor is PyTorch, ONNX Runtime, a bag of words, or (in `serve.client`) a Triton endpoint;
what measures them cannot tell which. A `Classifier` is a predictor with its encoding step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors import SafetensorError
from safetensors.numpy import load_file
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.card import Kind
from bertender.core.errors import ModelError
from bertender.models.onnx_predictor import ONNX_NAME, OnnxPredictor
from bertender.models.own_models import load_pretrained
from bertender.problems import PROBLEMS, SINGLE_LABEL, Outputs, ProblemType
from bertender.text.batch import Batch, Encode, keep_text, load_tokenizer
from bertender.text.example import Example

__all__ = [
    "OPENERS",
    "BagOfWordsPredictor",
    "Classifier",
    "FakePredictor",
    "OnnxPredictor",
    "Predictor",
    "TorchPredictor",
    "load_torch_classifier",
    "onnx_classifier",
    "onnx_file",
    "open_classifier",
    "problem_of",
]

FloatArray = npt.NDArray[np.float32]


class Predictor(Protocol):
    """Anything that answers a batch with logits."""

    def logits(self, batch: Batch) -> FloatArray:
        """Return the logits (batch, labels) of a batch."""
        ...


@dataclass(frozen=True)
class Classifier:
    """A model ready to answer texts: examples -> encode -> predictor -> logits (batch, labels)."""

    name: str
    labels: tuple[str, ...]
    encode: Encode
    predictor: Predictor
    parameters: int
    problem: ProblemType[Any] = SINGLE_LABEL

    def logits(self, examples: Sequence[Example]) -> FloatArray:
        """Return the logits of some examples, as one batch: (batch, labels), or of each token."""
        return self.predictor.logits(self.encode(examples))

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        """Return the outputs of each of some examples, as one batch."""
        return self.outputs_of(self.encode(examples))

    def outputs_of(self, batch: Batch) -> list[Outputs]:
        """Return the outputs of each example of a batch.

        Raises:
            ModelError: the logits are of another shape than the batch's.
        """
        logits = np.asarray(self.predictor.logits(batch))
        wanted = self.problem.logits_shape(batch, len(self.labels))
        if logits.shape != wanted:
            raise ModelError(
                f"{self.name}: logits have shape {logits.shape}, must be {wanted} for {len(batch)} "
                f"examples and {len(self.labels)} labels. Export the model again, with a dynamic "
                "batch axis."
            )
        return self.problem.outputs(logits, batch)


class TorchPredictor:
    """A transformers model with a classification head, in eval mode, in its own precision."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()

    def logits(self, batch: Batch) -> FloatArray:
        device = self.model.device
        tensors = {name: torch.from_numpy(array).to(device) for name, array in batch.arrays.items()}
        with torch.inference_mode():
            logits = self.model(**tensors).logits
        return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)


class BagOfWordsPredictor:
    """TF-IDF and logistic regression, read back from numbers and words (never from a pickle)."""

    def __init__(self, directory: Path) -> None:
        settings = json.loads((directory / "vocabulary.json").read_text(encoding="utf-8"))
        weights = load_file(directory / "model.safetensors")
        self.vectorizer = TfidfVectorizer(
            vocabulary=settings["vocabulary"],
            ngram_range=tuple(settings["ngram_range"]),
            sublinear_tf=settings["sublinear_tf"],
        )
        self.vectorizer.idf_ = weights["idf"]
        self.coefficients = weights["coefficients"]  # (labels, features)
        self.intercepts = weights["intercepts"]  # (labels,)

    def logits(self, batch: Batch) -> FloatArray:
        features = self.vectorizer.transform([" ".join(example) for example in batch.examples])
        return np.asarray(features @ self.coefficients.T + self.intercepts, dtype=np.float32)


class FakePredictor:
    """A predictor for tests: `compute` computes the logits of a batch."""

    def __init__(self, compute: Callable[[Batch], FloatArray]) -> None:
        self.compute = compute
        self.batches: list[Batch] = []

    def logits(self, batch: Batch) -> FloatArray:
        self.batches.append(batch)
        return self.compute(batch)


def open_classifier(
    artifact: Artifact, *, threads: int = 0, max_length: int | None = None
) -> Classifier:
    """Open an artifact of any kind as a classifier.

    Args:
        artifact: what to open.
        threads: ONNX Runtime's intra-op threads; 0 takes every core. PyTorch's are the process's.
        max_length: longest input in tokens; None takes the tokenizer's own limit.

    Raises:
        ModelError: the files are no model that this machine can run.
    """
    return OPENERS[artifact.card.kind](artifact, threads, max_length)


def onnx_classifier(
    directory: Path,
    name: str,
    labels: tuple[str, ...],
    parameters: int,
    *,
    threads: int = 0,
    max_length: int | None = None,
    problem: ProblemType[Any] = SINGLE_LABEL,
) -> Classifier:
    """Open a directory with an ONNX graph and a tokenizer, an artifact or a draft of one."""
    encode = problem.encoder(load_tokenizer(directory), max_length)
    predictor = OnnxPredictor(directory / ONNX_NAME, threads)
    return Classifier(name, labels, encode, predictor, parameters, problem)


def onnx_file(artifact: Artifact) -> Path:
    """Return the path of an ONNX artifact's graph."""
    return artifact.path / ONNX_NAME


def problem_of(artifact: Artifact) -> ProblemType[Any]:
    """Return the row of PROBLEMS that an artifact's model answers.

    Of an encoder, which answers none, the first row: what opens it says what it lacks.
    """
    return PROBLEMS.get(artifact.card.task.problem_type, SINGLE_LABEL)


def load_torch_classifier(artifact: Artifact, **settings: Any) -> PreTrainedModel:
    """Load the model of a torch artifact that labels texts or words, on the CPU.

    Raises:
        ModelError: transformers cannot open it from safetensors alone and without code from
            elsewhere, or it has no weights for its classification head.
    """
    auto_class = getattr(transformers, problem_of(artifact).model_class)
    try:
        model, report = load_pretrained(
            auto_class, str(artifact.path), local_files_only=True, **settings
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"transformers cannot open {artifact.path}: {error}") from None
    if report["missing_keys"]:
        raise ModelError(
            f"{artifact.path} (stage {artifact.card.stage!r}) is no classifier: it has no weights "
            f"for {', '.join(sorted(report['missing_keys']))}. Fine-tune it on a task first."
        )
    return model


def _open_torch(artifact: Artifact, threads: int, max_length: int | None) -> Classifier:
    # PyTorch has one thread count for the whole process; who measures sets it and puts it back
    model, problem = load_torch_classifier(artifact), problem_of(artifact)
    return Classifier(
        artifact.name,
        artifact.card.task.labels,
        problem.encoder(load_tokenizer(artifact.path), max_length),
        TorchPredictor(model),
        model.num_parameters(),
        problem,
    )


def _open_onnx(artifact: Artifact, threads: int, max_length: int | None) -> Classifier:
    labels, parameters = artifact.card.task.labels, _recorded_parameters(artifact)
    return onnx_classifier(
        artifact.path,
        artifact.name,
        labels,
        parameters,
        threads=threads,
        max_length=max_length,
        problem=problem_of(artifact),
    )


def _open_bag_of_words(artifact: Artifact, threads: int, max_length: int | None) -> Classifier:
    # as counted in training: of two classes it keeps two rows of numbers where one was fitted
    labels, parameters = artifact.card.task.labels, _recorded_parameters(artifact)
    predictor = BagOfWordsPredictor(artifact.path)
    return Classifier(artifact.name, labels, keep_text, predictor, parameters)


def _recorded_parameters(artifact: Artifact) -> int:
    """Return the number of parameters in the card, which no file of such an artifact tells."""
    if (parameters := artifact.card.findings.parameters) is None:
        raise ModelError(
            f"the card of {artifact.path} has no number of parameters. Build it again (stage "
            f"{artifact.card.stage!r})."
        )
    return parameters


OPENERS: Mapping[Kind, Callable[[Artifact, int, int | None], Classifier]] = {
    "torch": _open_torch,
    "onnx": _open_onnx,
    "bag-of-words": _open_bag_of_words,
}
