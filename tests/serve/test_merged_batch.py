"""Requests that are merged get what each would get alone, and nobody else's fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.batch import Batch, Encode, Example, Tokenize, TokenizeWords, merged
from bertender.text.tokenizer import SETTINGS_NAME, FileTokenizer, open_tokenizer, padding_of
from serve.backend import batches
from serve.backend.batches import (
    CHARACTERS_AT_ONCE,
    CHARACTERS_OF_FEW,
    BucketedClassifier,
    Reader,
)
from serve.backend.fair_queue import Refusal, Request
from serve.wire import Wishes, to_arrays
from tests.fake_predictor import FakePredictor
from tests.serve.asking import Response, ask, meeting, serving, submit
from tests.toys import tiny_tokenizer

LABELS = ("O", "B-X", "I-X")
MAX_LENGTH = 9

REQUESTS: Mapping[str, tuple[Problem[Any], Sequence[Sequence[Example]]]] = {
    "texts": (
        SINGLE_LABEL,
        [[("saw",), ("apple plum pear",)], [("saw " * 40,)], [("hammer " * 3,)], [("plum",)]],
    ),
    "sentences": (
        TOKEN_CLASSIFICATION,
        [[("saw",), ("apple", "plum")], [("saw",) * 40], [("pear",) * 6], [("plum",)]],
    ),
}
"""Requests of each problem type; the second one's text is too long."""

SIDES = pytest.mark.parametrize("side", ["left", "right"])


def classifier_of(problem: Problem[Any] = SINGLE_LABEL, side: str = "right") -> BucketedClassifier:
    """Return a model whose logits follow from its tokens and their places in the text."""

    def compute(batch: Batch) -> np.ndarray:
        mask = batch.arrays["attention_mask"]
        ids = batch.arrays["input_ids"] * mask * mask.cumsum(axis=1)
        per_token = ids[..., None] * np.array([0.1, 0.2, -0.1], np.float32)
        is_of_tokens = problem is TOKEN_CLASSIFICATION
        return np.asarray(per_token if is_of_tokens else per_token.sum(axis=1), np.float32)

    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    return BucketedClassifier(
        problem.encoder(tokenizer, MAX_LENGTH), FakePredictor(compute), problem
    )


def batches_of(classifier: BucketedClassifier) -> list[Batch]:
    assert isinstance(classifier.predictor, FakePredictor)
    return classifier.predictor.batches


@SIDES
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_has_what_it_would_have_alone(name: str, truncate: bool, side: str) -> None:
    problem, requests = REQUESTS[name]
    classifier = classifier_of(problem, side)
    with serving(classifier, LABELS, tokens_per_bucket=1000) as model:
        alone = [ask(model, each, truncate=truncate)[0] for each in requests]
        with meeting(model, requests[3][0]):
            futures = [submit(model, each, truncate=truncate) for each in requests]
        together = [each.result(10) for each in futures]
    assert len(batches_of(classifier)[-1]) == 5 - (not truncate)
    for mine, other in zip(together, alone, strict=True):
        assert type(mine) is type(other)
        if not isinstance(mine, Refusal) and not isinstance(other, Refusal):
            truncated = {"TRUNCATED"} if truncate else set()
            names = {each.name for each in problem.response_tensors}
            assert {*mine} == names | truncated == {*other}
            for tensor, array in mine.items():
                np.testing.assert_array_equal(array, other[tensor], err_msg=tensor)
                assert array.flags.c_contiguous
    assert [isinstance(each, Refusal) for each in together] == [False, not truncate, False, False]


