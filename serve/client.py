"""Client of an endpoint: texts in, predictions out, over HTTP or gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http
from geventhttpclient import HTTPParseError
from pydantic import Field
from tritonclient.utils import InferenceServerException

from bertender.core.config import Record
from bertender.core.errors import ConfigError, ServingError, UnknownNameError
from bertender.problems import PROBLEMS, SINGLE_LABEL, ProblemType
from serve.wire import INPUT_NAMES, MODEL_NAME, TRUNCATE, to_arrays

if TYPE_CHECKING:  # at run time it would load transformers into a client that only asks
    from bertender.text.batch import Batch
from bertender.text.example import Example

__all__ = [
    "DEFAULT_URL",
    "PROTOCOLS",
    "Classification",
    "Endpoint",
    "Protocol",
    "ServedPredictor",
    "classify",
]

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S = 60.0

ResponseTensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Protocol:
    """Differences between tritonclient's two modules."""

    default_port: int
    tensor: Callable[..., Any]
    connect: Callable[[str, float], Any]
    timeout: Callable[[float], Mapping[str, float]]
    model_config: Callable[..., dict[str, Any]]


def _connect_http(address: str, timeout_s: float) -> Any:
    return tritonclient.http.InferenceServerClient(
        address, connection_timeout=timeout_s, network_timeout=timeout_s
    )


def _connect_grpc(address: str, timeout_s: float) -> Any:
    return tritonclient.grpc.InferenceServerClient(address)


def _http_model_config(client: Any, timeout: Mapping[str, float]) -> dict[str, Any]:
    return dict(client.get_model_config(MODEL_NAME))


def _grpc_model_config(client: Any, timeout: Mapping[str, float]) -> dict[str, Any]:
    return dict(client.get_model_config(MODEL_NAME, as_json=True, **timeout)["config"])


PROTOCOLS: Mapping[str, Protocol] = {
    "http": Protocol(
        default_port=8000,
        tensor=tritonclient.http.InferInput,
        connect=_connect_http,
        timeout=lambda timeout_s: {},  # the connection holds it
        model_config=_http_model_config,
    ),
    "grpc": Protocol(
        default_port=8001,
        tensor=tritonclient.grpc.InferInput,
        connect=_connect_grpc,
        timeout=lambda timeout_s: {"client_timeout": timeout_s},
        model_config=_grpc_model_config,
    ),
}


class Classification(Record):
    """Prediction of the endpoint for one example."""

    label: str | tuple[str, ...] = Field(description="one, one for each word, or all of a text")
    score: float | tuple[float, ...]
    logits: tuple[float, ...] | tuple[tuple[float, ...], ...]


class Endpoint:
    """A connection to a served classifier. It belongs to the thread that opened it.

    Args:
        url: `http://host:port` or `grpc://host:port`; without a scheme it is http.
        batch_size: texts a request; by default, and at most, what the model takes.
        timeout_s: longest wait for the response to one request.

    Raises:
        ServingError: no endpoint responds at the url, or it serves no classifier.
        ConfigError: the url is none; its scheme is neither http nor grpc.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        batch_size: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.url = url
        self.protocol, address = _parse(url)
        self.timeout = self.protocol.timeout(timeout_s)
        self.client = self.protocol.connect(address, timeout_s)
        try:
            with self._explaining():
                config = self.protocol.model_config(self.client, self.timeout)
        except ServingError:
            self.close()
            raise
        most = int(config["max_batch_size"])
        self.batch_size = min(batch_size or most, most)
        self.text_columns = len(config["input"])
        self.problem = _problem_of(config)

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
            ServingError: the server went away, or refused.
        """
        endpoint = self.problem.endpoint
        # a sentence may come as one text, and is labelled word by word
        known = [endpoint.to_example(endpoint.to_texts(example)) for example in examples]
        asked = iter(known)
        return [
            Classification(**endpoint.read(outputs, row, next(asked)))
            for outputs in self._ask_all(known)
            for row in range(len(outputs["LABEL"]))
        ]

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits of one example or more, (batch, labels) or, where words have labels,
        (batch, words, labels); errors as in `classify`."""
        return self.problem.endpoint.logits([*self._ask_all(examples)])

    def _ask_all(self, examples: Sequence[Example]) -> Iterator[ResponseTensors]:
        """Yield the outputs of one request after another, each of at most `batch_size` texts."""
        texts = [self.problem.endpoint.to_texts(example) for example in examples]
        columns = to_arrays(texts, self.text_columns)
        for start in range(0, len(examples), self.batch_size):
            yield self._ask([column[start : start + self.batch_size] for column in columns])

    def _ask(self, columns: Sequence[npt.NDArray[np.object_]]) -> ResponseTensors:
        inputs = []
        for name, column in zip(INPUT_NAMES, columns, strict=False):
            tensor = self.protocol.tensor(name, list(column.shape), "BYTES")
            tensor.set_data_from_numpy(column)
            inputs.append(tensor)
        with self._explaining():
            parameters = {TRUNCATE: True}
            result = self.client.infer(MODEL_NAME, inputs, parameters=parameters, **self.timeout)
        return {each.name: result.as_numpy(each.name) for each in self.problem.endpoint.outputs}

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn the client libraries' errors into errors with the next step."""
        try:
            yield
        except InferenceServerException as error:
            if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"):
                raise self._unreachable(error) from None
            raise ServingError(f"the server at {self.url} refused: {error.message()}") from None
        except (OSError, RuntimeError, ValueError, HTTPParseError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> ServingError:
        return ServingError(
            f"no endpoint responds at {self.url} ({error}). Start one with `bertender serve "
            "ARTIFACT`, or give the address of a running one with --url."
        )


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
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Classification]:
    """Ask the endpoint at `url` about some examples; arguments and errors as in `Endpoint`."""
    with Endpoint(url, batch_size=batch_size, timeout_s=timeout_s) as endpoint:
        return endpoint.classify(examples)


def _problem_of(config: Mapping[str, Any]) -> ProblemType[Any]:
    """Return the row that a model's configuration names; those of earlier versions name none."""
    parameter = config.get("parameters", {}).get("problem_type", {})
    return PROBLEMS[parameter.get("string_value", SINGLE_LABEL.name)]


def _parse(url: str) -> tuple[Protocol, str]:
    """Return the protocol of a url, and its `host:port`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in PROTOCOLS:
        raise UnknownNameError("protocol", parts.scheme, PROTOCOLS)
    protocol = PROTOCOLS[parts.scheme]
    try:
        host, port = parts.netloc, parts.port
    except ValueError as error:
        raise ConfigError(f"url {url!r}: {error}. Write http://host:port.") from None
    if not host:
        raise ConfigError(f"url {url!r} names no host. Write http://host:port.")
    return protocol, host if port else f"{host}:{protocol.default_port}"
