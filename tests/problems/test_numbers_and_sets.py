"""Numbers and sets of labels: how they are read, learned, decided, judged and shown."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.cli.asking import lines_of
from bertender.cli.findings import parity_lines
from bertender.comparison.accuracy import (
    check_labels_fit,
    check_varied,
    constant_row,
    evaluate,
    found_constant,
    predict_outputs,
)
from bertender.comparison.fitting import best_threshold, epoch_score, evaluated, fit_thresholds
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError
from bertender.core.findings import ScoreFindings
from bertender.gate.judge import TOLERANCES, check_parity
from bertender.metrics.metric import NO_LABEL, is_labelled
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.importing import open_artifact
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.problem import Outputs
from bertender.problems.regression import REGRESSION
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig, with_model_labels
from bertender.text.batch import keep_text
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from bertender.training.heads.numbers import output_layer
from bertender.training.heads.texts import LABEL_PADDING
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig, FinetuneConfig
from distill.finetuning.finetune import finetune
from distill.losses.signals import read_signals
from serve.client.endpoint import Classification
from tests.fake_predictor import FakePredictor
from tests.toys import number_task, set_task, tiny_bert, tiny_tokenizer, toy_task, write_model

PLACE = np.zeros(1, dtype=np.int64)


def loaded(path: Path, problem_type: str, **settings: Any) -> Any:
    config = TaskConfig(train=path, dev=path, problem_type=problem_type, select=0, **settings)
    return load_task(config)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_are_read_as_they_stand(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nfine,4.5\ndull,-1e2\n")
    task = loaded(path, "regression")
    assert (task.labels, task.metric, task.train.label_ids) == (("number",), "pearson", (4.5, -100))
    assert all(map(is_labelled, task.train.label_ids)), "-100 is a number like others"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("good", "'good' is not a number"),
        ('"3,5"', "a point before its decimals"),
        ("inf", "finite"),
        ("-1e308", "beyond 1e.30. Give the numbers in a larger unit"),
    ],
)
def test_what_is_no_number_is_named(cell: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"text,label\nfine,4.5\ndull,{cell}\n")
    with pytest.raises(DataError, match=rf"line 3, column 'label'.*{said}"):
        loaded(path, "regression")


def test_decimals_ask_for_the_kind_of_numbers(tmp_path: Path) -> None:
    rows = "".join(f"text {row},{row / 7:.3f}\n" for row in range(40))
    path = write(tmp_path / "a.csv", f"text,label\n{rows}")
    with pytest.raises(DataError, match="--problem-type regression"):
        load_task(TaskConfig(train=path, dev=path))


SETS = {
    "a.jsonl": '{"text": "one", "labels": ["joy", "anger"]}\n{"text": "two", "labels": []}\n',
    "a.csv": 'text,labels\none,"joy, anger"\ntwo,\n',
    "c.csv": 'text,label\none,"[""joy"", ""anger""]"\ntwo,[]\n',
    "b.tsv": "text\tlabels\none\tjoy|anger\ntwo\t\n",
}


@pytest.mark.parametrize("name", SETS)
def test_sets_are_lists_or_names_by_commas(name: str, tmp_path: Path) -> None:
    task = loaded(write(tmp_path / name, SETS[name]), "multi_label_classification")
    assert (task.labels, task.metric) == (("anger", "joy"), "micro_f1")
    assert task.train.label_ids == ((0, 1), ())
    assert all(map(is_labelled, task.train.label_ids)), "a set of none is an answer"


def test_each_label_may_have_a_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Tweet\tjoy\tanger\none\t1\t0\ntwo\t1\t1\nthree\t0\t0\n")
    settings: dict[str, Any] = {"text_column": "Tweet", "label_column": "joy,anger"}
    task = loaded(path, "multi_label_classification", **settings)
    assert task.train.label_ids == ((1,), (0, 1), ())
    floats = write(tmp_path / "c.tsv", "Tweet\tjoy\tanger\none\t1.0\t0.0\ntwo\t1.0\t1.0\n")
    same = loaded(floats, "multi_label_classification", **settings)
    assert same.train.label_ids == ((1,), (0, 1))
    wrong = write(tmp_path / "b.tsv", "Tweet\tjoy\tanger\none\t1\t0\ntwo\t1\tyes\n")
    with pytest.raises(DataError, match="line 3, column 'anger': 'yes' is not a truth value"):
        loaded(wrong, "multi_label_classification", **settings)
    with pytest.raises(ConfigError, match="must be different columns"):
        loaded(path, "multi_label_classification", text_column="joy", label_column="joy,anger")


@pytest.mark.parametrize("values", [["joy", "joy"], ["joy", ""], ["joy", 3], 7])
def test_what_is_no_set_is_named(values: Any, tmp_path: Path) -> None:
    rows = [{"text": "a", "labels": ["anger"]}, {"text": "b", "labels": values}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="line 2, column 'labels'"):
        loaded(path, "multi_label_classification")


NOTHING_TO_TELL = {
    "regression": ("text,label\na,3.5\nb,3.5\n", "all 2 rows have the number 3.5"),
    "multi_label_classification": ("text,label\na,\nb,\n", "all 2 sets are empty"),
}


@pytest.mark.parametrize("kind", NOTHING_TO_TELL)
def test_nothing_to_tell_apart_is_refused(kind: str, tmp_path: Path) -> None:
    text, said = NOTHING_TO_TELL[kind]
    with pytest.raises(DataError, match=said):
        loaded(write(tmp_path / "a.csv", text), kind)


@pytest.mark.parametrize(
    ("cells", "said"),
    [(("0", "1"), "of 0 and 1, name them all"), (("\"['a', 'b']\"", "a"), "line 2.*list as text")],
)
def test_cells_that_would_be_odd_labels_are_refused(
    cells: tuple[str, str], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", "text,label\none,{}\ntwo,{}\n".format(*cells))
    with pytest.raises(DataError, match=said):
        loaded(path, "multi_label_classification")


def test_a_column_that_no_row_has_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.csv", "text,joy,fear\none,1,0\ntwo,0,0\n")
    task = loaded(path, "multi_label_classification", label_column="joy,fear")
    assert task.labels == ("joy",)
    assert "no row has 'fear'" in caplog.text


def test_a_label_that_every_row_has_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / "rows.csv").write_text("text,joy,fear\nsaw,1,0\npear,1,1\nsaw pear,1,0\n")
    loaded(path, "multi_label_classification", label_column="joy,fear")
    assert "all 3 rows have 'joy', so that a model of these rows learns nothing" in caplog.text
    caplog.clear()
    path.write_text("text,joy,fear\nsaw,1,0\npear,0,1\nsaw pear,1,0\n")
    loaded(path, "multi_label_classification", label_column="joy,fear")
    assert "rows have" not in caplog.text


def test_an_oracle_decodes_to_its_targets() -> None:
    for task in (number_task(20, 20), set_task(20, 20)):
        for target, example in zip(task.dev.label_ids, task.dev.examples, strict=True):
            logits = (
                np.array([[target]])
                if task.problem is REGRESSION
                else np.array([[1.0 if label in target else -1.0 for label in range(2)]])
            )
            outputs = Outputs(logits.astype(np.float32), PLACE)
            assert task.problem.decode(outputs, example) == pytest.approx(target)


def test_the_control_is_the_mean_or_the_frequent_labels() -> None:
    numbers = number_task()
    mean = constant_row(numbers)
    assert float(mean.label) == pytest.approx(np.mean(numbers.train.label_ids), abs=0.05)
    assert mean.score.value == 0
    answer, answered = MULTI_LABEL.constant([(0,), (0, 1), (0,), ()], ("a", "b"))
    assert (answer, answered(("text",))) == ("a", (0,))
    answer, _ = MULTI_LABEL.constant([(0,), (1,), (2,)], ("a", "b", "c"))
    assert answer == "a, b, c", "its micro F1 is 0.5, that of one label 0.33"


@pytest.mark.parametrize(
    "task", [toy_task(), set_task(), number_task()], ids=lambda task: task.metric
)
def test_a_model_that_is_no_better_than_one_answer_is_said(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Noise gives several answers too: two in three right, of 32, is nothing."""
    floor = constant_row(task).score
    chance = 0.0 if floor.undefined else floor.high
    for score, is_said in ((chance - 0.01, True), (chance + 0.01, False)):
        caplog.clear()
        scores = ScoreFindings(chosen_on="dev", score=score, scores={})
        check_varied(scores, task, FinetuneConfig(), ("epochs",), "more epochs")
        assert ("next to nothing. Try more epochs" in caplog.text) is is_said


