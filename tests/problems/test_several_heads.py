"""Several heads on one encoder: their files, their targets, and a student of several teachers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.comparison.accuracy import (
    all_scores,
    check_varied,
    constant_row,
    decoded,
    found_constant,
    predict_outputs,
)
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ConstantError, DataError, UnknownNameError
from bertender.core.findings import ScoreFindings
from bertender.gate.figures import Truth
from bertender.metrics import score
from bertender.metrics.metric import NO_LABEL, HeadTargets, is_labelled
from bertender.models.classifier import open_classifier
from bertender.problems import PROBLEMS
from bertender.problems.problem import Outputs
from bertender.problems.several_heads import SeveralHeads
from bertender.tasks import loading
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig, check_metric, with_model_labels
from bertender.training.examples import token_dataset
from bertender.training.heads import head_of
from bertender.training.heads.several import SeveralHead
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from tests.toy_heads import JOINT, RATED, TWO_OF_TEXTS
from tests.toy_kinds import pace
from tests.toy_models import other_vocabulary, save_encoder, tiny_classifier
from tests.toy_tagging import TASK as TAGGING
from tests.toys import set_task, tiny_tokenizer, toy_task

SETTINGS: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}
KINDS = "single_label_classification,token_classification"


@pytest.mark.parametrize("task", [JOINT, TWO_OF_TEXTS, RATED], ids=["words", "texts", "numbers"])
def test_logits_of_the_targets_decode_to_the_targets(task: Task) -> None:
    problem = task.problem
    assert isinstance(problem, SeveralHeads)
    for example, target in zip(task.dev.examples, task.dev.label_ids, strict=True):
        first, second = problem.slices.values()
        words = len(example) if problem.labels_words else 0
        logits = np.full((1 + words, len(task.labels)), -1.0, np.float32)
        logits[0, first.start + target[0]] = 1.0
        if words:
            logits[np.arange(1, 1 + words), second.start + np.array(target[1])] = 1.0
        elif task is RATED:
            logits[0, second.start] = target[1]
        else:
            logits[0, second.start + np.array(target[1], dtype=int)] = 1.0
        outputs = Outputs(logits, np.arange(-1, words) if words else np.zeros(1, int))
        assert problem.decode(outputs, example) == target
    found = score(task.metric, task.dev.label_ids, task.dev.label_ids, labels=task.labels)
    assert found.value == 1.0


def test_the_mean_is_that_of_the_heads_each_on_its_labelled_rows() -> None:
    truth = [HeadTargets((0, (0,))), HeadTargets((1, (NO_LABEL,))), HeadTargets((NO_LABEL, (1,)))]
    wrong = [HeadTargets((0, (0,))), HeadTargets((0, (0,))), HeadTargets((0, (1,)))]
    values = {
        name: score(name, truth, wrong, labels=TWO_OF_TEXTS.labels)
        for name in ("length:accuracy", "topics:micro_f1", TWO_OF_TEXTS.metric)
    }
    assert values["length:accuracy"].value == 0.5
    assert values["topics:micro_f1"].value == 1.0
    assert values[TWO_OF_TEXTS.metric].value == 0.75


ROWS: list[dict[str, Any]] = [
    {"words": ["play", "it"], "intent": "play", "tags": ["O", "B-song"]},
    {"words": ["stop"], "intent": "stop", "tags": ["O"]},
    {"words": ["go", "on"], "intent": None, "tags": ["O", "O"]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_file_has_a_column_for_each_head(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", ROWS * 3)
    config = TaskConfig(
        train=file, dev=file, label_column="intent,tags", problem_type=KINDS, select=0
    )
    task = load_task(config)
    assert task.labels == ("intent:play", "intent:stop", "tags:O", "tags:B-song", "tags:I-song")
    assert task.train.label_ids[:3] == ((0, (0, 1)), (1, (0,)), (NO_LABEL, (0, 0)))
    assert task.metric == "intent:accuracy+tags:entity_f1"
    assert load_task(TaskConfig.parse(task.source)).labels == task.labels


def test_a_held_out_file_may_lack_the_first_label_of_a_head(tmp_path: Path) -> None:
    """Its labels keep the numbers that the model knows them by."""
    model = ("intent:play", "intent:stop", "tags:O", "tags:B-song", "tags:I-song")
    file = write(tmp_path / "dev.jsonl", [ROWS[1]] * 20)
    config = TaskConfig(dev=file, label_column="intent,tags", problem_type=KINDS, select=0)
    task = with_model_labels(load_task(config, has_model=True), model, None, "model")
    assert task.labels == model
    assert set(task.dev.label_ids) == {(1, (0,))}


def test_two_files_beside_each_other_have_labels_too(tmp_path: Path) -> None:
    for suffix, lines in (
        ("seq.in", "play it\nstop"),
        ("seq.out", "O B-song\nO"),
        ("label", "play\nstop"),
    ):
        (tmp_path / f"train.{suffix}").write_text(lines)
    file = tmp_path / "train.seq.in"
    config = TaskConfig(
        train=file, dev=file, label_column="label,tags", problem_type=KINDS, select=0
    )
    assert load_task(config).train.label_ids == ((0, (0, 1)), (1, (0,)))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one column": ({"label_column": "tags"}, "2 heads, and 1 columns"),
    "words first": (
        {
            "label_column": "tags,intent",
            "problem_type": "token_classification,single_label_classification",
        },
        "labels words: only the last head may",
    ),
    "a vector": (
        {"problem_type": "sentence_embedding,token_classification"},
        "sentence_embedding cannot share an encoder with other heads",
    ),
    "a name": (
        {"problem_type": "in tent:single_label_classification,tags:token_classification"},
        "a name has letters",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", ROWS * 3)
    settings, said = WRONG[name]
    usual = {"label_column": "intent,tags", "problem_type": KINDS}
    with pytest.raises(ConfigError, match=said):
        load_task(TaskConfig(train=file, dev=file, **{**usual, **settings}))


def test_a_row_without_any_label_is_refused(tmp_path: Path) -> None:
    rows = [*ROWS, {"words": ["a"], "intent": "", "tags": None}]
    file = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError, match="line 4, column 'intent': no label, nor in 'tags'"):
        load_task(TaskConfig(train=file, dev=file, label_column="intent,tags", problem_type=KINDS))


def named(monkeypatch: pytest.MonkeyPatch, **tasks: Task) -> None:
    """Let tasks be found by name."""
    known = loading.load_task

    def load(config: TaskConfig, **more: Any) -> Task:
        if config.task not in tasks:
            return known(config, **more)
        return replace(tasks[config.task], name=config.task, source={"select": 0.0})

    monkeypatch.setattr(loading, "load_task", load)


def test_tasks_by_commas_are_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    named(
        monkeypatch,
        kind=toy_task(),
        topics=set_task(),
        pairs=replace(toy_task(), text_columns=("a", "b")),
        tags=TAGGING,
        both=JOINT,
    )
    task = loading.load_task(TaskConfig(task="kind,topics"))
    assert task.problem_type == "kind:single_label_classification,topics:multi_label_classification"
    assert len(task.train) == len(toy_task().train) + len(set_task().train)
    assert task.train.label_ids[0] == (0, (NO_LABEL,))
    assert task.train.label_ids[-1][0] == NO_LABEL
    assert task.metric == "kind:accuracy+topics:micro_f1"
    mixed = loading.load_task(TaskConfig(task="kind,tags"))
    assert mixed.train.examples[0] == tuple(toy_task().train.examples[0][0].split())
    assert mixed.train.examples[-1] == TAGGING.train.examples[-1]
    assert len(mixed.train.label_ids[0][1]) == len(mixed.train.examples[0])
    assert mixed.of_head("kind").train == toy_task().train
    for tasks, said in (
        ("kind,pairs", "'pairs' reads a, b, and 'kind' text"),
        ("tags,kind", "head 'tags' labels words: only the last head may"),
        ("kind,both", "'both' has several heads itself"),
    ):
        with pytest.raises(ConfigError, match=said):
            loading.load_task(TaskConfig(task=tasks))


@pytest.fixture(scope="module")
def teachers(teacher_of: Callable[[str], Artifact]) -> list[Artifact]:
    """One of each task."""
    return [teacher_of(each.problem_type) for each in (toy_task(), set_task())]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    named(monkeypatch, kind=toy_task(), topics=set_task())
    return loading.load_task(TaskConfig(task="kind,topics"))


def test_a_student_learns_all_heads_from_a_teacher_of_each(
    teachers: list[Artifact], task: Task, tmp_path: Path
) -> None:
    """Also of texts that have no label of a head."""
    settings = {
        "method": "minibert",
        "layers": 2,
        "epochs": 12,
        "more_teachers": (teachers[1].path,),
    }
    config = DistillConfig(**settings, **pace(task))
    student = distill(teachers[0], without_labels(task), config, tmp_path / "student")
    classifier = open_classifier(student)
    outputs = predict_outputs(classifier, task.dev.examples)
    found = decoded(classifier.problem, outputs, task.dev.examples)
    for metric in task.metric.split("+"):
        assert score(metric, task.dev.label_ids, found, labels=task.labels).value > 0.8, metric


def without_labels(task: Task) -> Task:
    targets = tuple(map(task.problem.unlabelled, task.train.examples))
    return replace(task, train=Split(task.train.examples, targets))


@pytest.fixture(scope="module")
def of_words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """A teacher of each head of JOINT; they read different tokens."""
    folder = tmp_path_factory.mktemp("of-words")
    encoders = other_vocabulary(folder / "other"), save_encoder("bert", folder / "encoder")
    tasks = {"intent": JOINT.of_head("intent"), "slots": TAGGING}
    return {
        name: finetune_by_name(
            task, FinetuneConfig(teacher=str(encoder), epochs=8, **SETTINGS), folder / name
        )
        for (name, task), encoder in zip(tasks.items(), encoders, strict=True)
    }


def test_later_parts_of_a_word_continue_its_tag() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.init_kwargs.update(JOINT.problem.settings_to_learn(JOINT.labels))
    split = Split((("apple-pear",),), (HeadTargets((0, (1,))),))
    columns = token_dataset(split, tokenizer, JOINT.problem_type).columns
    assert JOINT.labels[2 + 1] == "slots:B-count"
    parts = [label for label in columns["labels:slots"][0] if label != NO_LABEL]
    assert parts == [1, 2, 2]


@pytest.mark.slow
def test_a_classifier_and_a_tagger_teach_one_student(
    of_words: dict[str, Artifact], tmp_path: Path
) -> None:
    intent, slots = of_words.values()
    settings = {"method": "minibert", "layers": 2, "epochs": 12, **SETTINGS}
    config = DistillConfig(more_teachers=(intent.path,), **settings)
    student = distill(slots, without_labels(JOINT), config, tmp_path / "student")
    classifier = open_classifier(student)
    outputs = predict_outputs(classifier, JOINT.dev.examples)
    found = decoded(classifier.problem, outputs, JOINT.dev.examples)
    for metric in JOINT.metric.split("+"):
        assert score(metric, JOINT.dev.label_ids, found, labels=JOINT.labels).value > 0.8, metric
    swapped = DistillConfig(more_teachers=(slots.path,), **settings)
    with pytest.raises(ConfigError, match="teacher of that head by --teacher"):
        distill(intent, JOINT, swapped, tmp_path / "other")


def test_each_head_wants_a_teacher(teachers: list[Artifact], task: Task, tmp_path: Path) -> None:
    config = DistillConfig(method="pkd", layers=2, **SETTINGS)
    with pytest.raises(ConfigError, match="no teacher for topics"):
        distill(teachers[0], task, config, tmp_path / "student")
    on_labels = DistillConfig(method="hard", layers=2, epochs=1, **SETTINGS)
    student = distill(teachers[0], task, on_labels, tmp_path / "student")
    assert student.card.task.labels == task.labels
    more = {"more_teachers": (teachers[1].path,), "unlabelled_agreement": True}
    alike = DistillConfig(method="pkd", unlabelled_texts=1, **more, **SETTINGS)
    with pytest.raises(ConfigError, match="have nothing to agree on"):
        distill(teachers[0], task, alike, tmp_path / "other")


def test_a_problem_type_is_read_back() -> None:
    assert PROBLEMS[JOINT.problem_type].name == JOINT.problem_type
    assert JOINT.problem_type in PROBLEMS
    assert "intent:none,slots:token_classification" not in PROBLEMS
    assert is_labelled(HeadTargets((NO_LABEL, ())))  # an empty set is a label
    assert not is_labelled(HeadTargets((NO_LABEL, (NO_LABEL,))))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((2000.0, 2001.0), "mean 2000 and standard deviation 0.5.* at most 25 of it"),
        ((0.0, 500.0), "standard deviation 250.* must be 0.1 to 10"),
        ((math.nan, math.nan), "no text has a number"),
    ],
)
def test_numbers_beside_logits_are_as_large(numbers: tuple[float, ...], said: str) -> None:
    targets = tuple(HeadTargets((row % 2, numbers[row % 2])) for row in range(len(RATED.train)))
    task = replace(RATED, train=Split(RATED.train.examples, targets), dev=Split((), ()))
    with pytest.raises(ConfigError, match=f"head 'stars'.*{said}"):
        head_of(task.problem).configured(FinetuneConfig(), task)


def test_a_new_number_begins_at_the_mean() -> None:
    head, model = head_of(RATED.problem), tiny_classifier("bert", labels=3)
    torch.nn.init.zeros_(model.classifier.bias)
    head.begin(model, RATED.train.label_ids)
    numbers = RATED.of_head("stars").train.label_ids
    bias = model.classifier.bias.tolist()
    assert bias == pytest.approx([0.0, 0.0, float(np.mean(numbers))])
    head.begin(model, [HeadTargets((0, 9.0)), HeadTargets((0, 8.0))])
    assert model.classifier.bias.tolist() == bias, "one that has learned keeps its own"
    smooth = head.configured(FinetuneConfig(label_smoothing=0.1), RATED)
    assert isinstance(smooth, SeveralHead)
    assert smooth.heads["length"].label_loss.smoothing == 0.1


def test_an_empty_set_is_a_list_of_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train.csv"
    path.write_text('text,tone,topics\na,good,"x,y"\nb,bad,\nc,good,[]\n', encoding="utf-8")
    kinds = "single_label_classification,multi_label_classification"
    config = TaskConfig(train=path, dev=path, label_column="tone,topics", problem_type=kinds)
    targets = load_task(config).dev.label_ids
    assert targets == ((1, (0, 1)), (0, (NO_LABEL,)), (1, ()))
    assert "column 'topics': 1 of 3 rows are empty" in caplog.text


def test_labels_have_scores_on_the_rows_of_their_head() -> None:
    task = TWO_OF_TEXTS
    rows = len(task.dev)
    half = [
        HeadTargets((NO_LABEL if row % 2 else 0, own[1]))
        for row, own in enumerate(task.dev.label_ids)
    ]
    predicted = [HeadTargets((0, own[1])) for own in half]
    split = Split(task.dev.examples, tuple(half))
    problem, metric = task.problem, "length:macro_f1+topics:jaccard"
    found = all_scores(problem, task.labels, split, metric, predicted, ())
    assert found.by_label["length:short"].precision == 1.0
    assert found.of(metric).value == 1.0
    assert {each.metric: each.n for each in found.scores}["length:accuracy"] == rows // 2


@pytest.mark.parametrize("metric", ["topics:micro_f1", "length:f1+topics:jaccard"])
def test_a_metric_is_of_a_head_or_a_mean(metric: str) -> None:
    task = TWO_OF_TEXTS
    assert check_metric(metric, task.problem, task.dev.label_ids) == metric
    with pytest.raises(UnknownNameError, match=f"no metric of .*'{re.escape(metric)}x'"):
        check_metric(f"{metric}x", task.problem, task.dev.label_ids)


def test_an_error_is_no_part_of_a_mean_to_choose_by() -> None:
    metric = "length:accuracy+stars:mean_absolute_error"
    with pytest.raises(ConfigError, match="less is better"):
        check_metric(metric, RATED.problem, RATED.dev.label_ids)


def test_a_good_head_does_not_hide_one_that_learned_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = TWO_OF_TEXTS
    floor = constant_row(task.of_head("topics")).score
    scores = {"length:accuracy": 1.0, "topics:micro_f1": floor.high}
    found = ScoreFindings(chosen_on="dev", score=(1.0 + floor.high) / 2, scores=scores)
    check_varied(found, task, FinetuneConfig(), ("epochs",), "more epochs")
    assert "task toy:topics: the model has micro_f1" in caplog.text
    assert "toy:length" not in caplog.text


@pytest.mark.parametrize("skewed", [False, True])
def test_of_constant_heads_the_one_that_learned_least_is_named(skewed: bool) -> None:
    """Of the words of 4,000 texts 3 % have a tag, and nothing but O is predicted, which is worth
    nothing: less than the intent of 95 %, which is less often right."""
    intents = [*[0] * (19 if skewed else 3), 1]
    tags = [*[(0,) * 8] * 3, (0,) * 7 + (1,)]
    targets = [HeadTargets((intents[row % len(intents)], tags[row % 4])) for row in range(4000)]
    examples = tuple(("a",) * 8 for _ in targets)
    assert TAGGING.labels[0] == "O"
    task = replace(JOINT, dev=Split(examples, tuple(targets)))
    found = found_constant(task, task.dev, [HeadTargets((0, (0,) * 8))] * 4000)
    assert found is not None
    assert found.label.startswith("slots:O" if skewed else "intent:")
    scores = {"intent:accuracy": 0.95 if skewed else 0.75, "slots:entity_f1": 0.0}
    own = ScoreFindings(chosen_on="dev", score=0.5, scores=scores, constant=found)
    own_metric = r"slots:entity_f1 0\b" if skewed else "intent:accuracy 0.75"
    with pytest.raises(ConstantError, match=rf"everywhere.*learned nothing \({own_metric}"):
        check_varied(own, task, FinetuneConfig(), ("epochs",), "more epochs")


def test_the_gate_judges_a_head_by_its_own_score() -> None:
    truth = Truth(JOINT.dev.label_ids, "intent:f1", JOINT.labels)
    assert [truth.of_head(name, kind).metric for name, kind in JOINT.problem.heads.items()] == [
        "intent:f1",
        "slots:entity_f1",
    ]
    assert truth.of_head("", JOINT.problem) is truth
    mean = replace(truth, metric="intent:f1+slots:tag_accuracy")
    assert mean.of_head("slots", JOINT.problem.heads["slots"]).metric == "slots:tag_accuracy"
