"""Classifiers: artifacts of any kind, opened for inference.

Parity, metrics and latency only use `Predictor.logits(batch)`. A predictor is a PyTorch model, a
runtime of RUNTIMES, a bag of words, or (in `serve.client`) a Triton endpoint. A `Classifier` is a
predictor with its encoding step.

Model libraries are imported only when a model is opened, since settings and clients do not need
them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.config import check_least
from bertender.core.errors import DataError, ModelError
from bertender.models.onnx_session import ONNX_NAME, check_tokens
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, Predictor, check_suits
from bertender.problems import problem_of_task
from bertender.problems.problem import Outputs, Problem
from bertender.problems.reading import checked_examples
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Encode, Example
from bertender.text.tokenizer import check_rows, load_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FloatArray = npt.NDArray[np.float32]
SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Classifier:
    """A model that classifies texts: examples -> encode -> predictor -> logits (batch, labels)."""

    name: str
    labels: tuple[str, ...]
    encode: Encode
    predictor: Predictor
    parameters: int
    problem: Problem[Any] = SINGLE_LABEL
    text_count: int | None = None
    """Number of text columns; None where unknown, as of an imported model without data."""

    def checking(self) -> Classifier:
        """Return the classifier with a check of each batch of texts, by the rules for files."""
        return replace(self, encode=CheckedEncode(self.encode, self.problem, self.text_count))

    def logits(self, examples: Sequence[Example]) -> FloatArray:
        """Return the logits of examples in one batch: (batch, labels), or those of each token."""
        return self.predictor.logits(self.encode(examples))

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        """Return the outputs of each example, computed in one batch."""
        return self.outputs_of(self.encode(examples))

    def outputs_of(self, batch: Batch) -> list[Outputs]:
        """Return the outputs of each example of a batch.

        Raises:
            ModelError: the shape of the logits does not fit the batch.
        """
        logits = np.asarray(self.predictor.logits(batch))
        wanted = self.problem.logits_shape(batch, len(self.labels))
        if len(logits.shape) != len(wanted) or any(
            size not in (None, own) for own, size in zip(logits.shape, wanted, strict=True)
        ):
            raise ModelError(
                f"{self.name}: logits have shape {logits.shape}, must be {wanted} for {len(batch)} "
                f"examples and {len(self.labels)} labels. Export the model again, with a dynamic "
                "batch axis."
            )
        return self.problem.outputs(logits, batch)


@dataclass(frozen=True)
class CheckedEncode:
    """An encoding step that first checks the texts, and reads them as those of files and requests.

    Raises (when called):
        DataError: no texts are given, or the model cannot read one; see `checked_examples`.
    """

    encode: Encode
    problem: Problem[Any]
    text_count: int | None

    def __call__(self, examples: Sequence[Example]) -> Batch:
        given = [*examples] if isinstance(examples, Iterator) else examples
        checked = checked_examples(given, self.problem, self.text_count)
        if not checked:
            raise DataError("no text to predict. Give at least one.")
        problem = self.problem
        if not problem.labels_words:
            return self.encode([problem.to_example(each) for each in checked])
        return self.encode(
            [
                # a sentence; words in a tuple may have white space in them
                problem.to_example(example) if isinstance(value, str) else example
                for value, example in zip(given, checked, strict=True)
            ]
        )


@dataclass(frozen=True)
class ReorderedPredictor:
    """A predictor with its labels in another order."""

    predictor: Predictor
    order: tuple[int, ...]
    """Number of each label in the predictor's own order."""

    def logits(self, batch: Batch) -> FloatArray:
        return self.predictor.logits(batch)[..., list(self.order)]


def in_label_order(classifier: Classifier, labels: Sequence[str]) -> Classifier:
    """Return a classifier with the same labels in the given order, matched by name; numbers of
    choices have one order, and there may be more or fewer."""
    if classifier.labels == tuple(labels):
        return classifier
    if classifier.problem.places_are_labels:
        return replace(classifier, labels=tuple(labels))
    order = tuple(map(classifier.labels.index, labels))
    return replace(
        classifier,
        labels=tuple(labels),
        predictor=ReorderedPredictor(classifier.predictor, order),
        problem=classifier.problem.of_labels(labels),
    )


