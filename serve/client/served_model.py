"""The model behind an endpoint: what it reads, and how its responses are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.problems import PROBLEMS, SINGLE_LABEL, ProblemType
from bertender.text.example import Example, to_examples
from serve.wire import INPUT_NAMES, MODEL_NAME, to_arrays

__all__ = ["Classification", "Columns", "ResponseTensors", "ServedModel"]

Columns = Sequence[npt.NDArray[np.object_]]
"""The texts of a request: an array (batch, 1) for each text column."""

ResponseTensors = dict[str, npt.NDArray[Any]]


class Classification(Record):
    """Prediction of the endpoint for one example."""

    label: str | tuple[str, ...] = Field(description="one, one for each word, or all of a text")
    score: float | tuple[float, ...]
    logits: tuple[float, ...] | tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ServedModel:
    """What a model's configuration says to its clients."""

    max_batch_size: int
    text_columns: int
    problem: ProblemType[Any]
    digest: str
    """Of the artifact; of the configuration, where an earlier version wrote the repository."""
    name: str = MODEL_NAME

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a configuration; those of earlier versions name no problem type."""
        values = config.get("parameters", {}).items()
        parameters = {name: value["string_value"] for name, value in values}
        plain = json.dumps(config, sort_keys=True, default=str)
        return cls(
            max_batch_size=int(config["max_batch_size"]),
            text_columns=len(config["input"]),
            problem=PROBLEMS[parameters.get("problem_type", SINGLE_LABEL.name)],
            name=config.get("name") or MODEL_NAME,
            digest=parameters.get("digest") or hashlib.sha256(plain.encode()).hexdigest(),
        )

    def examples(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples as the model reads them: a sentence that came as one text has words.

        Raises:
            DataError: an example is nothing that the model can read.
        """
        endpoint = self.problem.endpoint
        return [endpoint.to_example(endpoint.to_texts(each)) for each in to_examples(examples)]

    def requests(self, examples: Sequence[Example], batch_size: int) -> list[Columns]:
        """Return the requests for some examples, each of at most `batch_size` texts.

        Raises:
            DataError: an example is nothing that the model can read; its row is named.
        """
        texts = [self.problem.endpoint.to_texts(each) for each in to_examples(examples)]
        columns = to_arrays(texts, self.text_columns)
        return [
            [column[start : start + batch_size] for column in columns]
            for start in range(0, len(texts), batch_size)
        ]

    def tensors(self, columns: Columns, tensor: Any) -> list[Any]:
        """Return the input tensors of a request, of a protocol's own class."""
        inputs = []
        for name, column in zip(INPUT_NAMES, columns, strict=False):
            inputs.append(tensor(name, list(column.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(column)
        return inputs

    def response(self, result: Any) -> ResponseTensors:
        """Return the tensors of a result."""
        return {each.name: result.as_numpy(each.name) for each in self.problem.endpoint.outputs}

    def classifications(
        self, responses: Sequence[ResponseTensors], examples: Sequence[Example]
    ) -> list[Classification]:
        """Return the predictions that responses hold for examples, both in their order."""
        rows = self._rows(responses)
        return [
            Classification(**self.problem.endpoint.read(tensors, row, example))
            for (tensors, row), example in zip(rows, examples, strict=True)
        ]

    def _rows(self, responses: Sequence[ResponseTensors]) -> Iterator[tuple[ResponseTensors, int]]:
        for tensors in responses:
            for row in range(len(tensors["LABEL"])):
                yield tensors, row
