"""The parity gate: sound candidates pass, each kind of damage fails by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError, ParityError, UnknownNameError
from bertender.gate.cases import EDGE_TEXTS, Case
from bertender.gate.figures import PairedLogits, Truth, measure_figures
from bertender.gate.judge import (
    CHECKS,
    TOLERANCES,
    Parity,
    check_parity,
    decided_by,
    judged_of,
    margins_of,
    parity_sample,
    require_parity,
    warn_of_near_ties,
)
from bertender.models.classifier import Classifier, TorchPredictor
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Example, Tokenize
from bertender.text.tokenizer import load_tokenizer
from tests.fake_classifier import EXAMPLES, encode_words, fake_classifier, honest, logits_of
from tests.toys import tiny_bert

Answer = Callable[[Batch], np.ndarray]


def gate(answer: Answer, precision: str = "float32", **settings: object) -> Parity:
    reference = fake_classifier("reference")
    candidate = fake_classifier("candidate", answer)
    return check_parity(reference, candidate, EXAMPLES, TOLERANCES[precision], **settings)


def shifted(amount: float) -> Answer:
    """Every logit off by the amount, in a direction that depends on the text."""

    def answer(batch: Batch) -> np.ndarray:
        signs = [1 if len(example[0]) % 2 else -1 for example in batch.examples]
        return honest(batch) + amount * np.array(signs)[:, None] * np.array([1, -1])

    return answer


def one_text_wrong(batch: Batch) -> np.ndarray:
    logits = honest(batch)
    for row, example in enumerate(batch.examples):
        if example == EXAMPLES[30]:
            logits[row] = -logits[row]
    return logits


ELEMENTWISE = [name for name, row in TOLERANCES.items() if row.max_abs is not None]
"""Rows that bound every single logit."""
DISTRIBUTED = [name for name, row in TOLERANCES.items() if row.max_p95 is not None]
"""Rows that bound the distribution over texts."""
SPREAD = float(np.std([row[1] for row in logits_of(EXAMPLES)]))


def scale(precision: str, share: float) -> float:
    """A share of what the tolerance lets one logit move; the largest logit is 4.1."""
    allowed = TOLERANCES[precision].max_abs
    assert allowed is not None
    return allowed * 4.1 * share


def test_every_row_bounds_single_logits_or_their_distribution() -> None:
    assert sorted([*ELEMENTWISE, *DISTRIBUTED]) == sorted(TOLERANCES)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_same_answers_pass_everything(precision: str) -> None:
    parity = gate(honest, precision)
    assert parity.passed and parity.failures == ()
    assert parity.max_abs_difference == 0.0 and parity.agreement == 1.0
    assert (parity.median_difference, parity.p95_difference) == (0.0, 0.0)
    assert parity.min_cosine == pytest.approx(1.0)
    assert parity.logit_scale == pytest.approx(4.1)
    assert parity.logit_spread == pytest.approx(SPREAD)
    # three batch sizes over all examples, edge texts of two kinds alone, and both together
    edges = 2 * EDGE_TEXTS
    assert (parity.texts, parity.rows) == (len(EXAMPLES) + edges, 3 * len(EXAMPLES) + 2 * edges)
    require_parity(parity)


@pytest.mark.parametrize("precision", ELEMENTWISE)
def test_noise_is_let_through_up_to_the_tolerance_and_no_further(precision: str) -> None:
    bound = (TOLERANCES[precision].mean_abs or 0.0) * 4.1
    assert gate(shifted(0.5 * bound), precision).passed
    too_much = gate(shifted(2 * bound), precision)
    assert any("mean_abs_difference" in failure for failure in too_much.failures)


@pytest.mark.parametrize("precision", DISTRIBUTED)
def test_the_median_text_may_move_up_to_the_tolerance_and_no_further(precision: str) -> None:
    bound = (TOLERANCES[precision].max_median or 0.0) * SPREAD
    assert not any(
        "median" in failure for failure in gate(shifted(0.9 * bound), precision).failures
    )
    too_much = gate(shifted(1.1 * bound), precision)
    assert any("median_difference" in failure for failure in too_much.failures)


@pytest.mark.parametrize("precision", DISTRIBUTED)
def test_one_text_in_a_hundred_answered_otherwise_refuses_no_rounded_model(precision: str) -> None:
    """Rounding moves single texts far. What is refused is a distribution."""
    parity = gate(one_text_wrong, precision)
    assert parity.min_cosine is not None and parity.min_cosine < -0.9
    assert parity.agreement is not None and parity.agreement < 1.0
    assert parity.passed, parity.failures


def far(examples: Sequence[Example]) -> Answer:
    """Some texts moved by two spreads."""

    def answer(batch: Batch) -> np.ndarray:
        moved = np.array([2 * SPREAD * (example in examples) for example in batch.examples])
        return honest(batch) + moved[:, None] * np.array([-1, 1])

    return answer


@pytest.mark.parametrize(("moved", "refused"), [(4, False), (16, True)])
def test_the_95th_percentile_of_few_texts_must_be_shown_to_be_too_far(
    moved: int, refused: bool
) -> None:
    """Four of 64 can be chance where three texts in a hundred move far."""
    few = EXAMPLES[:64]
    parity = check_parity(
        fake_classifier("reference"),
        fake_classifier("candidate", far(few[:moved])),
        few,
        TOLERANCES["int8"],
    )
    assert parity.p95_difference is not None and parity.p95_difference > 1.0
    assert any("p95_difference" in failure for failure in parity.failures) is refused


def test_of_few_texts_the_one_that_moved_least_is_judged() -> None:
    few = EXAMPLES[:4]
    candidate = fake_classifier("candidate", shifted(3.0))
    parity = check_parity(fake_classifier("reference"), candidate, few, TOLERANCES["int8"])
    assert any("median_difference_low" in failure for failure in parity.failures)


def undecided(shift: float, step: float = 0.0) -> Answer:
    """Logits near `shift` for every text, as of a model that has learned one label alone."""

    def answer(batch: Batch) -> np.ndarray:
        noise = 5e-4 * honest(batch) + step * np.sign(honest(batch))
        return np.array([-shift, shift]) + noise

    return answer


@pytest.mark.parametrize(
    ("candidate", "passes"), [(undecided(0.1, 2e-3), True), (undecided(-0.1), False)]
)
def test_rounding_that_hardly_changes_probabilities_refuses_no_model_of_one_label(
    candidate: Answer, passes: bool
) -> None:
    """Its spread over texts is about 0.001 logits; rounding moves each logit by twice that."""
    reference = fake_classifier("reference", undecided(0.1))
    parity = check_parity(
        reference, fake_classifier("candidate", candidate), EXAMPLES, TOLERANCES["int8"]
    )
    assert parity.passed is passes, parity.failures


def leaning(shift: float, blur: float = 0.0, own: float = 0.05) -> Answer:
    """Logits of a model that gives nearly all texts one label, some of them farther from a tie."""

    def answer(batch: Batch) -> np.ndarray:
        signs = np.array([1 if len(example[0]) % 2 else -1 for example in batch.examples])
        logits = shift + own * honest(batch)[:, 1] + blur * signs
        return np.stack([-logits, logits], axis=1)

    return answer


LEANING = leaning(1.0)


def leaning_gate(answer: Answer, reference: Answer = LEANING) -> Parity:
    classifiers = fake_classifier("reference", reference), fake_classifier("candidate", answer)
    return check_parity(*classifiers, EXAMPLES, TOLERANCES["int8"])


def first_words(parity: Parity) -> set[str]:
    return {failure.split()[0] for failure in parity.failures}


@pytest.mark.parametrize(
    ("candidate", "refused_by"),
    [
        (leaning(0.85, blur=0.02), set()),  # the spread is 0.12: the shift alone is more than one
        (leaning(0.75), {"median_difference_low"}),
        (leaning(1.0, blur=0.03), {"median_difference_low"}),  # of the size, it would be little
    ],
)
def test_a_shift_of_all_texts_is_measured_by_the_size_of_the_logits(
    candidate: Answer, refused_by: set[str]
) -> None:
    parity = leaning_gate(candidate)
    assert parity.logit_spread == pytest.approx(0.05 * SPREAD)
    assert parity.logit_size == pytest.approx(1.0 + 0.05 * SPREAD, abs=0.02)
    assert first_words(parity) == refused_by
    for failure in parity.failures:
        assert "alone)" not in failure or "batch of 1" in failure, "an edge text is not judged"


def test_edge_texts_may_shift_as_all_texts_do_and_no_further() -> None:
    def moved_at_edges(batch: Batch) -> np.ndarray:
        known = np.array([example in EXAMPLES for example in batch.examples])
        return LEANING(batch) + np.where(known[:, None], 0.0, [[0.2, -0.2]])

    alike = leaning_gate(leaning(0.8))
    assert alike.edge_difference == pytest.approx(0.2 / 1.12, abs=0.01) == alike.common_shift
    alone = leaning_gate(moved_at_edges)
    assert alone.common_shift == 0.0
    assert alone.edge_difference == pytest.approx(0.2 / (0.05 * SPREAD))


def test_texts_that_move_together_and_not_with_the_others_are_no_shift_of_all() -> None:
    """As clipping moves one of the labels: their average is not how far the others moved."""

    def clipped(batch: Batch) -> np.ndarray:
        logits = honest(batch)
        return logits - 0.5 * SPREAD * (logits[:, 1:] > 0.5) * np.array([-1, 1])

    parity = gate(clipped, "int8")
    assert parity.logit_size is not None
    moved = np.mean([row[1] > 0.5 for row in logits_of(EXAMPLES)])
    assert 0.3 < moved < 0.5 and parity.common_shift == pytest.approx(
        0.5 * moved * SPREAD / parity.logit_size, abs=0.01
    )
    assert parity.median_difference == 0.0 and parity.passed


def constant(answer: Answer) -> Answer:
    """The average logits of an answer, for every text."""
    average = answer(Batch(EXAMPLES, {})).mean(axis=0)
    return lambda batch: np.tile(average, (len(batch.examples), 1))


@pytest.mark.parametrize("reference", [LEANING, leaning(1.0, own=0.004)])
def test_one_output_for_all_texts_is_refused_however_little_they_differ(
    reference: Answer,
) -> None:
    parity = leaning_gate(constant(reference), reference)
    assert parity.correlation == 0.0 and "correlation_high" in first_words(parity)


def test_a_reference_that_distinguishes_nothing_has_no_order_to_lose() -> None:
    parity = leaning_gate(leaning(1.0, own=0.0), leaning(1.0, own=0.0))
    assert parity.passed and parity.correlation is None


def every_fifth_wrong(batch: Batch) -> np.ndarray:
    logits = honest(batch)
    turned = [EXAMPLES.index(example) % 5 == 0 for example in batch.examples if example in EXAMPLES]
    return np.where(np.resize(turned, len(logits))[:, None], -logits, logits)


def wrong_when_long(batch: Batch) -> np.ndarray:
    """Nothing is wrong with the task's own texts."""
    known = np.array([example in EXAMPLES for example in batch.examples])
    return np.where(known[:, None], honest(batch), -3 * honest(batch) - 3)