def open_classifier(
    artifact: Artifact,
    *,
    threads: int = 0,
    max_length: int | None = None,
    runtime: str = DEFAULT_RUNTIME,
    spinning: bool = True,
) -> Classifier:
    """Open an artifact of any kind as a classifier.

    Args:
        artifact: artifact to open.
        threads: threads of the runtime; 0 takes OMP_NUM_THREADS, or else the runtime's default.
            PyTorch has one setting for the process.
        max_length: longest input in tokens; None takes the artifact's, set in training.
        runtime: name in RUNTIMES that runs an onnx artifact; other kinds have their own library.
        spinning: let idle threads of the runtime wait in a loop: faster alone, slower where two
            models take turns.

    Raises:
        UnknownNameError: the runtime is not in RUNTIMES.
        RuntimeMissingError: the runtime is not installed, or has no GPU.
        ConfigError: the artifact is quantized, and the runtime would turn it back into floats; or
            `max_length` is more than the model has positions for; or a number is too small.
        ModelError: the files are not a model that this machine can run.
    """
    check_least(0, threads=threads)
    check_least(1, max_length=max_length)
    task = artifact.card.task
    if artifact.card.kind == "torch":
        return _torch_classifier(artifact, max_length)
    if artifact.card.kind == "onnx":
        check_suits(runtime, artifact)
        return onnx_classifier(
            artifact.path,
            task,
            name=artifact.name,
            parameters=_recorded_parameters(artifact),
            threads=threads,
            max_length=max_length,
            runtime=runtime,
            spinning=spinning,
        )
    if artifact.card.kind == "bundle":
        raise ModelError(
            f"{artifact.place} is a bundle for other programs, which bertender writes and does not "
            "read. Give the artifact that it was made from."
        )
    # counted as in training: two classes are stored as two rows, although one was fitted
    parameters = _recorded_parameters(artifact)
    problem = problem_of(artifact)
    predictor = BagOfWordsPredictor(artifact.path, problem)
    return Classifier(
        artifact.name,
        task.labels,
        problem.keep_text,
        predictor,
        parameters,
        problem,
        task.text_count,
    )


def onnx_classifier(
    directory: Path,
    task: TaskRecord,
    *,
    name: str,
    parameters: int,
    threads: int = 0,
    max_length: int | None = None,
    runtime: str = DEFAULT_RUNTIME,
    spinning: bool = True,
) -> Classifier:
    """Open the directory of an ONNX graph and a tokenizer: an artifact, or its draft."""
    problem = problem_of_task(task)
    if max_length is not None:
        from bertender.models.families import check_positions
        from bertender.models.own_models import open_config

        check_positions(max_length, open_config(str(directory), local_files_only=True))
    tokenizer = load_tokenizer(directory, max_length)
    predictor = RUNTIMES[runtime].open(directory / ONNX_NAME, threads, spinning=spinning)
    check_tokens(directory / ONNX_NAME, tokenizer)
    problem = problem.reading(tokenizer)
    return Classifier(
        name,
        task.labels,
        problem.encoder(tokenizer),
        predictor,
        parameters,
        problem,
        task.text_count,
    )


def onnx_file(artifact: Artifact) -> Path:
    """Return the path of an ONNX artifact's graph."""
    return artifact.path / ONNX_NAME


def _torch_classifier(artifact: Artifact, max_length: int | None) -> Classifier:
    from bertender.models.families import check_positions

    # PyTorch has one thread count for the whole process; measurements set and restore it
    model = load_torch_classifier(artifact)
    if max_length is not None:
        check_positions(max_length, model.config)
    return torch_classifier_of(artifact, model, load_tokenizer(artifact.path, max_length))


