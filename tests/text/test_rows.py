"""Examples of several token rows: in batches, budgets, the queue of a server, and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bertender.comparison.accuracy import predict_outputs
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs
from bertender.problems.single_label_classification import SingleLabelClassification
from bertender.text.batch import Batch, BatchLimits, Example, length_buckets, plan_batches
from bertender.text.tokenizer import Padding
from bertender.training.examples import TokenDataset
from bertender.training.heads.head import ROWS
from distill.teachers.outputs import LOGITS, STATES, teacher_outputs
from serve.backend.batches import BucketedClassifier
from serve.backend.fair_queue import FairQueue, Refusal, Request
from tests.fake_predictor import FakePredictor
from tests.serve.asking import ask, serving
from tests.toys import tiny_bert

BOTH = ("even", "odd")


class Sentences(SingleLabelClassification):
    """A text has a row for each sentence, and the mean of their logits."""

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        mean = np.mean([each.logits for each in rows], axis=0, dtype=np.float32)
        return Outputs(mean, rows[0].places)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int, ...]:
        return len(batch.arrays["attention_mask"]), labels


def encode(examples: Sequence[Example]) -> Batch:
    """Words are numbers, and sentences end with a period."""
    sentences = [[part.split() for part in text.rstrip(".").split(".")] for (text,) in examples]
    rows = [words for own in sentences for words in own]
    longest = max(map(len, rows))
    owners = np.repeat(range(len(examples)), [len(own) for own in sentences])
    ids = np.array([[*map(int, words), *[0] * (longest - len(words))] for words in rows])
    arrays = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    return Batch(tuple(examples), arrays, truncated=np.zeros(len(examples), bool), owners=owners)


def sums(batch: Batch) -> Any:
    """The sum of a row's numbers, and the number of its words."""
    ids, mask = batch.arrays["input_ids"], batch.arrays["attention_mask"]
    return np.stack([ids.sum(axis=1), mask.sum(axis=1)], axis=1).astype(np.float32)


TEXTS = (("1 2. 3 4 5.",), ("6.",), ("7 8 9 10. 11. 12 13.",))
EXPECTED = ((7.5, 2.5), (6.0, 1.0), (70 / 3, 7 / 3))


def test_rows_are_grouped_by_their_examples() -> None:
    batch = encode(TEXTS)
    assert (batch.counts, batch.lengths()) == ([2, 1, 3], [3, 1, 4])
    assert batch.by_example("abcdef") == ["ab", "c", "def"]
    assert [batch.example_of(row) for row in range(6)] == [TEXTS[0]] * 2 + [TEXTS[1]] + [
        TEXTS[2]
    ] * 3
    alone = replace(batch, owners=None)
    assert (alone.counts, alone.by_example("abc")) == ([1, 1, 1], ["a", "b", "c"])


def test_budgets_count_all_rows() -> None:
    lengths, counts = [4, 4, 4, 4], [1, 3, 1, 4]
    assert length_buckets(lengths, 16, counts=counts) == [[0, 1], [2], [3]]
    assert length_buckets(lengths, 20, counts=counts) == [[0, 1, 2], [3]]
    limits = BatchLimits(batch_size=4, tokens_per_batch=16)
    plan = plan_batches(lengths, limits, epochs=1, seed=0, counts=counts)
    for batch in plan.batches:
        assert 4 * sum(counts[index] for index in batch) <= 16
    assert sorted(index for batch in plan.batches for index in batch) == [0, 1, 2, 3]


def test_a_classifier_joins_them() -> None:
    model = Classifier("sums", BOTH, encode, FakePredictor(sums), 0, Sentences())
    found = predict_outputs(model, TEXTS, tokens_per_batch=8)
    np.testing.assert_allclose([each.logits[0] for each in found], EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("tokens_per_bucket", [2, 4, 64])
def test_a_server_runs_them_by_their_own_length(tokens_per_bucket: int) -> None:
    shapes = []

    def seen(batch: Batch) -> Any:
        shapes.append(batch.arrays["input_ids"].shape)
        return sums(batch)

    classifier = BucketedClassifier(encode, FakePredictor(seen), Sentences())
    with serving(classifier, BOTH, tokens_per_bucket=tokens_per_bucket) as model:
        whole, part = ask(model, TEXTS, TEXTS[1:])
        assert model.queue.texts == 0
    for response, expected in ((whole, EXPECTED), (part, EXPECTED[1:])):
        assert not isinstance(response, Refusal), response
        np.testing.assert_allclose(response["LOGITS"], expected, rtol=1e-6)
    if tokens_per_bucket == 4:
        assert all(rows * tokens <= 4 for rows, tokens in shapes)


def test_a_text_of_more_rows_than_may_wait_is_refused() -> None:
    classifier = BucketedClassifier(encode, FakePredictor(sums), Sentences())
    with serving(classifier, BOTH, max_texts=2) as model:
        (few,) = ask(model, [("1. 2.",)])
        (many,) = ask(model, [("1. 2. 3. 4. 5.",)])
    assert not isinstance(few, Refusal)
    assert isinstance(many, Refusal) and many.code == "INVALID_ARG"
    assert "row 0 is read in 5 parts, and 2 are allowed" in many.reason


def test_a_queue_counts_rows_once_they_are_known() -> None:
    """What fills it is what has to run."""
    queue = FairQueue(max_texts=6)
    first = Request(TEXTS, lambda response: None, caller="a")
    assert not queue.offer(first)
    assert queue.texts == len(TEXTS)
    queue.tokenised(first, encode(TEXTS))
    assert queue.texts == first.rows == 6
    late = Request(TEXTS[:1], lambda response: None, caller="a")
    assert queue.offer(late) == [late]
    assert queue.drop(first)
    assert queue.texts == 0


COLUMNS: dict[str, Any] = {
    "input_ids": [[[5, 6], [7]], [[8, 9, 10]], [[4], [3, 2], [1]]],
    "attention_mask": [[[1, 1], [1]], [[1, 1, 1]], [[1], [1, 1], [1]]],
    ROWS: [2, 1, 3],
    "labels": [0, 1, 0],
}


def test_a_training_batch_has_all_rows() -> None:
    examples = TokenDataset(COLUMNS, Padding(0))
    assert (examples.lengths, examples.counts) == ([2, 3, 2], [2, 1, 3])
    batch = examples.collate([examples[2], examples[0]])
    assert batch["input_ids"].tolist() == [[4, 0], [3, 2], [1, 0], [5, 6], [7, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [1, 2, 1, 2, 1]
    assert (batch[ROWS].tolist(), batch["labels"].tolist()) == ([3, 2], [0, 0])
    assert examples.where([True, False, True]).counts == [2, 3]


def test_a_teachers_outputs_are_cached_by_rows() -> None:
    """They meet the student's in a batch, row by row."""
    teacher = tiny_bert(16, BOTH)
    examples = TokenDataset(COLUMNS, Padding(0))
    wanted: Any = {"logits": frozenset(), "sentence_states": frozenset({2})}
    columns = teacher_outputs(teacher, "digest", examples, wanted)
    batch = (known := examples.with_columns(**columns)).collate([known[2], known[0]])
    with torch.no_grad():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found = teacher(**inputs, output_hidden_states=True)
    torch.testing.assert_close(batch[LOGITS], found.logits)
    torch.testing.assert_close(batch[STATES.format(layer=2)], found.hidden_states[2][:, 0])
