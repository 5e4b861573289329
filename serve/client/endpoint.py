"""Endpoint: texts in, predictions out, one request after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from bertender.core.errors import BertenderError, DeadlineError
from bertender.text.batch import Batch
from bertender.text.example import Example
from serve.client.address import DEFAULT_URL
from serve.client.connection import DEFAULT_TIMEOUT_S, Connection, ConnectionSettings
from serve.client.retries import Tries, on_opening
from serve.client.served_model import Classification, Columns, ResponseTensors, ServedModel

__all__ = ["DEFAULT_TIMEOUT_S", "Endpoint", "ServedPredictor", "classify"]


class Endpoint(Connection):
    """A connection to a served classifier. It belongs to the thread that opened it.

    Args:
        url: `http://host:port` or `grpc://host:port`, `https://` or `grpcs://` with TLS; without a
            scheme it is http.
        model: its name on the server.
        batch_size: texts a request; by default, and at most, what the model takes.
        timeout_s: longest wait for the response to one request, its retries included.
        retries: how often a request is sent again where the server rejects it for now, or nothing
            listens; by default until `timeout_s` is over, and OPENING_RETRIES times on opening.
            Other failures are never retried.
        access: files of TLS and of an API key, for a server behind a proxy.

    Raises:
        OverloadedError: the server rejects the request for now.
        UnreachableError: no endpoint responds at the url.
        DeadlineError: the response takes longer than `timeout_s`.
        ServingError: the server refuses, or serves no classifier; the root of the three above.
        ConfigError: the url is none, its scheme is not a row of SCHEMES, or a file of the access
            cannot be used.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        batch_size: int | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        super().__init__(url, **settings)
        try:
            response = self._call(self.ask_for_config, on_opening(self.retries))
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
        """End the connection."""
        if self.client is not None:
            self.client.close()
        self.client = None  # frees it now: freed at exit, tritonclient would print a traceback

    def classify(self, examples: Sequence[Example]) -> list[Classification]:
        """Return a prediction for each example, in their order.

        Raises:
            DataError: an example is nothing that the model can read; its row is named.
            ServingError: the server went away, or refused; see the class.
        """
        known = self.model.examples(examples)
        return self.model.classifications([*self._ask_all(known)], known)

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits of one example or more, (batch, labels) or, where words have labels,
        (batch, words, labels); errors as in `classify`."""
        return self.problem.endpoint.logits([*self._ask_all(examples)])

    def _ask_all(self, examples: Sequence[Example]) -> Iterator[ResponseTensors]:
        """Yield the outputs of one request after another, each of at most `batch_size` texts."""
        for columns in self.model.requests(examples, self.batch_size):
            yield self._ask(columns)

    def _ask(self, columns: Columns) -> ResponseTensors:
        inputs = self.model.tensors(columns, self.protocol.tensor)
        result = self._call(
            lambda client, timeout_s: self.protocol.infer(
                client, self.model_name, inputs, timeout_s, self.access.headers
            ),
            self.retries,
        )
        return self.model.response(result)

    def _call(self, ask: Callable[[Any, float], Any], retries: int | None) -> Any:
        """Return what one request gets, after as many tries as it needs and may have."""
        tries = Tries(self.timeout_s, retries)
        while True:
            if self.client is None:
                self.client = self.protocol.connect(
                    self.address.host_and_port, self.access, self.timeout_s
                )
            remaining_s = tries.remaining_s
            try:
                with self.protocol.limit(remaining_s):
                    return ask(self.client, remaining_s)
            except Exception as error:
                time.sleep(self.wait_after(error, tries))

    def wait_after(self, error: Exception, tries: Tries) -> float:
        try:
            return super().wait_after(error, tries)
        except DeadlineError:
            self.close()  # a response that comes yet would be taken for that of the next request
            raise


class ServedPredictor:
    """A predictor behind an endpoint; encode its batches with its problem's `keep_text`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self.endpoint.logits(batch.examples)


def classify(
    examples: Sequence[Example],
    url: str = DEFAULT_URL,
    *,
    batch_size: int | None = None,
    **settings: Unpack[ConnectionSettings],
) -> list[Classification]:
    """Ask the endpoint at `url` about some examples; arguments and errors as in `Endpoint`."""
    with Endpoint(url, batch_size=batch_size, **settings) as endpoint:
        return endpoint.classify(examples)