def test_one_answer_to_all_texts_is_found() -> None:
    numbers, sets = number_task(), set_task()
    same = [210.0001] * len(numbers.dev)
    found = found_constant(numbers, numbers.dev, same)
    assert found is not None and found.label == "210"
    assert found_constant(numbers, numbers.dev, list(numbers.dev.label_ids)) is None
    empty = found_constant(sets, sets.dev, [()] * len(sets.dev))
    assert empty is not None and empty.label == "none"
    assert empty.share == pytest.approx(sets.dev.label_ids.count(()) / len(sets.dev))


def test_a_number_that_differs_has_a_loss_in_spreads() -> None:
    """A softmax over one number would always agree."""
    head, spread = HEADS["regression"], 40.0
    batch = {"labels": torch.tensor([200.0, 240.0]), "spread": torch.full((2,), spread)}
    student, teacher = torch.tensor([[220.0], [240.0]]), torch.tensor([[200.0], [240.0]])
    assert float(head.hard_loss(student, batch)) == pytest.approx((20 / 40) ** 2 / 2)
    assert float(head.soft_loss(student, teacher, batch, 2.0)) == pytest.approx((20 / 40) ** 2 / 2)


def test_sets_have_torchs_loss_and_the_divergence_of_their_probabilities() -> None:
    head = HEADS["multi_label_classification"]
    logits, teacher = torch.tensor([[0.5, -2.0, 1.0]]), torch.tensor([[1.0, -1.0, -1.0]])
    batch = {"labels": torch.tensor([[2, 0, -1]])}
    truth = torch.tensor([[1.0, 0.0, 1.0]])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth)
    torch.testing.assert_close(head.hard_loss(logits, batch), expected)
    p, q = teacher.sigmoid(), logits.sigmoid()
    by_hand = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(head.soft_loss(logits, teacher, batch, 1.0), by_hand)
    assert MULTI_LABEL.divergence(teacher.numpy(), logits.numpy()) == pytest.approx(
        float(by_hand) * 3, abs=1e-6
    )


