"""OPENERS: opening an artifact of any kind as a `Classifier`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import transformers
from safetensors import SafetensorError
from safetensors.numpy import load_file
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.card import Kind, TaskRecord
from bertender.core.errors import ModelError
from bertender.models.families import check_positions
from bertender.models.onnx_session import ONNX_NAME, check_tokens
from bertender.models.own_models import load_pretrained, open_config
from bertender.models.predictor import Classifier, TorchPredictor, problem_of, problem_of_task
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, check_suits
from bertender.text.batch import Batch, keep_text
from bertender.text.tokenizer import check_rows, load_tokenizer

FloatArray = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class Opening:
    """How an artifact is opened; see `open_classifier`."""

    threads: int = 0
    max_length: int | None = None
    runtime: str = DEFAULT_RUNTIME


PLAIN = Opening()


def open_classifier(
    artifact: Artifact,
    *,
    threads: int = 0,
    max_length: int | None = None,
    runtime: str = DEFAULT_RUNTIME,
) -> Classifier:
    """Open an artifact of any kind as a classifier.

    Args:
        artifact: what to open.
        threads: of the runtime; 0 takes OMP_NUM_THREADS, and its default where it is not set.
            PyTorch's are the process's.
        max_length: longest input in tokens; None takes the artifact's, at which it was trained.
        runtime: the row of RUNTIMES that runs an onnx artifact; others have a library of their own.

    Raises:
        UnknownNameError: the runtime is not a row of RUNTIMES.
        RuntimeMissingError: the runtime is not installed, or has no GPU.
        ConfigError: the artifact is quantized, and the runtime would turn it back into floats; or
            `max_length` is more than the model has positions for.
        ModelError: the files are not a model that this machine can run.
    """
    return OPENERS[artifact.card.kind](artifact, Opening(threads, max_length, runtime))


def onnx_classifier(
    directory: Path,
    task: TaskRecord,
    *,
    name: str,
    parameters: int,
    opening: Opening = PLAIN,
) -> Classifier:
    """Open a directory with an ONNX graph and a tokenizer, an artifact or a draft of one."""
    problem = problem_of_task(task)
    if opening.max_length is not None:
        check_positions(opening.max_length, open_config(str(directory), local_files_only=True))
    tokenizer = load_tokenizer(directory, opening.max_length)
    encode = problem.encoder(tokenizer)
    predictor = RUNTIMES[opening.runtime].open(directory / ONNX_NAME, opening.threads)
    check_tokens(directory / ONNX_NAME, tokenizer)
    return Classifier(name, task.labels, encode, predictor, parameters, problem)


def onnx_file(artifact: Artifact) -> Path:
    """Return the path of an ONNX artifact's graph."""
    return artifact.path / ONNX_NAME


def load_torch_classifier(artifact: Artifact, **settings: Any) -> PreTrainedModel:
    """Load the model of a torch artifact that labels texts or words, on the CPU.

    Raises:
        ModelError: transformers cannot open it from safetensors alone and without code from
            elsewhere, it has no weights for its classification head, or a weight is not finite; or
            its tokenizer has more tokens than its embeddings rows.
    """
    problem = problem_of(artifact)
    auto_class = getattr(transformers, problem.model_class)
    try:
        model, report = load_pretrained(
            auto_class, str(artifact.path), local_files_only=True, **settings
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"transformers cannot open {artifact.path}: {error}") from None
    if report["missing_keys"]:
        raise ModelError(
            f"{artifact.path} (stage {artifact.card.stage!r}) is not a classifier: it has no "
            f"weights for {', '.join(sorted(report['missing_keys']))}. Fine-tune it on a task "
            "first."
        )
    for name, value in problem.model_settings.items():
        setattr(model.config, name, value)
    table: Any = model.get_input_embeddings()
    check_rows(load_tokenizer(artifact.path), table.num_embeddings, artifact.path)
    return model


def _open_torch(artifact: Artifact, opening: Opening) -> Classifier:
    # PyTorch has one thread count for the whole process; measurements set and restore it
    model, problem = load_torch_classifier(artifact), problem_of(artifact)
    if opening.max_length is not None:
        check_positions(opening.max_length, model.config)
    return Classifier(
        artifact.name,
        artifact.card.task.labels,
        problem.encoder(load_tokenizer(artifact.path, opening.max_length)),
        TorchPredictor(model),
        model.num_parameters(),
        problem,
    )


def _open_onnx(artifact: Artifact, opening: Opening) -> Classifier:
    check_suits(opening.runtime, artifact)
    return onnx_classifier(
        artifact.path,
        artifact.card.task,
        name=artifact.name,
        parameters=_recorded_parameters(artifact),
        opening=opening,
    )


def _open_bag_of_words(artifact: Artifact, opening: Opening) -> Classifier:
    # as counted in training: of two classes it keeps two rows of numbers where one was fitted
    labels, parameters = artifact.card.task.labels, _recorded_parameters(artifact)
    predictor = BagOfWordsPredictor(artifact.path)
    return Classifier(artifact.name, labels, keep_text, predictor, parameters)


def _recorded_parameters(artifact: Artifact) -> int:
    """Return the number of parameters from the card, as no file of such an artifact has it."""
    if (parameters := artifact.card.findings.parameters) is None:
        raise ModelError(
            f"the card of {artifact.path} has no number of parameters. Build it again (stage "
            f"{artifact.card.stage!r})."
        )
    return parameters


OPENERS: Mapping[Kind, Callable[[Artifact, Opening], Classifier]] = {
    "torch": _open_torch,
    "onnx": _open_onnx,
    "bag-of-words": _open_bag_of_words,
}
