"""Questions: windows of contexts, answers at characters, no answer, and what a model learns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ModelError
from bertender.metrics import score
from bertender.problems.problem import Outputs
from bertender.problems.question_answering import (
    LONGEST_ANSWER,
    QUESTION_ANSWERING,
    Answers,
    QuestionAnswering,
    tokens_of_answer,
)
from bertender.tasks.labelled import read_labelled
from bertender.tasks.rows import read_squad
from bertender.tasks.task import Split
from bertender.text.batch import NO_WORD, Batch, Example
from bertender.text.tokenizer import FileTokenizer
from bertender.text.windows import NO_ANSWER, TokenizeContextWindows, place_of, span_of
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from bertender.training.heads.head import PREDICTING
from tests.toys import FRUIT, answer_task, byte_level_tokenizer, tiny_tokenizer

HEAD = HEADS[QUESTION_ANSWERING.name]
MAY_BE_NONE = QuestionAnswering(threshold=0.0)
TOKENIZERS = {"wordpiece": tiny_tokenizer, "byte-level": byte_level_tokenizer}
SQUAD = {
    "1.1": ("SQuAD-1.1-sample/train-sample4k.json.xz", 100),
    "2.0": ("SQuAD-2.0/dev-without-xquad.json.xz", 100),
    "TyDiQA": ("TyDiQA-GoldP-en/tydiqa-goldp-en-train.json", 100),
}


def oracle(batch: Batch, targets: Sequence[Answers]) -> Any:
    """Logits of a model that knows the answers."""
    assert batch.words is not None and batch.owners is not None
    logits = np.full((*batch.words.shape, 2), -10, dtype=np.float32)
    for row, owner in enumerate(batch.owners.tolist()):
        for column, token in enumerate(tokens_of_answer(batch.words[row], targets[owner])):
            logits[row, token, column] = 10
    return logits


def decoded(batch: Batch, targets: Sequence[Answers]) -> list[Answers]:
    problem = QUESTION_ANSWERING.with_fitted(QUESTION_ANSWERING.unfitted(targets))
    outputs = problem.outputs(oracle(batch, targets), batch)
    return [problem.decode(*each) for each in zip(outputs, batch.examples, strict=True)]


@pytest.mark.parametrize("max_length", [64, 24])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_an_oracle_is_decoded_to_the_targets(tokenizer: str, max_length: int) -> None:
    split = answer_task().dev
    batch = TokenizeContextWindows(TOKENIZERS[tokenizer](), max_length)(split.examples)
    assert max(batch.counts) > 1
    assert decoded(batch, split.label_ids) == [*split.label_ids]


@pytest.mark.parametrize("name", SQUAD)
def test_an_oracle_is_decoded_to_official_answers(name: str) -> None:
    if (root := os.environ.get("BERTENDER_DATA")) is None:
        pytest.skip("BERTENDER_DATA names no folder with real data")
    file, count = SQUAD[name]
    table = read_squad(Path(root) / file)
    read = read_labelled(table, ("question", "context"), "answers", QUESTION_ANSWERING)
    split = Split(read.examples[:count], read.labels[:count])
    batch = TokenizeContextWindows(tiny_tokenizer(), 512)(split.examples)
    assert batch.words is not None and batch.owners is not None
    lengths = [
        last - first
        for places, owner in zip(batch.words, batch.owners.tolist(), strict=True)
        for first, last in [tokens_of_answer(places, split.label_ids[owner])]
    ]
    short = [
        max(own) < LONGEST_ANSWER and (not target or max(own) >= 0)
        for own, target in zip(batch.by_example(lengths), split.label_ids, strict=True)
    ]
    pairs = zip(decoded(batch, split.label_ids), split.label_ids, short, strict=True)
    right = [found[:1] == true[:1] for found, true, fits in pairs if fits]
    # the others begin or end within a token
    assert np.mean(right) > 0.9


LABELS = np.array([b"start", b"end"], dtype=object)


def test_windows_overlap_and_have_all_of_a_context() -> None:
    question, context = "which number", " ".join(FRUIT * 20)
    batch = TokenizeContextWindows(tiny_tokenizer(), 30)([(question, context), (question, "apple")])
    assert batch.words is not None and batch.owners is not None
    assert batch.owners.tolist() == [*[0] * (len(batch.owners) - 1), 1]
    assert (batch.words[:, 0] == NO_ANSWER).all()
    assert batch.truncated is not None and not batch.truncated.any()
    windows = [{*own[own > 0].tolist()} for own in batch.words[:-1]]
    assert len(set().union(*windows)) == 120, "words of one token"
    shared = {len(one & other) for one, other in pairwise(windows[:-1])}
    assert shared == {10}, "a third of 30"
    assert (batch.arrays["attention_mask"].sum(axis=1) <= 30).all()


def test_a_long_question_is_cut_and_leaves_room_for_the_context() -> None:
    long = " ".join(FRUIT * 20)
    batch = TokenizeContextWindows(tiny_tokenizer(), 24)([(long, long)])
    assert batch.truncated is not None and batch.truncated.all() and batch.words is not None
    assert (batch.words[0] > NO_ANSWER).sum() >= 10


def test_both_tokenizers_give_the_same_windows(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    examples = answer_task().dev.examples
    ours, theirs = (
        TokenizeContextWindows(each, 40)(examples)
        for each in (tiny_tokenizer(), FileTokenizer(tmp_path))
    )
    assert ours.words is not None and theirs.words is not None
    assert np.array_equal(ours.words, theirs.words)
    for name, array in ours.arrays.items():
        assert np.array_equal(array, theirs.arrays[name])


def test_a_tokenizer_without_a_first_token_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ModelError, match="puts no token before a text"):
        TokenizeContextWindows(tokenizer)([("which", "apple")])


def cells(*logits: tuple[float, float]) -> Outputs:
    """[CLS], and words of one character with spaces between."""
    starts = np.arange(len(logits) - 1) * 2
    places = np.concatenate([[NO_ANSWER], place_of(starts, starts + 1)])
    return Outputs(np.array(logits, dtype=np.float32), places)


ABC: Example = ("which", "a b c")


def test_an_answer_starts_before_it_ends_and_has_so_many_tokens_at_most() -> None:
    turned = cells((0, 0), (0, 9), (1, 1), (9, 0))
    (found,) = QUESTION_ANSWERING.decode(turned, ABC)
    assert found in (("a", 0), ("c", 4)), "not from c to a"
    words = " ".join("x" * 100)
    logits = np.zeros((101, 2))
    logits[1, 0] = logits[99, 1] = 9
    logits[5, 1] = 3
    (found,) = QUESTION_ANSWERING.decode(cells(*map(tuple, logits.tolist())), ("q", words))
    assert found == ("x x x x x", 0)


def test_no_answer_is_above_by_the_threshold() -> None:
    own = cells((2, 2), (1, 0), (0, 1.5), (0, 0))  # 4 of none, 2.5 of "a b"
    assert QUESTION_ANSWERING.decode(own, ABC) == (("a b", 0),), "always answers"
    assert MAY_BE_NONE.decode(own, ABC) == ()
    assert QuestionAnswering(-1.0).decode(own, ABC) == ()
    assert QuestionAnswering(-2.0).decode(own, ABC) == (("a b", 0),)
    other = QUESTION_ANSWERING.joined([own, cells((0, 0), (0, 0), (0, 0), (0, 0))])
    assert MAY_BE_NONE.decode(other, ABC) == (("a b", 0),), "one window is sure that there is one"
    alone = cells((0, 0))
    assert QUESTION_ANSWERING.decode(alone, ABC) == MAY_BE_NONE.decode(alone, ABC) == ()


def test_start_and_end_are_decisions_of_an_example() -> None:
    own = cells((2, 2), (1, 0), (0, 1.5), (0, 0))
    assert MAY_BE_NONE.decisions(own).tolist() == [[NO_ANSWER, NO_ANSWER]]
    assert MAY_BE_NONE.margins(own).tolist() == [[0.5, 0.25]]
    assert [span_of(each) for each in QUESTION_ANSWERING.decisions(own)[0]] == [(0, 1), (2, 3)]
    assert QUESTION_ANSWERING.margins(own).tolist() == [[0.5, 0.75]]
    assert QuestionAnswering(-2.0).margins(own).tolist() == [[0.0, 0.25]]
    assert QUESTION_ANSWERING.margins(cells((1, 1))).tolist() == [[0.0, 0.0]]


def test_the_threshold_with_the_best_f1_is_fitted() -> None:
    none = [cells((value, value), (1, 1), (0, 0), (0, 0)) for value in (5, 3, 2, -1)]
    targets: list[Answers] = [(), (), (("a", 0),), (("a", 0),)]
    fitted = QUESTION_ANSWERING.fit(none, [ABC] * 4, targets)
    assert -4 < fitted["no_answer"] < -2, "between 2 and 3 on both sides"
    problem = QUESTION_ANSWERING.with_fitted(fitted)
    assert [problem.decode(own, ABC) for own in none] == targets
    assert QUESTION_ANSWERING.fit(none, [ABC] * 4, [(("a", 0),)] * 4) == {}
    hopeless = QUESTION_ANSWERING.fit(none, [ABC] * 4, [()] * 4)["no_answer"]
    assert [QuestionAnswering(hopeless).decode(own, ABC) for own in none] == [()] * 4


def test_scores_are_probabilities() -> None:
    own = cells((2, 2), (1, 0), (0, 1.5), (0, 0))
    for problem, sure in ((QUESTION_ANSWERING, False), (MAY_BE_NONE, True)):
        tensors = problem.response([own, own], [ABC, ABC], LABELS, [ABC, ABC])
        answer = problem.read_response(tensors, 1, ABC)
        assert (answer["label"] == "") is sure
        assert 0 < answer["score"] < 1
        assert np.array_equal(answer["logits"], own.logits)
    starts, ends = (np.exp(column) / np.exp(column).sum() for column in own.logits[1:].T)
    tensors = QUESTION_ANSWERING.response([own], [ABC], LABELS, [ABC])
    assert tensors["SCORE"][0, 0] == pytest.approx(starts[0] * ends[1], rel=1e-5)


def test_a_response_has_the_tokens_of_its_longest_context() -> None:
    short, long = cells((0, 0), (1, 1)), cells((0, 0), (1, 1), (0, 0), (0, 0))
    tensors = QUESTION_ANSWERING.response([short, long, short], [ABC] * 3, LABELS, [ABC] * 3)
    own = QUESTION_ANSWERING.response_of(tensors, slice(0, 1), [ABC])
    assert own["LOGITS"].shape == (1, 2, 2) and tensors["LOGITS"].shape == (3, 4, 2)
    assert np.isfinite(tensors["LOGITS"]).all(), "JSON has no NaN"
    answer = QUESTION_ANSWERING.read_response(tensors, 2, ABC)
    assert len(answer["logits"]) == 2


def batch_of(split: Split, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    examples = token_dataset(split, tokenizer, QUESTION_ANSWERING.name)
    return examples.collate([examples[row] for row in range(len(examples))])


def test_each_window_is_an_example_of_its_own() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 30
    split = answer_task().dev
    batch = batch_of(split, tokenizer)
    assert len(batch["input_ids"]) > len(split)
    assert batch["labels"].shape == (len(batch["input_ids"]), 2)
    has = (batch["labels"] > 0).all(1)
    assert has.sum() >= sum(map(bool, split.label_ids))
    assert (batch["labels"][~has] == 0).all(), "[CLS] where a window lacks the answer"


def test_losses_are_over_the_tokens_of_the_context_and_the_first() -> None:
    split = answer_task().dev.first(8)
    batch = batch_of(split, tiny_tokenizer())
    rows = torch.arange(len(batch["labels"]))
    logits = torch.zeros(*batch["input_ids"].shape, 2)
    for column in (0, 1):
        logits[rows, batch["labels"][:, column], column] = 50.0
    others = ~batch[PREDICTING].bool()
    spoiled = logits.masked_fill(others[..., None], 99.0)
    assert HEAD.hard_loss(logits, batch) < 1e-6
    assert torch.equal(HEAD.hard_loss(spoiled, batch), HEAD.hard_loss(logits, batch))
    assert HEAD.soft_loss(spoiled, logits, batch, 2.0) < 1e-6
    assert HEAD.soft_loss(torch.zeros_like(logits), logits, batch, 2.0) > 1
    count = int(batch[PREDICTING][0].sum())
    first = {name: column[:1] for name, column in batch.items()}
    even = HEAD.hard_loss(torch.zeros_like(logits)[:1], first)
    assert even == pytest.approx(np.log(count), rel=1e-4)


def test_a_question_that_nobody_has_answered_teaches_no_answer() -> None:
    split = answer_task().dev.first(4)
    unlabelled = Split(split.examples, tuple(map(QUESTION_ANSWERING.unlabelled, split.examples)))
    batch = batch_of(unlabelled, tiny_tokenizer())
    logits = torch.randn(*batch["input_ids"].shape, 2)
    assert HEAD.hard_loss(logits, batch) == 0
    assert HEAD.soft_loss(logits, -logits, batch, 1.0) > 0
    assert len(unlabelled.labelled) == 0 and len(split.labelled) == 4


def test_scores_with_and_without_answers_are_apart() -> None:
    task = answer_task()
    answer, answered = task.problem.constant(task.train.label_ids, task.labels)
    predictions = [answered(example) for example in task.dev.examples]
    assert answer == "no answer"
    found = [score(name, task.dev.label_ids, predictions).value for name in task.problem.metrics]
    share = sum(not target for target in task.dev.label_ids) / len(task.dev)
    assert found == pytest.approx([share, share, 0, 0, 1])
    (constant,) = task.problem.same_everywhere(predictions, task.dev.label_ids, task.labels)
    assert constant.share == pytest.approx(share)


def test_tokens_that_are_no_part_of_a_context_have_no_place() -> None:
    batch = TokenizeContextWindows(tiny_tokenizer(), 24)([("number one", "apple pear")])
    assert batch.words is not None
    assert [span_of(int(each)) for each in batch.words[0] if each > 0] == [(0, 5), (6, 10)]
    assert (batch.words[0] == NO_WORD).sum() == batch.words.shape[1] - 3