DAMAGE: dict[str, tuple[Answer, str]] = {
    "max_abs_difference": (one_text_wrong, "float32"),
    "mean_abs_difference": (shifted(0.05), "float32"),
    "min_cosine": (one_text_wrong, "float32"),
    "median_difference_low": (shifted(3.0), "int8"),
    "p95_difference_low": (every_fifth_wrong, "int8"),
    "edge_difference": (wrong_when_long, "int8"),
    "correlation_high": (constant(honest), "int8"),
    "decided_agreement_high": (lambda batch: honest(batch)[:, ::-1], "int8"),
    "score_change_high": (lambda batch: honest(batch)[:, ::-1], "int8"),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.figure)
def test_each_check_fails_on_its_damage_with_value_bound_and_worst_text(check) -> None:
    answer, precision = DAMAGE[check.figure]
    parity = gate(answer, precision, truth=Truth(logits_of(EXAMPLES).argmax(axis=1), "accuracy"))
    (failure,) = [line for line in parity.failures if line.startswith(check.figure)]
    measured = getattr(parity, check.figure)
    assert f"is {measured:.4g}, allowed at" in failure
    assert re.search(r"worst: '.+' \(.+\)$", failure)
    if answer is one_text_wrong:
        assert repr(EXAMPLES[30][0]) in failure