def test_what_nobody_labelled_has_no_part_in_the_loss() -> None:
    numbers, sets = HEADS[REGRESSION.name], HEADS[MULTI_LABEL.name]
    spread = torch.full((2,), 2.0)
    logits = torch.tensor([[3.0], [9.0]], requires_grad=True)
    known = {"labels": torch.tensor([1.0, math.nan]), "spread": spread}
    loss = numbers.hard_loss(logits, known)
    assert loss == 1.0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.tolist() == [[1.0], [0.0]]
    of_sets = torch.tensor([[0.5, -1.0], [4.0, 4.0]])
    one, both = torch.tensor([[0]]), torch.tensor([[0], [NO_LABEL]])
    assert sets.hard_loss(of_sets, {"labels": both}) == sets.hard_loss(of_sets[:1], {"labels": one})
    left = torch.tensor([[0, 1], [LABEL_PADDING, NO_LABEL]])  # padded as its tokenizer pads
    alone = sets.hard_loss(of_sets[:1], {"labels": left[:1]})
    assert sets.hard_loss(of_sets, {"labels": left}) == alone


def test_teachers_of_sets_give_their_mean_probability() -> None:
    first, second = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 3.0]])
    mean = HEADS[MULTI_LABEL.name].averaged([first, second])
    torch.testing.assert_close(mean.sigmoid(), (first.sigmoid() + second.sigmoid()) / 2)
    assert HEADS[REGRESSION.name].averaged([first, second]).tolist() == [[1.0, 1.0]]


def test_sets_of_all_sizes_make_a_batch() -> None:
    task = set_task(40, 8)
    examples = token_dataset(task.train, tiny_tokenizer(), task.problem_type)
    batch = examples.collate([examples[row] for row in range(8)])
    for row, target in zip(batch["labels"].tolist(), task.train.label_ids, strict=False):
        assert tuple(label for label in row if label >= 0) == target


def test_a_new_head_gives_numbers_about_the_mean() -> None:
    model = tiny_bert(len(tiny_tokenizer()), ("number",))
    layer = output_layer(model, 1)
    assert layer is model.classifier
    torch.nn.init.zeros_(layer.bias)
    before = layer.weight.detach().clone()
    HEADS["regression"].begin(model, [100.0, 140.0])
    assert float(layer.bias) == 120
    torch.testing.assert_close(layer.weight.detach(), before * 20)
    HEADS["regression"].begin(model, [0.0, 1.0])
    assert float(layer.bias) == 120, "one that has learned stays"


