"""Validation of inference requests of both protocols.

Requests of both protocols are read into a `Draft`, which `checked` compares with the model. Tensor
values are decoded only after their shape is validated, and JSON is decoded by types, so that the
memory for a request is proportional to its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bertender.core.errors import DataError
from serve.door.engine import Code, InferRequest, Model, RefusedError
from serve.wire import (
    BYTES,
    MOST_PASSAGES,
    PASSAGES,
    TRUNCATE,
    Tensor,
    joined,
    listed,
    split,
    to_text,
    width_of,
)

MOST_PARAMETERS = 32
MOST_PARAMETER_BYTES = 8 * 1024
"""Most bytes of the JSON of a request's or a tensor's parameters."""
MOST_ID_CHARACTERS = 256
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that would end a line of a log."""
MOST_BODY_BYTES = 64 * 2**20
BYTES_BESIDES_TEXTS = 64 * 1024
"""Most bytes of a body besides its texts."""
BYTES_BESIDES_TEXT = 64
"""Most bytes of a text's row besides the text."""
JSON_ESCAPE = 6
"""Most bytes of JSON for a byte of text: a control character as \\u0000."""
BINARY_OUTPUT = "binary_data_output"
BINARY = "binary_data"
BINARY_SIZE = "binary_data_size"


def invalid(reason: str) -> RefusedError:
    """Return the refusal of an invalid request."""
    return RefusedError(Code.INVALID, reason)


def shown(value: object) -> str:
    """Return a client's value for a message: quoted, and shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def most_body_bytes(model: Model, is_json: bool = False) -> int:
    """Return the largest size of a request body for a model."""
    texts = model.max_batch_size * len(model.inputs) * (model.max_text_bytes + BYTES_BESIDES_TEXT)
    return min(texts * (JSON_ESCAPE if is_json else 1) + BYTES_BESIDES_TEXTS, MOST_BODY_BYTES)


@dataclass(frozen=True)
class DraftTensor:
    """An input as received."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Callable[[int], Sequence[bytes]]
    """Decodes its values, whose number must equal the argument."""


@dataclass(frozen=True)
class Draft:
    """A request of either protocol, before validation."""

    id: str
    parameters: Mapping[str, object]
    inputs: Sequence[DraftTensor]
    outputs: Sequence[tuple[str, Mapping[str, object]]]
    """Names and parameters of the requested outputs; empty for all."""


@dataclass(frozen=True)
class Asked:
    """A valid request, and the requested form of its response."""

    id: str
    request: InferRequest
    outputs: Mapping[str, bool]
    """Names of the requested outputs, and whether each is binary; empty for all."""
    binary: bool
    """Whether outputs are binary by default."""

    def examples(self) -> list[tuple[bytes, ...]]:
        """Return the texts of each example, decoded on demand: a waiting request holds them once,
        in its tensors."""
        columns = []
        for each in self.request.inputs:
            rows, width = each.shape
            texts = split(each.data, rows * width)
            own = (texts[start : start + width] for start in range(0, rows * width, width))
            columns.append([listed(row) for row in own])
        return [tuple(chain(*row)) for row in zip(*columns, strict=True)]

    def wanted(self, outputs: Sequence[Tensor]) -> list[tuple[Tensor, bool]]:
        """Return the outputs of the response, in order, and whether each is binary."""
        if not self.outputs:
            return [(each, self.binary) for each in outputs]
        by_name = {each.name: each for each in outputs}
        names = self.outputs.items()
        return [(by_name[name], binary) for name, binary in names if name in by_name]


@dataclass(frozen=True)
class Parameter:
    """A row of PARAMETERS."""

    fits: Callable[[Any], bool]
    must_be: str
    http_only: bool = False


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


CONTENT_TYPE = Parameter(lambda value: value in ("str", "np", "pd"), "'str', 'np' or 'pd'")
"""Content types of MLServer's codecs; the texts are the same for all."""
PARAMETERS: Mapping[str, Parameter] = {
    TRUNCATE: Parameter(_is_bool, "true or false"),
    "timeout": Parameter(
        lambda value: _is_integer(value) and 0 < value < 2**63, "a number of microseconds above 0"
    ),
    "priority": Parameter(
        lambda value: _is_integer(value) and value == 0,
        "0: requests are served in turns, without priorities",
    ),
    BINARY_OUTPUT: Parameter(_is_bool, "true or false", http_only=True),
    "content_type": CONTENT_TYPE,
}
"""Parameters of a request."""
OUTPUT_PARAMETERS = {BINARY: Parameter(_is_bool, "true or false", http_only=True)}
INPUT_PARAMETERS = {
    BINARY_SIZE: Parameter(
        lambda value: _is_integer(value) and 0 <= value <= MOST_BODY_BYTES, "a number of bytes"
    ),
    "content_type": CONTENT_TYPE,
}


def check_parameters(
    parameters: Mapping[str, object],
    known: Mapping[str, Parameter],
    is_http: bool,
    where: str = "the request",
) -> None:
    """Raise RefusedError for an unknown parameter, or an invalid value."""
    if len(parameters) > MOST_PARAMETERS:
        raise invalid(f"{where} has {len(parameters)} parameters, allowed {MOST_PARAMETERS}.")
    for name, value in parameters.items():
        row = known.get(name)
        if row is None or (row.http_only and not is_http):
            names = [key for key, each in known.items() if is_http or not each.http_only]
            allowed = ", ".join(names) or "none"
            raise invalid(
                f"{where} has the unknown parameter {shown(name)}. Known: {allowed}. Leave it out."
            )
        if not row.fits(value):
            raise invalid(f"the parameter {name!r} is {shown(value)}; it must be {row.must_be}.")