def test_swapped_logits_fail_and_all_failures_are_raised_at_once() -> None:
    parity = gate(lambda batch: honest(batch)[:, ::-1])
    assert parity.agreement == 0.0 and len(parity.failures) == 4
    with pytest.raises(ParityError) as raised:
        require_parity(parity)
    for failure in parity.failures:
        assert failure in str(raised.value)
    assert "candidate does not agree with reference" in str(raised.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_fail_by_name_and_leave_the_figures_finite(value: float) -> None:
    def broken(batch: Batch) -> np.ndarray:
        return np.where(
            np.array([[ex == EXAMPLES[3]] for ex in batch.examples]), value, honest(batch)
        )

    parity = gate(broken)
    assert [f for f in parity.failures if "candidate logits are NaN or infinite in 3 of" in f]
    assert repr(EXAMPLES[3][0]) in parity.failures[0]
    assert parity.max_abs_difference == 0.0
    assert Parity.model_validate_json(parity.model_dump_json()) == parity


def test_nan_everywhere_has_no_figures() -> None:
    parity = gate(lambda batch: honest(batch) * np.nan)
    assert not parity.passed and parity.rows == 0
    assert parity.max_abs_difference is None and parity.agreement is None
    assert parity.logit_scale == pytest.approx(4.1)  # the reference did answer
    assert Parity.model_validate_json(parity.model_dump_json()) == parity


def test_a_reference_of_nan_fails_by_name() -> None:
    reference = fake_classifier("reference", lambda batch: honest(batch) * np.nan)
    parity = check_parity(reference, fake_classifier(), EXAMPLES, TOLERANCES["float32"])
    assert any(failure.startswith("reference logits are NaN") for failure in parity.failures)


def test_a_reference_of_another_shape_is_an_error_of_its_own() -> None:
    reference = fake_classifier("reference", lambda batch: honest(batch)[:, :1])
    with pytest.raises(ModelError, match="reference"):
        check_parity(reference, fake_classifier(), EXAMPLES, TOLERANCES["float32"])


@pytest.mark.parametrize(
    "answer",
    [lambda batch: honest(batch)[:1], lambda batch: np.repeat(honest(batch), 2, axis=1)],
    ids=["rows lost", "too many labels"],
)
def test_logits_of_a_wrong_shape_fail(answer: Answer) -> None:
    parity = gate(answer)
    assert any("logits have shape" in failure for failure in parity.failures)


def test_a_fixed_batch_axis_fails_in_every_batch_and_is_still_compared_alone() -> None:
    def only_one(batch: Batch) -> np.ndarray:
        if len(batch) > 1:
            raise RuntimeError("Got invalid dimensions for input: input_ids\nmore")
        return honest(batch)

    parity = gate(only_one)
    named = [failure for failure in parity.failures if "RuntimeError: Got invalid" in failure]
    assert len(named) == len(parity.failures) == 3  # batches of 4 and 32, and the edge texts
    assert parity.rows == len(EXAMPLES) + 2 * EDGE_TEXTS


def test_an_answer_that_depends_on_the_neighbours_fails_in_batches_only() -> None:
    def leaks_padding(batch: Batch) -> np.ndarray:
        padding = (batch.arrays["attention_mask"] == 0).sum(axis=1, keepdims=True)
        return honest(batch) + 0.1 * padding

    reference = fake_classifier("reference")
    candidate = fake_classifier("candidate", leaks_padding, encode=encode_words)
    parity = check_parity(reference, candidate, EXAMPLES, TOLERANCES["float32"])
    assert not parity.passed
    differences = {case.name: case.max_abs_difference for case in parity.cases}
    assert differences["batch of 1"] == 0.0 and differences["truncated, alone"] == 0.0
    assert differences["batch of 32"] and differences["one word beside truncated"]
    alone = check_parity(reference, candidate, EXAMPLES, TOLERANCES["float32"], batch_sizes=(1,))
    assert alone.passed  # the gate of an endpoint that is asked for one text at a time


@pytest.fixture(scope="module")
def lively(teacher: Artifact, task: Task) -> Classifier:
    """The tiny BERT with weights ten times as large: untrained ones hardly attend to anything."""
    tokenizer = load_tokenizer(teacher.path)
    model = tiny_bert(len(tokenizer), task.labels)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(10)
    return Classifier("lively", task.labels, Tokenize(tokenizer), TorchPredictor(model), 0)


def test_a_real_model_passes_and_without_its_padding_mask_fails(
    lively: Classifier, task: Task
) -> None:
    sound, examples = lively, task.dev.examples
    assert check_parity(sound, sound, examples, TOLERANCES["float32"]).passed

    def without_mask(rows: Sequence[Example]) -> Batch:
        batch = sound.encode(rows)
        mask = np.ones_like(batch.arrays["attention_mask"])
        return Batch(batch.examples, {**batch.arrays, "attention_mask": mask})

    damaged = Classifier("damaged", sound.labels, without_mask, sound.predictor, 0)
    parity = check_parity(sound, damaged, examples, TOLERANCES["float32"])
    assert any("max_abs_difference" in failure for failure in parity.failures)
    # truth is a text alone, so a reference that forgets the mask as well does not hide it
    assert not check_parity(damaged, damaged, examples, TOLERANCES["float32"]).passed


def test_damage_in_one_arrangement_is_not_averaged_away() -> None:
    """Half of the batches' answers swapped: of all answers, most are still right."""

    def answer(batch: Batch) -> np.ndarray:
        logits = honest(batch)
        return (
            logits
            if len(batch) < 30
            else np.where(np.arange(len(batch))[:, None] % 2, logits, -logits)
        )

    parity = gate(answer, "int8")
    assert parity.agreement is not None and parity.agreement > 0.8
    assert parity.decided_agreement is not None and parity.decided_agreement < 0.7
    assert parity.mean_abs_difference == pytest.approx(
        np.abs(2 * logits_of(EXAMPLES)).mean() * 48 / 120,
        rel=0.3,  # 3 of 4 batches have 32 texts
    )
    assert any("decided_agreement_high" in failure for failure in parity.failures)


def test_near_ties_may_swap_and_decided_ones_may_not() -> None:
    gap = 2 * scale("float32", 1.0) - 1e-4

    def with_gap(sign: int) -> Answer:
        tied = np.array([sign * gap / 2, -sign * gap / 2])
        return lambda batch: np.array(
            [tied if ex == EXAMPLES[5] else logits_of([ex])[0] for ex in batch.examples]
        )

    tie = fake_classifier("reference", with_gap(1))
    swapped = fake_classifier("candidate", with_gap(-1))
    parity = check_parity(tie, swapped, EXAMPLES, TOLERANCES["float32"])
    assert parity.agreement is not None and parity.agreement < 1.0
    assert parity.decided_agreement == 1.0
    assert not any("agreement" in failure for failure in parity.failures)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("yes", "no"), r"label order: \('yes', 'no'\), must be \('no', 'yes'\)"),
        (("no", "maybe"), "label names"),
        (("no", "yes", "maybe"), "label count is 3"),
    ],
)
def test_other_labels_fail_by_name(labels: tuple[str, ...], message: str) -> None:
    candidate = fake_classifier("candidate", labels=labels)
    parity = check_parity(fake_classifier(), candidate, EXAMPLES, TOLERANCES["float32"])
    assert re.search(message, parity.failures[0])