def about(level: float, spread: float, task: Any) -> Any:
    """A task of numbers with another mean and spread."""

    def moved(split: Any) -> Any:
        numbers = [level + spread * (number - 220) / 12 for number in split.label_ids]
        return replace(split, label_ids=tuple(numbers))

    return replace(task, train=moved(task.train), dev=moved(task.dev))


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 1e-3), ("lamb", 2e-2)])
def test_numbers_of_any_unit_are_learned_alike(optimizer: str, rate: float, tmp_path: Path) -> None:
    losses = []
    for spread in (1, 1000):
        task = about(0, spread, number_task(256, 16))
        torch.manual_seed(0)
        model = tiny_bert(len(tiny_tokenizer()), task.labels)
        model.config.problem_type = "regression"
        torch.nn.init.zeros_(model.classifier.bias)
        HEADS["regression"].begin(model, task.train.label_ids)
        pace: dict[str, Any] = {"epochs": 3, "optimizer": optimizer, "learning_rate": rate}
        config = FinetuneConfig(precision="fp32", allow_constant=True, **pace)
        artifact = finetune(model, tiny_tokenizer(), task, config, tmp_path / str(spread))
        training = artifact.card.findings.training
        assert training is not None
        losses.append(training.losses[-1]["hard"])
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_numbers_far_from_0_are_learned_in_bfloat16(tmp_path: Path) -> None:
    """Of numbers about 2000, bfloat16 has steps of 8."""
    task, losses = about(2000, 1, number_task(256, 16)), {}
    for precision in ("fp32", "bf16"):
        model = tiny_bert(len(tiny_tokenizer()), task.labels)
        model.config.problem_type = "regression"
        torch.nn.init.zeros_(model.classifier.bias)
        HEADS["regression"].begin(model, task.train.label_ids)
        settings: dict[str, Any] = {"precision": precision, "allow_constant": True}
        config = FinetuneConfig(epochs=3, learning_rate=1e-3, **settings)
        artifact = finetune(model, tiny_tokenizer(), task, config, tmp_path / precision)
        training = artifact.card.findings.training
        assert training is not None
        losses[precision] = training.losses[-1]["hard"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
    assert "forward" not in vars(model.classifier), "saved and copied as before"


def test_a_teacher_gives_numbers_far_from_0_in_bfloat16() -> None:
    task = about(2000, 1, number_task(32, 8))
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    torch.nn.init.zeros_(model.classifier.bias)
    HEADS["regression"].begin(model, task.train.label_ids)
    examples = token_dataset(task.train, tiny_tokenizer(), task.problem_type)
    batch = examples.collate([examples[row] for row in range(32)])
    with torch.no_grad():
        exact = read_signals(model, batch, {}).logits
        with torch.autocast("cpu", torch.bfloat16):
            found = read_signals(model, batch, {}).logits
    torch.testing.assert_close(found, exact, rtol=0, atol=0.05)


def numbers_of(outputs: list[float]) -> Classifier:
    logits = {f"text {row}": [value] for row, value in enumerate(outputs)}
    edge = [outputs[0]]  # to the texts that the gate adds
    return Classifier(
        "numbers",
        ("number",),
        keep_text,
        FakePredictor(
            lambda batch: np.array([logits.get(text, edge) for (text,) in batch.examples])
        ),
        0,
        REGRESSION,
    )


@pytest.mark.parametrize(
    ("moved", "passes"), [(lambda each: each + 0.05, True), (lambda each: each + 3.0, False)]
)
@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_numbers_are_judged_in_their_spread_wherever_they_lie(
    moved: Any, passes: bool, level: float
) -> None:
    """A shift of all of them is no small thing because they are large."""
    outputs = (level + np.random.default_rng(0).normal(0, 1, 60)).tolist()
    examples = [(f"text {row}",) for row in range(60)]
    parity = check_parity(
        numbers_of(outputs), numbers_of([*map(moved, outputs)]), examples, TOLERANCES["int8"]
    )
    assert parity.passed is passes, parity.failures
    assert parity.agreement is None and parity.near_ties == 0


@pytest.mark.parametrize("precision", ["float32", "served"])
@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_single_numbers_are_bounded_by_their_range_wherever_they_lie(
    precision: str, level: float
) -> None:
    """A tenth of a spread is a fault where nothing but the order of sums changes."""
    outputs = (level + np.random.default_rng(0).normal(0, 1, 60)).tolist()
    examples = [(f"text {row}",) for row in range(60)]
    shifted, rounded = ([each + by for each in outputs] for by in (0.1, 1e-7 * level))
    reference, tolerance = numbers_of(outputs), TOLERANCES[precision]
    assert not check_parity(reference, numbers_of(shifted), examples, tolerance).passed
    parity = check_parity(reference, numbers_of(rounded), examples, tolerance)
    assert parity.passed, parity.failures


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_gate_calls_a_number_a_number(precision: str) -> None:
    outputs = [2000.0 + row % 7 for row in range(64)]
    worse = [2003.0 - each % 5 for each in outputs]
    examples = tuple((f"text {row}",) for row in range(64))
    tolerance = TOLERANCES[precision]
    for candidate in (numbers_of(worse), numbers_of([np.nan, *worse[1:]])):
        parity = check_parity(numbers_of(outputs), candidate, examples, tolerance)
        said = "\n".join([*parity.failures, *parity_lines(parity)])
        assert "reference number" in said and "logit" not in said
        assert "agreement" not in said, "numbers decide nothing"


def test_a_near_tie_of_one_label_leaves_the_others_judged() -> None:
    logits = np.array([[3.0, 0.01], [-3.0, -0.01]])
    outputs = Outputs(logits, PLACE)
    margins, decisions = MULTI_LABEL.margins(outputs), MULTI_LABEL.decisions(outputs)
    assert margins.tolist() == [[3.0, 0.01], [3.0, 0.01]]
    assert decisions.tolist() == [[1, 1], [0, 0]]


def test_the_best_threshold_of_a_label() -> None:
    logits = np.array([4, 3, 2, 1, 0, -1, -2, -3], dtype=np.float32)
    truth = np.array([1, 1, 1, 1, 1, 0, 0, 0], dtype=bool)
    assert best_threshold(logits, truth) == -0.5
    assert best_threshold(logits, np.roll(truth, 0) & False) == 0, "no text has it"


def test_thresholds_become_part_of_the_model() -> None:
    task = set_task(80, 40)
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    before = model.classifier.bias.detach().clone()
    found = fit_thresholds(model, tiny_tokenizer(), task)
    assert [*found] == [*task.labels]
    moved = before - model.classifier.bias.detach()
    torch.testing.assert_close(moved, torch.tensor([*found.values()], dtype=torch.float32))


@pytest.mark.parametrize("validation_texts", [80, 0])
def test_an_epoch_scores_as_it_would_with_its_thresholds(validation_texts: int) -> None:
    """Of an untrained model, whose labels are all on one side of 0."""
    whole = set_task(160, 40)
    split = 160 - validation_texts
    task = replace(whole, train=whole.train.first(split), selection=whole.train.after(split))
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    settings = (model, tiny_tokenizer(), task)
    before = model.classifier.bias.detach().clone()
    plain, _ = evaluated(*settings, task.choices)
    fitted = epoch_score(*settings, FinetuneConfig())
    assert torch.equal(model.classifier.bias, before), "the training goes on from it"
    fit_thresholds(*settings)
    assert fitted == pytest.approx({task.metric: evaluated(*settings, task.choices)[0].value})
    assert fitted != pytest.approx({task.metric: plain.value})


def test_thresholds_of_an_epoch_are_fitted_on_few_training_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, asked = set_task(160, 40), []

    def predict(classifier: Any, examples: Any) -> Any:
        asked.append(len(examples))
        return predict_outputs(classifier, examples)

    monkeypatch.setattr("bertender.comparison.fitting.TEXTS_TO_FIT", 50)
    monkeypatch.setattr("bertender.comparison.fitting.predict_outputs", predict)
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    epoch_score(model, tiny_tokenizer(), task, FinetuneConfig())
    assert asked == [50]


def test_a_metric_that_says_nothing_of_an_epoch_is_said(caplog: pytest.LogCaptureFixture) -> None:
    task = replace(number_task(), metric="spearman")
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    with torch.no_grad():
        model.classifier.weight.zero_()
    assert epoch_score(model, tiny_tokenizer(), task, FinetuneConfig()) == {"spearman": 0}
    assert "no spearman of the validation texts" in caplog.text


def test_a_finished_model_of_a_number_comes_in(tmp_path: Path) -> None:
    model = tiny_bert(len(tiny_tokenizer()), ("LABEL_0",))
    model.save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    artifact = open_artifact(tmp_path / "plain")
    assert artifact.card.task.problem_type == "regression"
    task = with_model_labels(number_task(), artifact.card.task.labels, None, "it")
    assert task.labels == ("LABEL_0",)
    with pytest.raises(ConfigError, match="which has no labels"):
        with_model_labels(number_task(), ("LABEL_0",), "a=b", "it")


def test_a_finished_model_of_sets_comes_in(tmp_path: Path) -> None:
    model = tiny_bert(len(tiny_tokenizer()), ("joy", "anger"))
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    artifact: Artifact = open_artifact(tmp_path / "plain")
    assert artifact.card.task.problem_type == "multi_label_classification"
    assert artifact.card.task.labels == ("joy", "anger")
    one = tiny_bert(len(tiny_tokenizer()), ("joy",))
    one.config.problem_type = "multi_label_classification"
    one.save_pretrained(tmp_path / "one")
    tiny_tokenizer().save_pretrained(tmp_path / "one")
    assert open_artifact(tmp_path / "one").card.task.problem_type == "multi_label_classification"
    several = replace(set_task(), labels=("anger", "joy"))
    renumbered = with_model_labels(several, ("joy", "anger"), None, "it")
    first = several.train.label_ids.index((0,))
    assert renumbered.train.label_ids[first] == (1,)


def test_a_request_has_the_width_of_its_own_sets() -> None:
    """Whatever texts of others were in the batch."""
    logits = np.array([[1, -1, -1], [1, 1, 1]], dtype=np.float32)
    examples = [("one",), ("three",)]
    outputs = [Outputs(row[None], PLACE) for row in logits]
    names = np.array([b"a", b"b", b"c"], dtype=np.object_)
    whole = MULTI_LABEL.response(outputs, examples, names, examples)
    own = MULTI_LABEL.response_of(whole, slice(0, 1), examples[:1])
    assert own["LABEL"].tolist() == [[b"a"]]
    assert (own["SCORE"].shape, own["LOGITS"].shape) == ((1, 1), (1, 3))


@pytest.mark.parametrize(("factor", "warns"), [(1.0, False), (0.2, True)])
def test_a_model_of_another_unit_is_named(
    factor: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """From 0 to 1 where the data are from 0 to 5: the correlation is 1."""
    numbers = np.linspace(0, 5, 60)
    examples = tuple((f"text {row}",) for row in range(60))
    split = Split(examples, tuple(numbers.tolist()))
    task = replace(number_task(8, 8), selection=split)
    check_labels_fit(numbers_of((factor * numbers).tolist()), task)
    assert ("another unit" in caplog.text) is warns


@pytest.mark.parametrize("number", [1.5e-6, 123456.0])
def test_numbers_of_any_size_are_shown(number: float) -> None:
    shown = Classification(label=number, score=None, logits=(number,))
    (line,) = lines_of(shown, ("a text",), REGRESSION)
    assert float(line.split("\t")[0]) == number


@pytest.mark.parametrize("task", [number_task(), set_task()], ids=lambda task: task.name)
def test_the_bag_of_words_learns_them(task: Any, tmp_path: Path) -> None:
    baseline = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "baseline")
    assert baseline.card.findings.scores is not None
    found, _ = evaluate(open_classifier(baseline), task.dev, task.metric)
    assert found.value == pytest.approx(baseline.card.findings.scores.score, abs=1e-6)
    assert found.value > 0.8


def test_the_bag_of_words_knows_a_label_that_all_texts_have(tmp_path: Path) -> None:
    task = set_task(80, 20)

    def both(split: Any) -> Any:
        return replace(split, label_ids=tuple((*own, 2) for own in split.label_ids))

    always = replace(task, labels=(*task.labels, "any"), train=both(task.train), dev=both(task.dev))
    baseline = train_bag_of_words(always, BagOfWordsConfig(), tmp_path / "baseline")
    _, predictions = evaluate(open_classifier(baseline), always.dev, always.metric)
    assert all(2 in prediction for prediction in predictions)


@pytest.mark.parametrize("method", ["static", "bilstm"])
def test_a_student_with_a_head_of_its_own_begins_about_the_mean(
    method: str, tmp_path: Path
) -> None:
    """From 0, its loss would be that of the mean, which few steps reach."""
    task = number_task(64, 16)
    model = tiny_bert(len(tiny_tokenizer()), task.labels)
    HEADS["regression"].begin(model, task.train.label_ids)
    teacher = write_model(model, tiny_tokenizer(), task, tmp_path / "teacher")
    config = DistillConfig(method=method, epochs=1, allow_constant=True, precision="fp32")
    student = distill(teacher, task, config, tmp_path / "student")
    training = student.card.findings.training
    assert training is not None and training.losses[0]["logits"] < 5
