"""The seam that parity, metrics and latency stand on: `Predictor.logits(batch)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.errors import ModelError
from bertender.problems import PROBLEMS
from bertender.problems.problem import Outputs, Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Encode, Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# --- from bertender.models.recorded_problem
# The problem type of an artifact's model, found without a library of models.


def problem_of(artifact: Artifact) -> Problem[Any]:
    """Return the row of PROBLEMS of an artifact's model.

    Of an encoder, which has none, the first row: opening it then raises the error of what it lacks.
    """
    return problem_of_task(artifact.card.task)


def problem_of_task(task: TaskRecord) -> Problem[Any]:
    """Return the same of the task that a card records."""
    problem: Problem[Any] = PROBLEMS.get(task.problem_type, SINGLE_LABEL)
    return problem


# --- from bertender.models.predictor
# The seam that parity, metrics and latency stand on: `Predictor.logits(batch)`.
#
# A predictor is PyTorch, a row of RUNTIMES, a bag of words, or (in `serve.client`) a Triton
# endpoint;
# what measures them does not know which. A `Classifier` is a predictor with its encoding step.

FloatArray = npt.NDArray[np.float32]
SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")


def input_names(model: torch.nn.Module) -> list[str]:
    """Return the token columns that a model takes.

    DistilBERT has no segments. Some that have (klue/roberta-base) know one alone, whatever their
    tokenizer calls the second text of a pair: they read it without.
    """
    own = getattr(model, "module", model)
    accepted = inspect.signature(own.forward).parameters
    one_segment = getattr(getattr(own, "config", None), "type_vocab_size", None) in (0, 1)
    lacking = {"token_type_ids"} if one_segment else set[str]()
    return [name for name in SEQUENCE_COLUMNS if name in accepted and name not in lacking]


class Predictor(Protocol):
    """Anything that returns the logits of a batch."""

    def logits(self, batch: Batch) -> FloatArray:
        """Return the logits (batch, labels) of a batch."""
        ...


@dataclass(frozen=True)
class Classifier:
    """A model that classifies texts: examples -> encode -> predictor -> logits (batch, labels)."""

    name: str
    labels: tuple[str, ...]
    encode: Encode
    predictor: Predictor
    parameters: int
    problem: Problem[Any] = SINGLE_LABEL

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
    """A transformers model with a classification head, in eval mode, in its own precision.

    Arrays that it does not take are left out.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.inputs = input_names(model)

    def logits(self, batch: Batch) -> FloatArray:
        import torch  # loaded already, by the model

        device = self.model.device
        tensors = {
            name: torch.from_numpy(batch.arrays[name]).to(device)
            for name in self.inputs
            if name in batch.arrays
        }
        with torch.inference_mode():
            logits = self.model(**tensors).logits
        return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)


class FakePredictor:
    """A predictor for tests: `compute` computes the logits of a batch."""

    def __init__(self, compute: Callable[[Batch], FloatArray]) -> None:
        self.compute = compute
        self.batches: list[Batch] = []

    def logits(self, batch: Batch) -> FloatArray:
        self.batches.append(batch)
        return self.compute(batch)