def test_no_examples_and_other_labels_are_both_named() -> None:
    candidate = fake_classifier("candidate", labels=("yes", "no"))
    parity = check_parity(fake_classifier(), candidate, (), TOLERANCES["float32"])
    assert len(parity.failures) == 2 and "no examples" in parity.failures[1]
    with pytest.raises(ParityError, match="no examples"):
        require_parity(parity)


def test_each_side_encodes_the_texts_itself() -> None:
    reference = fake_classifier("tokens", encode=encode_words)
    assert check_parity(reference, fake_classifier("text"), EXAMPLES, TOLERANCES["served"]).passed


def test_truncation_at_another_length_fails_on_the_over_long_text(lively: Classifier) -> None:
    assert isinstance(lively.encode, Tokenize)
    cut = replace(lively, encode=Tokenize(lively.encode.tokenizer, max_length=16))
    examples = [("apple pear",), ("saw drill plum",), ("melon",)]
    parity = check_parity(lively, cut, examples, TOLERANCES["float32"])
    differences = {case.name: case.max_abs_difference for case in parity.cases}
    assert (differences["batch of 1"], differences["one word, alone"]) == (0.0, 0.0)
    assert differences["truncated, alone"]
    assert any("apple pear saw drill plum melon apple" in failure for failure in parity.failures)


