"""Endpoint and AsyncEndpoint: texts in, predictions out, by sequential or concurrent requests.

`ServedModel` builds the requests of examples, and `Tries` decides on retries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from bertender.core.artifact import Label
from bertender.core.config import Record, check_least
from bertender.core.errors import BertenderError, ServingError
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem
from bertender.text.batch import Batch, Example, to_examples
from serve.client.access import DEFAULT_URL, NO_ACCESS, AccessConfig, open_access, parse_url
from serve.client.protocols import DEFAULT_TIMEOUT_S, OPENING_RETRIES, PROTOCOLS, Tries
from serve.wire import (
    ABSTAINED,
    MODEL_NAME,
    TRUNCATED,
    input_names,
    to_arrays,
    with_later_row,
)

Columns = Sequence[npt.NDArray[np.object_]]
"""The texts of a request: an array for each input, (batch, 1) or (batch, passages)."""

ResponseTensors = dict[str, npt.NDArray[Any]]


MOST_REQUEST_BYTES = 512 * 1024
"""Most bytes in a request of several texts, since a proxy may refuse bodies beyond 1 MB."""


class TextSpan(Record):
    """A span of characters of a text, such as a name."""

    label: str = Field(description="the type of entity, or the tag of plain ones")
    score: float = Field(description="mean probability of the tags of its parts")
    start: int = Field(
        description="character of the text as sent; of words, with one space between them"
    )
    end: int = Field(description="the character after its last")
    text: str


class RankedPassage(Record):
    """A passage of a query, and its score."""

    number: int = Field(description="its place in the request, from 0")
    score: float
    text: str


Scores = float | tuple[float, ...] | None
Logits = tuple[float, ...] | tuple[tuple[float, ...], ...]


class Classification(Record):
    """Prediction of the endpoint for one example."""

    label: Label | dict[str, Label] = Field(
        description="one, one for each word, or all of a text; or a number; or the numbers of "
        "passages, the best first; None of a vector; of several heads, that of each by "
        "its name"
    )
    score: Scores | dict[str, Scores] = Field(
        description="probability of each label; None of a number, a vector or a ranking; likewise "
        "by head"
    )
    logits: Logits | dict[str, Logits] = Field(
        description="or the number itself, or the vector, or the scores of passages as sent; "
        "likewise by head"
    )
    spans: tuple[TextSpan, ...] | None = Field(
        None, description="of a tagger: what it has found in the text; None of other models"
    )
    ranking: tuple[RankedPassage, ...] | None = Field(
        None, description="the passages of a query, the best first; None of other models"
    )
    truncated: bool = Field(
        False, description="whether the text was longer than the model's input, and was cut"
    )

    abstained: bool | None = Field(
        None,
        description="whether the model is less sure than the server's --abstain-below; None of a "
        "server without it",
    )

    def by_head(self, problem: Problem[Any]) -> Mapping[str, Classification]:
        """Return the prediction of each head of a model with several heads."""
        values = (self.label, self.score, self.logits)
        label, score, logits = (value if isinstance(value, dict) else {} for value in values)
        return {
            name: Classification(
                label=label[name],
                score=score[name],
                logits=logits[name],
                spans=self.spans if kind.labels_words else None,
                truncated=self.truncated,
                abstained=self.abstained,
            )
            for name, kind in problem.heads.items()
        }

    @model_serializer(mode="wrap")
    def _without_missing_fields(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = plain(self)
        for name in ("spans", "ranking", "abstained"):
            if values[name] is None:
                del values[name]
        return values


IDENTITY = ("digest", "runtime", "max_length", "abstain_below")
"""Parameters of a configuration that predictions depend on: the artifact, and settings."""


@dataclass(frozen=True)
class ServedModel:
    """A served model, as its configuration describes it to clients."""

    max_batch_size: int
    text_columns: int
    problem: Problem[Any]
    digest: str
    """Digest of the artifact."""
    name: str = MODEL_NAME
    longest_input: int | None = None
    """Longest input of the model in tokens, if its configuration has it."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Parameters that predictions depend on."""

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a configuration.

        Raises:
            ServingError: the model is not one of `bertender serve`.
        """
        values = config.get("parameters", {}).items()
        parameters = {name: value["string_value"] for name, value in values}
        if "problem_type" not in parameters:
            raise ServingError(
                f"the model {config['name']!r} was not written by `bertender serve`, so that what "
                "it answers is unknown. Give the name of one that was, with model= (--model)."
            )
        return cls(
            max_batch_size=int(config["max_batch_size"]),
            text_columns=len(config["input"]),
            problem=PROBLEMS[parameters["problem_type"]],
            name=config["name"],
            digest=parameters["digest"],
            longest_input=int(parameters.get("max_length") or parameters.get("longest_input") or 0)
            or None,
            identity={name: parameters[name] for name in IDENTITY if name in parameters},
        )

    def examples(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples in the model's form: a sentence given as a text is split into words.

        Raises:
            DataError: an example does not fit the model.
        """
        problem = self.problem
        return [problem.to_example(problem.to_texts(each)) for each in to_examples(examples)]

    def columns(self, examples: Sequence[Example]) -> Columns:
        """Return the texts of one request for some examples.

        Raises:
            DataError: an example does not fit the model; the message has its row.
        """
        texts = [self.problem.to_texts(each) for each in to_examples(examples)]
        return to_arrays(texts, self.text_columns, self.problem.takes_list)

    def requests(self, examples: Sequence[Example], batch_size: int) -> list[tuple[int, Columns]]:
        """Return the requests for examples, each of at most `batch_size` texts, fewer if they are
        long, and the row of each one's first example; errors as in `columns`."""
        columns = self.columns(examples)
        ends, size_bytes = [0], 0
        for row in range(len(examples)):
            own_bytes = sum(len(text) for column in columns for text in column[row])
            size_bytes += own_bytes
            rows = row - ends[-1]
            if rows == batch_size or (rows and size_bytes > MOST_REQUEST_BYTES):
                ends.append(row)
                size_bytes = own_bytes
        ends.append(len(examples))
        return [
            (start, [column[start:end] for column in columns])
            for start, end in pairwise(ends)
            if end > start
        ]

    def tensors(self, columns: Columns, tensor: Any) -> list[Any]:
        """Return the input tensors of a request, made by `tensor` of a protocol."""
        inputs = []
        names = input_names(len(columns), self.problem.takes_list)
        for name, column in zip(names, columns, strict=True):
            inputs.append(tensor(name, list(column.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(column)
        return inputs

    def response(self, result: Any) -> ResponseTensors:
        """Return the tensors of a result that it has."""
        names = (*(each.name for each in self.problem.response_tensors), TRUNCATED, ABSTAINED)
        tensors = {name: result.as_numpy(name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def classifications(
        self, responses: Sequence[ResponseTensors], examples: Sequence[Example]
    ) -> list[Classification]:
        """Return the predictions in responses for examples, in order."""
        first = self.problem.response_tensors[0].name
        rows = ((tensors, row) for tensors in responses for row in range(len(tensors[first])))
        return [
            Classification(
                **self.problem.read_response(tensors, row, example),
                truncated=bool(TRUNCATED in tensors and tensors[TRUNCATED][row].any()),
                abstained=bool(tensors[ABSTAINED][row].any()) if ABSTAINED in tensors else None,
            )
            for (tensors, row), example in zip(rows, examples, strict=True)
        ]

    def cut_texts(self, count: int, texts: int) -> str | None:
        """Return a message about how many texts were cut, and to which length; None if none was."""
        if not count:
            return None
        length = f"{self.longest_input} tokens" if self.longest_input else "the model's input"
        return f"{count} of {texts} texts {'was' if count == 1 else 'were'} cut to {length}"


DEFAULT_CONCURRENCY = 4


class ConnectionSettings(TypedDict, total=False):
    """Common settings of connections; see `Endpoint`."""

    model: str
    timeout_s: float
    retries: int | None
    access: AccessConfig


class Connection:
    """Base of clients of one model of a server: limits of its requests, and its errors."""

    model: ServedModel

    def __init__(
        self,
        url: str,
        *,
        model: str = MODEL_NAME,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int | None = None,
        access: AccessConfig = NO_ACCESS,
    ) -> None:
        check_least(0, retries=retries)
        self.url = url
        self.model_name = model
        self.timeout_s = timeout_s
        self.retries = retries
        self.opening_retries = OPENING_RETRIES if retries is None else retries
        """Retries of the first request, which asks for the model's configuration."""
        self.address = parse_url(url)
        self.protocol = PROTOCOLS[self.address.protocol]
        self.access = open_access(self.address, access)
        self.client: Any = None

    def _ask_for_config(self, client: Any, timeout_s: float) -> Any:
        """Request the configuration of the served model; an awaitable for an asyncio client."""
        return self.protocol.model_config(client, self.model_name, timeout_s, self.access.headers)

    def _request(self, columns: Columns) -> Callable[[Any, float], Any]:
        """Return a function that requests predictions for texts; awaitable likewise."""
        inputs = self.model.tensors(columns, self.protocol.tensor)
        return lambda client, timeout_s: self.protocol.infer(
            client, self.model_name, inputs, timeout_s, self.access.headers
        )

    def _wait_after(self, error: Exception, tries: Tries) -> float:
        """Return how long to wait before the next try of a request.

        Raises:
            ServingError: no try is left; the error has the next step.
            Exception: the error itself, if it is not an error of the client library.
        """
        failure = self.protocol.failure(error)
        if failure is None:
            raise error
        reason = str(error) or type(error).__name__
        return tries.wait_after(failure, failure.explained(self.url, reason))


@contextmanager
def _rows_from(start: int) -> Iterator[None]:
    """Let the row in an error be that of all examples, of which a request begins at `start`."""
    try:
        yield
    except ServingError as error:
        if (message := with_later_row(str(error), start)) != str(error):
            raise type(error)(message) from None
        raise


class Endpoint(Connection):
    """A connection to a served classifier, for any thread; a forked process opens its own.

    Args:
        url: `http://host:port` or `grpc://host:port`, `https://` or `grpcs://` with TLS; without a
            scheme it is http.
        model: name of the model on the server.
        batch_size: texts per request; by default, and at most, the model's limit.
        timeout_s: longest wait for the response to a request, with its retries.
        retries: how often a request is sent again if the server is overloaded or nothing listens;
            by default until `timeout_s` is over, and OPENING_RETRIES times on opening. Other
            failures are never retried.
        access: files of TLS and of an API key, for a server behind a proxy.

    Raises:
        OverloadedError: the server is overloaded and rejects the request.
        UnreachableError: no endpoint responds at the url.
        DeadlineError: the response takes longer than `timeout_s`.
        ServingError: the server refuses, or serves no classifier; the base of the three above.
        ConfigError: the url is malformed, its scheme is not in URL_SCHEMES, a file of the access
            cannot be used, or a number is too small.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        batch_size: int | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        check_least(1, batch_size=batch_size)
        super().__init__(url, **settings)
        try:
            response = self._call(self._ask_for_config, self.opening_retries)
            self.model = ServedModel.from_model_config(self.protocol.config_of(response))
        except BertenderError:
            self.close()
            raise
        self.batch_size = min(batch_size or self.model.max_batch_size, self.model.max_batch_size)
        self.text_columns = self.model.text_columns
        self.problem = self.model.problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self.client is not None:
            self.client.close()
        self.client = None

    def classify(self, examples: Sequence[Example]) -> list[Classification]:
        """Return a prediction for each example, in order.

        Raises:
            DataError: an example does not fit the model; the message has its row.
            ServingError: the server went away, or refused; see the class.
        """
        known = self.model.examples(examples)
        return self.model.classifications([*self._ask_all(examples)], known)

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits of examples, (batch, labels), or (batch, words, labels) where words
        have labels; errors as in `classify`."""
        return self.problem.joined_logits([*self._ask_all(examples)])

    def _ask_all(self, examples: Sequence[Example]) -> Iterator[ResponseTensors]:
        """Yield the outputs of sequential requests of at most `batch_size` texts."""
        for start, columns in self.model.requests(examples, self.batch_size):
            with _rows_from(start):
                response = self._call(self._request(columns), self.retries)
            yield self.model.response(response)

    def _call(self, ask: Callable[[Any, float], Any], retries: int | None) -> Any:
        """Return the response to a request, with retries."""
        if self.client is None:  # before the time counts, since the first use imports the library
            self.client = self.protocol.connect(self.address.host_and_port, self.access)
        tries = Tries(self.timeout_s, retries)
        while True:
            remaining_s = tries.remaining_s
            try:
                return ask(self.client, remaining_s)
            except Exception as error:
                wait_s = self._wait_after(error, tries)
            time.sleep(wait_s)


class AsyncEndpoint(Connection):
    """Connections to a served classifier, for `async with`, in one event loop.

    Args:
        url, model: as in `Endpoint`.
        batch_size: texts per request; by default, and at most, the model's limit.
        concurrency: most concurrent requests, over all callers.
        timeout_s: longest wait for the response to a request, with its retries, counted from when
            the request is sent.
        retries: as in `Endpoint`.
        access: as in `Endpoint`.

    Raises (on entering): as `Endpoint`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        batch_size: int | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        check_least(1, batch_size=batch_size, concurrency=concurrency)
        super().__init__(url, **settings)
        self.concurrency = concurrency
        self.turns = asyncio.Semaphore(concurrency)
        self.asked_batch_size = batch_size

    async def __aenter__(self) -> Self:
        self.client = self.protocol.connect_async(self.address.host_and_port, self.access)
        try:
            self.model = await self._served_model(self.opening_retries)
        except BaseException:
            await self.close()
            raise
        most = self.model.max_batch_size
        self.batch_size = min(self.asked_batch_size or most, most)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self.client is not None:
            await self.client.close()
        self.client = None

    async def is_same_model(self) -> bool:
        """Return whether the model predicts as on opening: it is the same, with the same
        settings."""
        return (await self._served_model(self.retries)).identity == self.model.identity

    async def _served_model(self, retries: int | None) -> ServedModel:
        response = await self._call(self._ask_for_config, retries)
        return ServedModel.from_model_config(self.protocol.config_of(response))

    async def classify(self, examples: Sequence[Example]) -> list[Classification]:
        """Return a prediction for each example, in order; errors as in `Endpoint`.

        The first request that fails cancels the others.
        """
        known = self.model.examples(examples)
        requests = self.model.requests(examples, self.batch_size)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(*request)) for request in requests]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self.model.classifications([task.result() for task in tasks], known)

    async def _ask(self, start: int, columns: Columns) -> ResponseTensors:
        request = self._request(columns)
        async with self.turns:
            with _rows_from(start):
                response = await self._call(request, self.retries)
        return self.model.response(response)

    async def _call(self, ask: Callable[[Any, float], Awaitable[Any]], retries: int | None) -> Any:
        """Return the response to a request, with retries."""
        tries = Tries(self.timeout_s, retries)
        while True:
            remaining_s = tries.remaining_s
            try:
                async with self.protocol.limit_async(remaining_s):
                    return await ask(self.client, remaining_s)
            except Exception as error:
                wait_s = self._wait_after(error, tries)
            await asyncio.sleep(wait_s)


class ServedPredictor:
    """A predictor behind an endpoint; its batches are encoded with the problem's `keep_text`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self.endpoint.logits(self.endpoint.problem.asked(batch.examples))


def classify(
    examples: Sequence[Example],
    url: str = DEFAULT_URL,
    *,
    batch_size: int | None = None,
    **settings: Unpack[ConnectionSettings],
) -> list[Classification]:
    """Classify examples with the endpoint at `url`; arguments and errors as in `Endpoint`."""
    with Endpoint(url, batch_size=batch_size, **settings) as endpoint:
        return endpoint.classify(examples)