def encoders(folder: Path, side: str) -> dict[str, tuple[Encode, Sequence[Example]]]:
    """Return encoding steps of both kinds of tokenizer, and examples for each."""
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / SETTINGS_NAME).read_text())
    settings["pad_token"] = tokenizer.convert_ids_to_tokens(7)  # not number 0, as of a RoBERTa
    (folder / SETTINGS_NAME).write_text(json.dumps(settings))
    of_file = open_tokenizer(folder)
    assert isinstance(of_file, FileTokenizer) and of_file.padding.token_id == 7
    texts = [("saw",), ("apple plum pear hammer",), ("pear plum",)]
    pairs = [("saw", "plum"), ("apple plum", "pear"), ("saw", "saw saw saw saw")]
    return {
        "texts by file": (Tokenize(of_file), texts),
        "pairs by file": (Tokenize(of_file), pairs),
        "words by file": (TokenizeWords(of_file), [("saw",), ("apple", "plum", "pear")]),  # type: ignore[arg-type]
        "texts by transformers": (Tokenize(tokenizer), texts),
        "pairs by transformers": (Tokenize(tokenizer), pairs),
    }


@SIDES
def test_merged_rows_are_padded_as_their_tokenizer_does(tmp_path: Path, side: str) -> None:
    for name, (encode, examples) in encoders(tmp_path, side).items():
        rows = [(encode([each]), 0) for each in examples]
        assert isinstance(encode, Tokenize)
        ours, theirs = merged(rows, padding_of(encode.tokenizer)), encode(examples)
        assert ours.examples == theirs.examples and ours.arrays.keys() == theirs.arrays.keys()
        for array in theirs.arrays:
            np.testing.assert_array_equal(ours.arrays[array], theirs.arrays[array], name)
        np.testing.assert_array_equal(np.array(ours.words), np.array(theirs.words), name)