def test_the_sample_holds_the_shortest_and_the_longest() -> None:
    examples = [*EXAMPLES, ("short",), ("long " * 99,)]
    sample = parity_sample(examples, 10)
    assert len(set(sample)) <= len(sample) == 10
    assert ("long " * 99,) in sample
    assert min(len(text.split()) for (text,) in sample) == 1
    assert sample == parity_sample(examples, 10) != parity_sample(examples, 10, seed=1)
    assert parity_sample(examples[:5]) == tuple(examples[:5])


def test_pairs_of_texts_are_compared() -> None:
    pairs = [(text, f"{text} again") for (text,) in EXAMPLES]
    parity = check_parity(fake_classifier(), fake_classifier(), pairs, TOLERANCES["float32"])
    assert parity.passed and parity.texts == len(pairs) + 2 * EDGE_TEXTS


def test_the_summary_is_what_a_card_can_hold() -> None:
    parity = gate(shifted(0.05))
    summary = parity.summary()
    assert not summary.passed and summary.rows == parity.rows
    assert summary.max_abs_difference == parity.max_abs_difference


def test_an_unknown_precision_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'float32'"):
        TOLERANCES["float3"]


def paired_answers(moved: float) -> PairedLogits:
    """40 contexts of 30 tokens: of the two where an answer is likely, one is so by 0.4."""
    draw = np.random.default_rng(0)
    expected = draw.normal(-4, 1, (40, 30, 2))
    expected[:, 3], expected[:, 8] = 4.0, 4.4
    actual = expected + moved * draw.normal(size=expected.shape)
    replies = np.repeat(np.arange(40), 30)
    logits = [each.reshape(-1, 2) for each in (expected, actual)]
    return PairedLogits(
        *((), (Case("alone", ()),), replies, np.zeros_like(replies), *logits),
        scale=5.0,
        spread=2.0,
        size=6.0,
        problems=(),
        places=np.tile(np.arange(30), 40),
        replies=replies,
        problem=QUESTION_ANSWERING,
    )