def checked(draft: Draft, model: Model, number: int, caller: str, is_http: bool) -> Asked:
    """Return the validated request for the engine.

    Raises:
        RefusedError: INVALID; the message says what to change.
    """
    if len(draft.id) > MOST_ID_CHARACTERS:
        raise invalid(f"the id has {len(draft.id)} characters, allowed {MOST_ID_CHARACTERS}.")
    if CONTROL.search(draft.id):
        raise invalid(f"the id {shown(draft.id)} has a control character.")
    check_parameters(draft.parameters, PARAMETERS, is_http)
    by_name = {each.name: each for each in draft.inputs}
    for name in by_name:
        if name not in model.inputs:
            known = ", ".join(model.inputs)
            raise invalid(f"{model.name!r} has no input {shown(name)}. Known: {known}.")
    if len(by_name) < len(draft.inputs):
        raise invalid("an input is there twice.")
    if missing := [name for name in model.inputs if name not in by_name]:
        raise invalid(f"the request has no input {', '.join(missing)}.")
    rows = _rows([by_name[name] for name in model.inputs], model)
    inputs = tuple(_tensor(by_name[name], rows, model) for name in model.inputs)
    timeout_us = draft.parameters.get("timeout")
    return Asked(
        id=draft.id,
        request=InferRequest(
            number=number,
            model=model.name,
            inputs=inputs,
            caller=caller,
            truncate=draft.parameters.get(TRUNCATE) is True,
            timeout_ms=timeout_us / 1000 if isinstance(timeout_us, int) else None,
        ),
        outputs=_outputs(draft, model, is_http),
        binary=draft.parameters.get(BINARY_OUTPUT) is True,
    )


def _rows(inputs: Sequence[DraftTensor], model: Model) -> int:
    """Return the number of rows, the same in all inputs."""
    for each in inputs:
        if each.datatype != BYTES:
            raise invalid(f"{each.name} has datatype {shown(each.datatype)}, it must be BYTES.")
        wanted = width_of(each.name)
        most = MOST_PASSAGES if wanted < 0 else wanted
        if len(each.shape) != 2 or not 1 <= each.shape[1] <= most:
            must_be = "[texts, 1]" if wanted > 0 else f"[queries, passages], {most} of them at most"
            raise invalid(
                f"{each.name} has shape {shown(list(each.shape[:8]))}, it must be {must_be}."
            )
    rows = inputs[0].shape[0]
    if any(each.shape[0] != rows for each in inputs):
        raise invalid(f"the inputs {', '.join(model.inputs)} differ in their numbers of texts.")
    if rows < 1:
        raise invalid("the request holds no text. Send one at least.")
    if rows > model.max_batch_size:
        raise invalid(
            f"the request has {shown(rows)} texts, but {model.name!r} takes {model.max_batch_size} "
            "at most. Send several requests."
        )
    return rows


def _tensor(draft: DraftTensor, rows: int, model: Model) -> Tensor:
    width = draft.shape[1]
    values = draft.values(rows * width)
    try:
        for row in range(rows):
            for value in listed(values[row * width : (row + 1) * width]):
                to_text(draft.name, row, value, model.max_text_bytes)
    except DataError as error:
        raise invalid(str(error)) from None
    return Tensor(draft.name, BYTES, (rows, width), joined(values))


def _outputs(draft: Draft, model: Model, is_http: bool) -> dict[str, bool]:
    binary = draft.parameters.get(BINARY_OUTPUT) is True
    outputs: dict[str, bool] = {}
    for name, parameters in draft.outputs:
        if name not in model.outputs:
            known = ", ".join(model.outputs)
            raise invalid(f"{model.name!r} has no output {shown(name)}. Known: {known}.")
        if name in outputs:
            raise invalid(f"the output {name} is there twice.")
        check_parameters(parameters, OUTPUT_PARAMETERS, is_http, f"the output {name}")
        outputs[name] = parameters.get(BINARY, binary) is True
    return outputs


def binary_values(name: str, data: bytes, count: int) -> Sequence[bytes]:
    """Return the values of a tensor in binary form.

    Raises:
        RefusedError: INVALID: the number of values is wrong.
    """
    try:
        return split(data, count)
    except ValueError as error:
        raise invalid(f"the data of {name} is damaged: {error}.") from None


def bytes_read(example: Sequence[bytes], model: Model) -> list[int]:
    """Return the bytes of each row of an example: of all its texts, or of the query with each
    passage."""
    if PASSAGES not in model.inputs:
        return [sum(map(len, example))]
    query, *passages = example
    return [len(query) + len(passage) for passage in passages]


def too_long(row: int, longest: int) -> str:
    """Return the refusal of a row with too many tokens, in the engine's words."""
    return (
        f"row {row} has more than {longest} tokens, which is the model's longest input. Split "
        "the text, or send the parameter truncate=true to have it cut."
    )
