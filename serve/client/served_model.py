"""The model behind an endpoint: what it reads, and how its responses are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example, to_examples
from serve.wire import INPUT_NAMES, MODEL_NAME, TRUNCATED, to_arrays

Columns = Sequence[npt.NDArray[np.object_]]
"""The texts of a request: an array (batch, 1) for each text column."""

ResponseTensors = dict[str, npt.NDArray[Any]]


MOST_REQUEST_BYTES = 512 * 1024
"""Of the texts in a request that has several; a proxy may let no body through beyond 1 MB."""


class Classification(Record):
    """Prediction of the endpoint for one example."""

    label: str | tuple[str, ...] = Field(description="one, one for each word, or all of a text")
    score: float | tuple[float, ...]
    logits: tuple[float, ...] | tuple[tuple[float, ...], ...]
    truncated: bool = Field(
        False, description="whether the text was longer than the model's input, and was cut"
    )


@dataclass(frozen=True)
class ServedModel:
    """What a model's configuration says to its clients."""

    max_batch_size: int
    text_columns: int
    problem: Problem[Any]
    digest: str
    """Of the artifact; of the configuration, where an earlier version wrote the repository."""
    name: str = MODEL_NAME
    longest_input: int | None = None
    """Most tokens of an example that the model reads, where its configuration says so."""

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
            longest_input=int(parameters.get("max_length") or parameters.get("longest_input") or 0)
            or None,
        )

    def examples(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples as the model reads them: a sentence that came as one text has words.

        Raises:
            DataError: an example is nothing that the model can read.
        """
        problem = self.problem
        return [problem.to_example(problem.to_texts(each)) for each in to_examples(examples)]

    def columns(self, examples: Sequence[Example]) -> Columns:
        """Return the texts of one request for some examples.

        Raises:
            DataError: an example is nothing that the model can read; its row is named.
        """
        texts = [self.problem.to_texts(each) for each in to_examples(examples)]
        return to_arrays(texts, self.text_columns)

    def requests(self, examples: Sequence[Example], batch_size: int) -> list[Columns]:
        """Return the requests for some examples, each of at most `batch_size` texts, and of fewer
        where they are long; errors as in `columns`."""
        columns = self.columns(examples)
        ends, size_bytes = [0], 0
        for row in range(len(examples)):
            own_bytes = sum(len(column[row, 0]) for column in columns)
            size_bytes += own_bytes
            rows = row - ends[-1]
            if rows == batch_size or (rows and size_bytes > MOST_REQUEST_BYTES):
                ends.append(row)
                size_bytes = own_bytes
        ends.append(len(examples))
        return [
            [column[start:end] for column in columns]
            for start, end in pairwise(ends)
            if end > start
        ]

    def tensors(self, columns: Columns, tensor: Any) -> list[Any]:
        """Return the input tensors of a request, of a protocol's own class."""
        inputs = []
        for name, column in zip(INPUT_NAMES, columns, strict=False):
            inputs.append(tensor(name, list(column.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(column)
        return inputs

    def response(self, result: Any) -> ResponseTensors:
        """Return the tensors of a result; of an earlier version's, none says what was cut."""
        names = (*(each.name for each in self.problem.response_tensors), TRUNCATED)
        tensors = {name: result.as_numpy(name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def classifications(
        self, responses: Sequence[ResponseTensors], examples: Sequence[Example]
    ) -> list[Classification]:
        """Return the predictions that responses hold for examples, both in their order."""
        rows = ((tensors, row) for tensors in responses for row in range(len(tensors["LABEL"])))
        return [
            Classification(
                **self.problem.read_response(tensors, row, example),
                truncated=bool(TRUNCATED in tensors and tensors[TRUNCATED][row].any()),
            )
            for (tensors, row), example in zip(rows, examples, strict=True)
        ]

    def cut_texts(self, count: int, texts: int) -> str | None:
        """Return in words how many of some texts were cut, and to what; None where none was."""
        if not count:
            return None
        length = f"{self.longest_input} tokens" if self.longest_input else "the model's input"
        return f"{count} of {texts} texts {'was' if count == 1 else 'were'} cut to {length}"