@pytest.mark.parametrize(("moved", "judged"), [(0.02, 80), (0.5, 0)])
def test_an_answer_is_judged_where_the_candidate_moves_logits_less(
    moved: float, judged: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens in general are ten times further apart than the two that compete."""
    paired, tolerance = paired_answers(moved), TOLERANCES["int8"]
    assert not decided_by(paired, tolerance).any()
    found = judged_of(paired, tolerance)
    assert found[paired.decides].sum() == judged
    figures = measure_figures(paired, found)
    assert figures.near_ties == 80 - judged
    assert figures.decided_agreement == (1.0 if judged else None)
    margins = margins_of(paired, tolerance)
    warn_of_near_ties("a model", figures, judged, margins, tolerance)
    assert ("of 80 decisions, 80 are so near a tie" in caplog.text) == (judged == 0)
    assert ("None is judged; the outputs themselves" in caplog.text) == (judged == 0)
    assert "other 0" not in caplog.text


def test_of_near_ties_the_margin_is_said_and_not_that_little_was_learned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seven labels, each right for as many texts and near the next one: all texts are answered
    alike surely, and none as surely as by 1.3 spreads."""
    turns = np.arange(7) * 2 * np.pi / 7

    def answer(batch: Batch) -> np.ndarray:
        own = [len(example[0]) % 7 for example in batch.examples]
        return np.array([2 * np.cos(turns - turns[each]) for each in own], dtype=np.float32)

    model = fake_classifier(answer=answer, labels=tuple("abcdefg"))
    texts = tuple(("x" * length,) for length in range(1, 71))
    parity = check_parity(model, model, texts, TOLERANCES["int4"])
    assert parity.passed and parity.decided_agreement is None
    (said,) = (each for each in caplog.messages if "so near a tie" in each)
    # half of 2 (1 - cos 51.4 degrees), over 2 / sqrt(2)
    assert "outputs move by 0.27 spreads" in said and "judged beyond 1.3" in said
    assert "learned" not in said
    float_margin = margins_of(paired_answers(0.0), TOLERANCES["float32"])
    assert np.allclose(float_margin, 0.2 / 5.0), "shares of the largest logit"
