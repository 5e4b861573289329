"""Requests to the parser itself: what fits the model is taken as it is, all else is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serve.door.engine import Code, Model, RefusedError
from serve.door.grpc_front import draft_of
from serve.door.http_bodies import read_request, write_response
from serve.door.requests import Asked, bytes_read, checked
from serve.wire import DATATYPES, MOST_PASSAGES, Tensor, joined, row_in, split
from tests.serve.door.fake_engine import model_of

SINGLE = model_of(max_batch_size=4, max_text_bytes=40)
PAIR = model_of("pairs", inputs=("TEXT", "TEXT_PAIR"), max_batch_size=4, max_text_bytes=40)
MODELS = {"single": SINGLE, "pair": PAIR}

good_texts = st.text(min_size=1, max_size=9).filter(lambda text: text.strip())
any_texts = st.one_of(
    good_texts, st.text(max_size=60), st.sampled_from(["", " ", "\x00", "\ud800"])
)
rows = st.one_of(st.integers(-2, 6), st.sampled_from([2**31, 2**32 + 1, 2**62, 2**63 - 1]))
shapes = st.one_of(st.tuples(rows, st.just(1)), st.lists(rows, max_size=4).map(tuple))
names = st.sampled_from(["TEXT", "TEXT_PAIR", "LABEL", "", "a\nb"])
datatypes = st.one_of(st.just("BYTES"), st.sampled_from([*DATATYPES, "", "STRING"]))
values = st.one_of(st.booleans(), st.integers(-1, 2**62), st.floats(allow_nan=False), st.text())
parameters = st.dictionaries(
    st.one_of(
        st.sampled_from(
            ["truncate", "timeout", "priority", "binary_data_output", "classification", "caller"]
        ),
        st.text(max_size=5),
    ),
    values,
    max_size=3,
)
datas = st.one_of(
    st.lists(any_texts, max_size=6),
    st.lists(st.lists(any_texts, min_size=1, max_size=1), max_size=6),
    st.lists(values, max_size=3),
    values,
)


def lone(value: object) -> bytes:
    return json.dumps(value).encode()


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """An input that is often fine, and whose parts are often of each other."""
    if draw(st.booleans()):
        texts = draw(st.lists(good_texts, min_size=1, max_size=4))
        fine = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
        return {**fine, **draw(st.sampled_from([{}, {"name": draw(names)}, {"data": draw(datas)}]))}
    shape = list(draw(shapes))
    return {"name": draw(names), "shape": shape, "datatype": draw(datatypes), "data": draw(datas)}


bodies = st.fixed_dictionaries(
    {"inputs": st.lists(inputs(), max_size=3)},
    optional={
        "id": st.one_of(st.none(), st.text(max_size=300)),
        "parameters": st.one_of(st.none(), parameters),
        "outputs": st.lists(
            st.fixed_dictionaries({"name": names}, optional={"parameters": parameters}), max_size=3
        ),
        "more": datas,
    },
)


def taken(body: bytes, header_length: str | None, model: Model) -> Asked | None:
    """Return what the parser makes of a body; None where it refuses it."""
    try:
        asked = checked(read_request(body, header_length), model, 1, "me", is_http=True)
    except RefusedError as error:
        assert error.code == Code.INVALID and 0 < len(error.reason) < 600
        return None
    check_sound(asked, model)
    return asked


def check_sound(asked: Asked, model: Model) -> None:
    """Assert that an engine can rely on a request."""
    request = asked.request
    assert tuple(each.name for each in request.inputs) == model.inputs
    assert 1 <= request.rows <= model.max_batch_size
    assert request.timeout_ms is None or request.timeout_ms > 0
    assert set(asked.outputs) <= set(model.outputs)
    for column, tensor in enumerate(request.inputs):
        assert tensor.shape == (request.rows, 1)
        for row, value in enumerate(split(tensor.data, request.rows)):
            assert value == asked.examples()[row][column]
            assert value.strip() and len(value) <= model.max_text_bytes


def check_json(content: Mapping[str, Any]) -> None:
    for model in MODELS.values():
        asked = taken(lone(content), None, model)
        if asked is not None:
            found = {each["name"]: each["data"] for each in content["inputs"]}
            for column, name in enumerate(model.inputs):
                sent = [text if isinstance(text, str) else text[0] for text in found[name]]
                assert [example[column].decode() for example in asked.examples()] == sent


@example({"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]})
@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(bodies)
def test_any_json(content: Mapping[str, Any]) -> None:
    check_json(content)


@pytest.mark.slow
@settings(max_examples=6_000, derandomize=True, deadline=None, database=None)
@given(bodies)
def test_very_much_json(content: Mapping[str, Any]) -> None:
    check_json(content)


def binary_body() -> tuple[bytes, int]:
    data = joined([b"good pear", b"plum"])
    tensor = {
        "name": "TEXT",
        "shape": [2, 1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(data)},
    }
    head = lone({"id": "a", "inputs": [tensor], "parameters": {"binary_data_output": True}})
    return head + data, len(head)


BINARY, HEAD = binary_body()
changes = st.lists(
    st.tuples(st.integers(0, len(BINARY) - 1), st.integers(0, 3), st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, length, new in edits:
        content = content[:place] + new + content[place + length :]
    return content


def check_mutated(edits: list[tuple[int, int, bytes]], length: int) -> None:
    content = mutated(BINARY, edits)
    for header_length in (str(length), None):
        taken(content, header_length, SINGLE)


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(changes, st.one_of(st.just(HEAD), st.integers(0, 2 * len(BINARY))))
def test_mutated_bytes_over_http(edits: list[tuple[int, int, bytes]], length: int) -> None:
    check_mutated(edits, length)


@pytest.mark.slow
@settings(max_examples=6_000, derandomize=True, deadline=None, database=None)
@given(changes, st.one_of(st.just(HEAD), st.integers(0, 2 * len(BINARY))))
def test_very_many_mutated_bytes(edits: list[tuple[int, int, bytes]], length: int) -> None:
    check_mutated(edits, length)


def message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="classifier", id="a")
    request.parameters["truncate"].bool_param = True
    request.inputs.add(name="TEXT", datatype="BYTES", shape=(2, 1))
    request.outputs.add(name="LABEL")
    request.raw_input_contents.append(joined([b"good pear", b"plum"]))
    return bytes(request.SerializeToString())


MESSAGE = message()


@settings(max_examples=600, derandomize=True, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(MESSAGE) - 1), st.integers(0, 3), st.binary(max_size=4)),
        max_size=3,
    )
)
def test_mutated_messages_over_grpc(edits: list[tuple[int, int, bytes]]) -> None:
    try:
        request = service_pb2.ModelInferRequest.FromString(mutated(MESSAGE, edits))
    except DecodeError:
        return
    try:
        asked = checked(draft_of(request), SINGLE, 1, "me", is_http=False)
    except RefusedError as error:
        assert error.code == Code.INVALID and 0 < len(error.reason) < 600
    else:
        check_sound(asked, SINGLE)
        assert edits or asked.request.truncate


def text(**changes: Any) -> dict[str, Any]:
    return {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"], **changes}


REASONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "no input": ({"inputs": []}, "no input TEXT"),
    "another input": ({"inputs": [text(), text(name="WORDS")]}, "no input 'WORDS'. Known: TEXT"),
    "an input twice": ({"inputs": [text(), text()]}, "twice"),
    "datatype": ({"inputs": [text(datatype="FP32")]}, "must be BYTES"),
    "shape": ({"inputs": [text(shape=[1, 2])]}, r"must be \[texts, 1\]"),
    "no rows": ({"inputs": [text(shape=[0, 1], data=[])]}, "no text"),
    "too many rows": ({"inputs": [text(shape=[5, 1])]}, "5 texts, but 'classifier' takes 4"),
    "fewer texts": ({"inputs": [text(shape=[2, 1])]}, "1 texts, its shape 2"),
    "more texts": ({"inputs": [text(data=["a", "b"])]}, "more than the 1 texts"),
    "no data": ({"inputs": [{k: v for k, v in text().items() if k != "data"}]}, "no data"),
    "unknown parameter": ({"inputs": [text()], "parameters": {"a": 1}}, "unknown parameter 'a'"),
    "of the engine alone": (
        {"inputs": [text()], "parameters": {"caller": "x"}},
        "unknown parameter 'caller'",
    ),
    "truncate": ({"inputs": [text()], "parameters": {"truncate": 1}}, "must be true or false"),
    "timeout": ({"inputs": [text()], "parameters": {"timeout": 0}}, "microseconds above 0"),
    "timeout as a truth": ({"inputs": [text()], "parameters": {"timeout": True}}, "microseconds"),
    "priority": ({"inputs": [text()], "parameters": {"priority": 1}}, "must be 0"),
    "unknown output": ({"inputs": [text()], "outputs": [{"name": "A"}]}, "no output 'A'"),
    "output twice": (
        {"inputs": [text()], "outputs": [{"name": "LABEL"}] * 2},
        "LABEL is there twice",
    ),
    "classification": (
        {
            "inputs": [text()],
            "outputs": [{"name": "LABEL", "parameters": {"classification": 2}}],
        },
        "unknown parameter 'classification'",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_refusal_says_what_to_change(name: str) -> None:
    content, reason = REASONS[name]
    with pytest.raises(RefusedError, match=reason):
        checked(read_request(lone(content), None), SINGLE, 1, "me", is_http=True)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [("", "empty"), (" \n", "empty"), ("a" * 41, "41 bytes, allowed 40")],
)
def test_a_row_at_fault_is_named_as_clients_read_it(bad: str, reason: str) -> None:
    content = {"inputs": [text(shape=[2, 1], data=["fine", bad])]}
    with pytest.raises(RefusedError) as refused:
        checked(read_request(lone(content), None), SINGLE, 1, "me", is_http=True)
    found = row_in(refused.value.reason)
    assert found is not None and (found.row, found.column) == (1, 0) and reason in found.reason


def test_what_a_client_may_ask_for() -> None:
    content = {
        "id": "my id",
        "inputs": [text(parameters={"content_type": "str"})],
        "parameters": {"truncate": True, "timeout": 1500, "priority": 0},
        "outputs": [
            {"name": "SCORE", "parameters": {"binary_data": True}},
            {"name": "LABEL", "parameters": {"binary_data": False}},
        ],
        "a field of another client": {"deep": [1, [2]]},
    }
    asked = checked(read_request(lone(content), None), SINGLE, 7, "me", is_http=True)
    request = asked.request
    assert (request.number, request.caller, request.truncate, request.timeout_ms) == (
        *(7, "me", True),
        1.5,
    )
    assert asked.outputs == {"SCORE": True, "LABEL": False}


def test_a_response_has_what_was_asked_for() -> None:
    content = {"inputs": [text()], "outputs": [{"name": "LABEL"}]}
    asked = checked(read_request(lone(content), None), SINGLE, 1, "me", is_http=True)
    label = Tensor("LABEL", "BYTES", (1, 1), joined(["grün".encode()]))
    logits = Tensor("LOGITS", "FP32", (1, 2), bytes(8))
    body, headers = write_response(asked, SINGLE, [logits, label])
    assert headers == {"content-type": "application/json"}
    (output,) = json.loads(body)["outputs"]
    assert output == {"name": "LABEL", "datatype": "BYTES", "shape": [1, 1], "data": ["grün"]}


def test_what_codecs_of_mlserver_add() -> None:
    of_input = {"content_type": "str", "headers": None}
    content = {
        "id": None,
        "parameters": {"content_type": "str", "headers": None},
        "inputs": [text(parameters=of_input)],
        "outputs": None,
    }
    asked = checked(read_request(lone(content), None), SINGLE, 1, "me", is_http=True)
    assert asked.examples() == [(b"a",)]
    content["inputs"] = [text(parameters={"content_type": "base64"})]
    with pytest.raises(RefusedError, match="'content_type' is 'base64'; it must be 'str'"):
        checked(read_request(lone(content), None), SINGLE, 1, "me", is_http=True)


RANKING = model_of("ranks", inputs=("TEXT", "PASSAGES"), max_batch_size=4, max_text_bytes=40)


def ranked(shape: list[int], data: Any, queries: int = 1) -> Asked:
    content = {
        "inputs": [
            text(shape=[queries, 1], data=["q"] * queries),
            {"name": "PASSAGES", "shape": shape, "datatype": "BYTES", "data": data},
        ]
    }
    return checked(read_request(lone(content), None), RANKING, 1, "me", is_http=True)


@pytest.mark.parametrize(
    ("shape", "data", "examples"),
    [
        ([1, 3], ["a", "b", "c"], [(b"q", b"a", b"b", b"c")]),
        ([1, 3], [["a", "b", "c"]], [(b"q", b"a", b"b", b"c")]),
        ([2, 2], [["a", "b"], ["c", ""]], [(b"q", b"a", b"b"), (b"q", b"c")]),
    ],
)
def test_a_query_has_any_number_of_passages(
    shape: list[int], data: Any, examples: list[tuple[bytes, ...]]
) -> None:
    asked = ranked(shape, data, shape[0])
    assert asked.request.rows == shape[0]
    assert asked.examples() == examples
    assert bytes_read(examples[0], RANKING) == [2] * (len(examples[0]) - 1)


@pytest.mark.parametrize(
    ("shape", "data", "reason"),
    [
        ([1, 3], [["a", "b"], ["c"]], "PASSAGES has a row of 2 texts, its shape 3"),
        ([1, 3], ["a", "b"], "has 2 texts, its shape 3"),
        ([1, 2], ["", "b"], "PASSAGES row 0 is empty"),
        ([1, 2], ["", ""], "PASSAGES row 0 is empty"),
        ([1, 0], [], r"must be \[queries, passages\]"),
        ([1, MOST_PASSAGES + 1], [], f"{MOST_PASSAGES} of them at most"),
        ([2, 1], ["a", "b"], "differ in their numbers of texts"),
        ([1, 1], ["a" * 41], "41 bytes, allowed 40"),
    ],
)
def test_passages_that_are_none_are_refused(shape: list[int], data: Any, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        ranked(shape, data)
