"""The arrangements of the parity gate: lengths from one token to the most, alone and padded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertender.gate.cases import (
    CUT_ROWS,
    CUT_TOKENS,
    EDGE_TEXTS,
    Question,
    arrange,
    ask,
    questions_of,
)
from bertender.gate.judge import TOLERANCES, Parity, check_parity
from bertender.models.classifier import Classifier, TorchPredictor
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Tokenize
from tests.fake_classifier import EXAMPLES, fake_classifier
from tests.fake_predictor import FakePredictor
from tests.toys import tiny_bert, tiny_tokenizer

LONGEST = 64
LENGTHS = [length for length in CUT_TOKENS if length < LONGEST]


@pytest.fixture(scope="module")
def lively(task: Task) -> Classifier:
    """A tiny BERT whose answers depend on all of their tokens."""
    tokenizer = tiny_tokenizer()
    model = tiny_bert(len(tokenizer), task.labels)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(10)
    return Classifier("lively", task.labels, Tokenize(tokenizer), TorchPredictor(model), 0)


class Seen:
    """A predictor that remembers the masks that it was asked with."""

    def __init__(self, labels: int) -> None:
        self.masks: list[np.ndarray] = []
        self.labels = labels

    def logits(self, batch: Batch) -> np.ndarray:
        self.masks.append(batch.arrays["attention_mask"])
        sums = (batch.arrays["input_ids"] * batch.arrays["attention_mask"]).sum(axis=1)
        return np.stack([sums * (1 + label) for label in range(self.labels)], 1).astype(np.float32)


def test_lengths_from_one_token_to_the_most_are_asked_alone_and_padded(
    lively: Classifier, task: Task
) -> None:
    seen = Seen(len(task.labels))
    candidate = replace(lively, predictor=seen)
    assert check_parity(candidate, candidate, task.dev.examples, TOLERANCES["float32"]).passed
    alone = {mask.shape for mask in seen.masks if len(mask) == 1}
    assert {(1, length) for length in (*LENGTHS, LONGEST)} <= alone
    batches = {mask.shape for mask in seen.masks if len(mask) == CUT_ROWS}
    assert {(CUT_ROWS, length) for length in (*LENGTHS, LONGEST)} <= batches
    longest = next(mask for mask in seen.masks if mask.shape == (CUT_ROWS, LONGEST))
    assert longest.sum(axis=1).tolist() == [LONGEST, *LENGTHS[: CUT_ROWS - 1]]
    assert longest[1].tolist() == [1] + [0] * (LONGEST - 1), "all padding but [CLS]"


def test_a_text_is_cut_to_its_first_tokens_and_the_rest_is_padding(lively: Classifier) -> None:
    seen = Seen(2)
    text = ("apple pear plum cherry",)
    whole = lively.encode([text]).arrays["input_ids"][0]
    batches: list[Batch] = []
    keeper = replace(
        lively,
        predictor=FakePredictor(lambda batch: (batches.append(batch), seen.logits(batch))[1]),
    )
    ask(keeper, [Question(text, 3), Question(text, 1), Question(text, 4)])
    arrays = batches[0].arrays
    assert arrays["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    padding = lively.encode.tokenizer.pad_token_id  # type: ignore[attr-defined]
    expected = np.where(arrays["attention_mask"] > 0, whole[:4], padding)
    assert np.array_equal(arrays["input_ids"], expected)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}


def test_what_is_not_cut_is_asked_as_it_is(lively: Classifier, task: Task) -> None:
    texts = task.dev.examples[:5]
    asked = np.concatenate(
        [each.logits for each in ask(lively, [Question(text) for text in texts])]
    )
    assert np.array_equal(asked, lively.logits(texts))


def gate(lively: Classifier, task: Task, answer: FakePredictor) -> Parity:
    candidate = replace(lively, predictor=answer)
    return check_parity(lively, candidate, task.dev.examples, TOLERANCES["float32"])


def test_a_model_that_cannot_take_one_token_fails(lively: Classifier, task: Task) -> None:
    def at_least_two(batch: Batch) -> np.ndarray:
        if batch.arrays["input_ids"].shape[1] < 2:
            raise RuntimeError("axis 1 has 1 element")
        return lively.predictor.logits(batch)

    parity = gate(lively, task, FakePredictor(at_least_two))
    assert [line.partition(":")[0] for line in parity.failures] == [
        "cut to lengths, alone",
        "cut to lengths, beside shorter",
    ]


def test_a_model_that_is_wrong_at_one_length_alone_is_named_with_it(
    lively: Classifier, task: Task
) -> None:
    def wrong_at_31(batch: Batch) -> np.ndarray:
        logits = lively.predictor.logits(batch)
        return -logits if batch.arrays["input_ids"].shape[1] == 31 else logits

    parity = gate(lively, task, FakePredictor(wrong_at_31))
    assert any("the first 31 tokens of '" in line for line in parity.failures)
    differences = {case.name: case.max_abs_difference for case in parity.cases}
    assert differences["batch of 1"] == 0.0 and differences["cut to lengths, alone"]


def test_a_model_that_reads_the_padding_behind_cls_fails(lively: Classifier, task: Task) -> None:
    def reads_padding(batch: Batch) -> np.ndarray:
        mask = batch.arrays["attention_mask"].copy()
        mask[mask.sum(axis=1) == 1] = 1  # only where nothing else is left
        return lively.predictor.logits(
            Batch(batch.examples, {**batch.arrays, "attention_mask": mask})
        )

    parity = gate(lively, task, FakePredictor(reads_padding))
    differences = {case.name: case.max_abs_difference for case in parity.cases}
    assert not parity.passed
    assert [name for name, value in differences.items() if value and value > 0.01] == [
        "cut to lengths, beside shorter"
    ]


def test_one_text_at_a_time_has_no_batches_of_lengths(lively: Classifier, task: Task) -> None:
    parity = check_parity(
        lively, lively, task.dev.examples, TOLERANCES["float32"], batch_sizes=(1,)
    )
    assert [case.name for case in parity.cases][-1] == "cut to lengths, alone"


def test_texts_are_cut_only_where_both_read_tokens(lively: Classifier) -> None:
    words = fake_classifier("words")
    left = tiny_tokenizer()
    left.padding_side = "left"
    behind = replace(lively, encode=Tokenize(left))
    for pair in ((words, lively), (lively, words), (lively, behind)):
        assert all(question.tokens is None for question in questions_of(*pair, EXAMPLES))
    short = replace(lively, encode=Tokenize(tiny_tokenizer(), 16))
    cut = [question.tokens for question in questions_of(lively, short, EXAMPLES)]
    edges = 2 * min(EDGE_TEXTS, len(EXAMPLES))
    assert cut[len(EXAMPLES) :] == [*[None] * edges, 1, 2, 7]


def test_every_question_is_in_a_case() -> None:
    for sizes in ((1,), (1, 4, 32)):
        cases = arrange(10, 3, 5, sizes)
        assert {row for case in cases for batch in case.batches for row in batch} == set(range(21))


@pytest.mark.parametrize(
    ("texts", "passes"),
    [
        pytest.param(1, True, marks=pytest.mark.slow),
        (2, True),
        (3, False),
        pytest.param(5, False, marks=pytest.mark.slow),
    ],
)
def test_edge_texts_are_judged_by_most_of_them(
    lively: Classifier, task: Task, texts: int, passes: bool
) -> None:
    """Where numbers are rounded; of floats, every single logit counts."""
    examples = [*{text.split()[0]: (text,) for (text,) in task.dev.examples}.values()]
    questions = questions_of(lively, lively, examples)
    one_word = [each.example for each in questions[len(examples) :]][:EDGE_TEXTS]
    assert len({*one_word}) == EDGE_TEXTS
    wrong = {lively.encode([each]).arrays["input_ids"].tobytes() for each in one_word[:texts]}

    def sometimes_wrong(batch: Batch) -> np.ndarray:
        logits = lively.predictor.logits(batch)
        return -9 * logits if batch.arrays["input_ids"].tobytes() in wrong else logits

    candidate = replace(lively, predictor=FakePredictor(sometimes_wrong))
    for name in ("int8", "fake-quantized"):
        parity = check_parity(lively, candidate, examples, TOLERANCES[name])
        assert parity.passed == passes, parity.failures
    assert not check_parity(lively, candidate, examples, TOLERANCES["float32"]).passed