@pytest.mark.parametrize("name", REQUESTS)
def test_scores_and_labels_are_computed_once_a_bucket(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, requests = REQUESTS[name]
    computed: list[int] = []

    def response(outputs: Any, examples: Any, labels: Any, texts: Any) -> dict[str, Any]:
        computed.append(len(examples))
        return problem.response(outputs, examples, labels, texts)

    classifier = classifier_of(problem)
    classifier.problem = copy(problem)
    monkeypatch.setattr(classifier.problem, "response", response)
    with (
        serving(classifier, LABELS, tokens_per_bucket=1000) as model,
        meeting(model, requests[0][0]),
    ):
        for each in requests:
            submit(model, each)
    assert computed == [1, 4], "all texts but the one that is refused"


def test_a_response_that_cannot_be_made_is_an_error_of_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def response(outputs: Any, examples: Any, labels: Any, texts: Any) -> dict[str, Any]:
        if ("saw",) in examples:
            raise IndexError("no label of that number")
        return SINGLE_LABEL.response(outputs, examples, labels, texts)

    classifier = classifier_of()
    classifier.problem = copy(SINGLE_LABEL)
    monkeypatch.setattr(classifier.problem, "response", response)
    with serving(classifier, LABELS) as model:
        with meeting(model, ("pear",)):
            bad, good = submit(model, [("saw",)]), submit(model, [("plum",)])
        assert isinstance(refusal := bad.result(10), Refusal) and refusal.code == "INTERNAL"
        assert not isinstance(good.result(10), Refusal)
    assert "IndexError at" in caplog.text


def test_requests_that_are_all_refused_run_nothing() -> None:
    classifier = classifier_of()
    with serving(classifier, LABELS) as model:
        results = ask(model, *[[("saw " * 40,)]] * 2)
    assert [isinstance(each, Refusal) for each in results] == [True, True]
    assert not batches_of(classifier)


def test_a_request_leaves_while_rows_of_others_wait() -> None:
    """The rows of two requests run together; the longer row of one is still to run."""
    classifier = classifier_of()
    release, long = threading.Event(), ("saw " * 7,)
    compute = classifier.predictor.logits

    def hold(batch: Batch) -> Any:
        assert long not in batch.examples or release.wait(10)
        return compute(batch)

    with serving(classifier, LABELS, tokens_per_bucket=9) as model:
        with meeting(model, ("pear",)):
            both, one = submit(model, [("plum",), long]), submit(model, [("saw",)])
            classifier.predictor = FakePredictor(hold)
        one.result(10)
        assert not both.done()
        release.set()
        assert not isinstance(both.result(10), Refusal)


def test_a_long_request_is_read_while_short_ones_pass() -> None:
    classifier = classifier_of()
    release, long = threading.Event(), ("saw " * CHARACTERS_AT_ONCE,)
    encode = classifier.encode

    def hold(examples: Sequence[Example]) -> Batch:
        assert long not in examples or release.wait(10)
        return encode(examples)

    classifier.encode = hold
    with serving(classifier, LABELS) as model:
        slow = submit(model, [long], truncate=True)
        assert not isinstance(ask(model, [("pear",)])[0], Refusal)
        assert not slow.done()
        release.set()
        assert not isinstance(slow.result(10), Refusal)


def test_what_was_given_up_before_it_was_read_is_not_read() -> None:
    classifier = classifier_of()
    release, read = threading.Event(), list[Example]()
    encode = classifier.encode

    def hold(examples: Sequence[Example]) -> Batch:
        read.extend(examples)
        assert release.wait(10)
        return encode(examples)

    classifier.encode = hold
    long = [(word * CHARACTERS_AT_ONCE,) for word in ("saw ", "pear ")]
    with serving(classifier, LABELS) as model:
        first = submit(model, long[:1], truncate=True)
        second = submit(model, long[1:], truncate=True, number=3)
        model.abandon(3)
        release.set()
        assert not isinstance(first.result(10), Refusal)
        assert isinstance(second.result(10), Refusal)
    assert read == long[:1]


def test_requests_do_not_wait_for_larger_ones_to_be_tokenised() -> None:
    classifier, release = classifier_of(), threading.Event()
    encode = classifier.encode
    short = [("saw",)]
    few, many = ([("saw " * size,)] for size in (CHARACTERS_AT_ONCE, CHARACTERS_OF_FEW))

    def encode_slowly(examples: Sequence[Example]) -> Batch:
        if list(examples) == many:
            assert release.wait(10)
        return encode(examples)

    classifier.encode = encode_slowly
    with serving(classifier, LABELS) as model:
        largest = submit(model, many, truncate=True)
        assert not any(isinstance(each, Refusal) for each in ask(model, short, few, truncate=True))
        assert not largest.done()
        release.set()
        assert not isinstance(largest.result(10), Refusal)


def test_callers_are_tokenised_in_turns() -> None:
    may_go, seen = threading.Event(), list[str]()

    def tokenise(request: Request) -> None:
        may_go.wait(10)
        seen.append(request.caller)

    reader = Reader(tokenise)
    for caller in (*["many"] * 5, "one"):
        reader.submit(Request((("saw",),), lambda response: None, caller=caller))
    may_go.set()
    reader.close()
    assert len(seen) == 6 and seen.index("one") in (1, 2)


def test_a_text_that_cannot_be_tokenised_is_an_error_of_its_request_alone() -> None:
    classifier = classifier_of()
    encode = classifier.encode

    def fail(examples: Sequence[Example]) -> Batch:
        if any("saw" in text for (text,) in examples):
            raise ValueError("no such token")
        return encode(examples)

    classifier.encode = fail
    with serving(classifier, LABELS) as model:
        short, long, good = ask(model, [("saw",)], [("saw " * CHARACTERS_AT_ONCE,)], [("pear",)])
    assert isinstance(short, Refusal) and short == long and "no such token" in short.reason
    assert not isinstance(good, Refusal)


def test_an_abandoned_request_is_answered_and_not_run() -> None:
    classifier = classifier_of()
    with serving(classifier, LABELS) as model:
        with meeting(model, ("pear",)):
            waiting = submit(model, [("plum",)], number=5)
            abandoning = Future[Response]()
            texts = to_arrays([("any",)], text_columns=1)
            model.ask(texts, Wishes(abandon=5), abandoning.set_result)
            assert isinstance(refusal := waiting.result(10), Refusal)
            assert refusal.code == "CANCELLED" and abandoning.done()
            model.abandon(5)  # it has gone
        assert [each.examples for each in batches_of(classifier)] == [(("pear",),)]
        counted = model.tally.take()
    assert counted["bertender_rejected_requests_total", "cancelled"] == 1


def test_a_request_waits_for_no_longer_than_it_says() -> None:
    now = [0.0]
    with (
        serving(classifier_of(), LABELS, timeout_s=10.0, clock=lambda: now[0]) as model,
        meeting(model, ("pear",)),
    ):
        hasty, patient = Future[Response](), submit(model, [("saw",)])
        texts = to_arrays([("plum",)], text_columns=1)
        model.ask(texts, Wishes(wait_ms=500), hasty.set_result)
        now[0] = 1.0
        submit(model, [("pear",)])
        assert isinstance(refusal := hasty.result(10), Refusal)
        assert refusal.code == "LATE" and "over 500 ms" in refusal.reason
        assert not patient.done()
        now[0] = 12.0
        submit(model, [("pear",)])
        assert isinstance(refusal := patient.result(10), Refusal)
        assert refusal.code == "UNAVAILABLE" and "over 10000 ms" in refusal.reason
        counted = model.tally.take()
    for reason, times in {"late": 1, "queue_timeout": 2}.items():
        assert counted["bertender_rejected_requests_total", reason] == times


def test_what_has_waited_for_too_long_makes_room() -> None:
    now = [0.0]
    settings = {"max_texts": 1, "timeout_s": 10.0, "clock": lambda: now[0]}
    with serving(classifier_of(), LABELS, **settings) as model:
        with meeting(model, ("pear",)):
            late = submit(model, [("saw",)])
            now[0] = 11.0
            fresh = submit(model, [("plum",)])
            assert isinstance(late.result(10), Refusal)
        assert not isinstance(fresh.result(10), Refusal)


def test_a_full_queue_refuses_who_fills_it_and_answers_who_comes() -> None:
    with serving(classifier_of(), LABELS, max_texts=4) as model:
        with meeting(model, ("pear",)):
            greedy = [submit(model, [("saw",)] * 2, caller="greedy") for _ in range(2)]
            newcomer = submit(model, [("plum",)], caller="quiet")
            assert isinstance(refusal := greedy[1].result(10), Refusal)
            assert refusal.code == "UNAVAILABLE" and "4 texts wait at most" in refusal.reason
        assert not any(isinstance(each.result(10), Refusal) for each in (greedy[0], newcomer))


@pytest.mark.parametrize(
    ("columns", "code", "said"),
    [
        ([np.empty((0, 1), np.object_)], "INVALID_ARG", "holds no text"),
        ([np.array([[b"a"]] * rows, np.object_) for rows in (1, 2)], "INTERNAL", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(columns: list[Any], code: str, said: str) -> None:
    with serving(classifier_of(), LABELS) as model:
        answer = Future[Response]()
        model.ask(columns, Wishes(), answer.set_result)
        assert isinstance(refusal := answer.result(10), Refusal)
        assert refusal.code == code and said in refusal.reason


def test_what_is_still_to_be_read_is_answered_before_the_end() -> None:
    with serving(classifier_of(), LABELS) as model:
        long = [("saw " * CHARACTERS_AT_ONCE,)]
        waiting = [submit(model, each, truncate=True) for each in (long, [("pear",)], long)]
    assert not any(isinstance(each.result(0), Refusal) for each in waiting)


@pytest.mark.parametrize("text", ["saw", "saw " * CHARACTERS_AT_ONCE], ids=["lane", "reader"])
def test_a_response_that_cannot_be_sent_ends_the_process(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would know: the request would wait for ever."""
    ended = threading.Event()

    def end(status: int) -> None:
        assert status == 1
        ended.set()

    def respond(response: Response) -> None:
        raise OSError("the sender is closed")

    with serving(classifier_of(), LABELS) as model:
        monkeypatch.setattr(batches.os, "_exit", end)
        model.submit(Request(((text,),), respond, [(text,)]))
        assert ended.wait(10)
    assert "the sender is closed" in capsys.readouterr().err