def torch_classifier_of(
    artifact: Artifact, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Classifier:
    """Return the classifier of a torch artifact's open model."""
    problem = problem_of(artifact)
    return Classifier(
        artifact.name,
        artifact.card.task.labels,
        problem.encoder(tokenizer),
        TorchPredictor(model),
        model.num_parameters(),
        problem.reading(tokenizer),
        artifact.card.task.text_count,
    )


def load_torch_classifier(artifact: Artifact, **settings: Any) -> PreTrainedModel:
    """Load the model of a torch artifact that labels texts or words, on the CPU.

    Raises:
        ModelError: transformers cannot open it from safetensors without external code, the
            classification head has no weights, a weight is not finite, or the tokenizer has more
            tokens than the embeddings have rows.
    """
    from safetensors import SafetensorError

    from bertender.models.own_models import auto_class, load_pretrained

    problem = problem_of(artifact)
    try:
        model, report = load_pretrained(
            auto_class(problem.model_class), str(artifact.path), local_files_only=True, **settings
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"transformers cannot open {artifact.place}: {error}") from None
    if report["missing_keys"]:
        raise ModelError(
            f"{artifact.place} (stage {artifact.card.stage!r}) is not a classifier: it has no "
            f"weights for {', '.join(sorted(report['missing_keys']))}. Fine-tune it on a task "
            "first."
        )
    for name, value in problem.model_settings.items():
        setattr(model.config, name, value)
    table: Any = model.get_input_embeddings()
    check_rows(load_tokenizer(artifact.path), table.num_embeddings, artifact.place)
    return model


def _recorded_parameters(artifact: Artifact) -> int:
    """Return the number of parameters from the card, the only place that has it."""
    if (parameters := artifact.card.findings.parameters) is None:
        raise ModelError(
            f"the card of {artifact.place} has no number of parameters. Build it again (stage "
            f"{artifact.card.stage!r})."
        )
    return parameters


def problem_of(artifact: Artifact) -> Problem[Any]:
    """Return an artifact's kind of problem; see `problem_of_task`."""
    return problem_of_task(artifact.card.task)


def input_names(model: torch.nn.Module) -> list[str]:
    """Return the token columns that a model takes.

    DistilBERT has no segments. Some models (klue/roberta-base) have only one segment, whatever
    their tokenizer gives the second text of a pair, and are run without segments.
    """
    own = getattr(model, "module", model)
    accepted = inspect.signature(own.forward).parameters
    one_segment = getattr(getattr(own, "config", None), "type_vocab_size", None) in (0, 1)
    lacking = {"token_type_ids"} if one_segment else set[str]()
    return [name for name in SEQUENCE_COLUMNS if name in accepted and name not in lacking]


def model_inputs(
    model: torch.nn.Module, batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the token columns of a batch that a model takes."""
    return {name: batch[name] for name in input_names(model) if name in batch}


class TorchPredictor:
    """A transformers model with a classification head, in eval mode, in its own precision.

    Arrays that the model does not take are left out.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.inputs = input_names(model)

    def logits(self, batch: Batch) -> FloatArray:
        import torch  # already loaded by the model

        tensors = {
            name: torch.from_numpy(batch.arrays[name]).to(self.model.device)
            for name in self.inputs
            if name in batch.arrays
        }
        with torch.inference_mode():
            logits = self.model(**tensors).logits
        return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)


class BagOfWordsPredictor:
    """TF-IDF and logistic regression, loaded from safetensors and JSON (never from a pickle)."""

    def __init__(self, directory: Path, problem: Problem[Any] = SINGLE_LABEL) -> None:
        from safetensors.numpy import load_file
        from sklearn.feature_extraction.text import TfidfVectorizer

        settings = json.loads((directory / "vocabulary.json").read_text(encoding="utf-8"))
        weights = load_file(directory / "model.safetensors")
        self.vectorizer = TfidfVectorizer(
            vocabulary=settings["vocabulary"],
            ngram_range=tuple(settings["ngram_range"]),
            sublinear_tf=settings["sublinear_tf"],
        )
        self.problem = problem
        self.vectorizer.idf_ = weights["idf"]
        self.coefficients = weights["coefficients"]  # (labels, features)
        self.intercepts = weights["intercepts"]  # (labels,)

    def logits(self, batch: Batch) -> FloatArray:
        texts = self.problem.asked(batch.examples)
        features = self.vectorizer.transform([" ".join(example) for example in texts])
        return np.asarray(features @ self.coefficients.T + self.intercepts, dtype=np.float32)
