"""Filters of unlabelled texts: by the text, by the teachers' outputs; counted, and never idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.cli.output import print_artifact
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import load_torch_classifier
from bertender.tasks.loading import load_task
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task, TaskConfig
from bertender.text.tokenizer import load_tokenizer
from distill.distillation.config import DISTILL_RULES, FILE_RULES, FILTER_RULES, DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.texts import folded, remaining, with_unlabelled
from distill.teachers import outputs
from tests.distill.distillation.settings import SHORT
from tests.front import write_toy_files
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import ToyNamedTask, pair_task

OTHERS = ("another text", "a Third  one")


def lines(folder: Path, *texts: str) -> Path:
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    return folder / "texts.txt"


def others(task: Task, folder: Path, *texts: str, **settings: Any) -> tuple[list[str], Any]:
    """The texts that are added of a file, and what was left out."""
    config = DistillConfig(unlabelled=lines(folder, *texts), **settings)
    extended, left_out = with_unlabelled(task, config)
    assert extended.train.first(len(task.train)) == task.train
    added = extended.train.after(len(task.train))
    assert set(added.label_ids) <= {NO_LABEL}
    return [text for (text,) in added.examples], left_out


@pytest.fixture
def apart(task: Task) -> Task:
    """The toy task with validation texts, and held-out ones that `max_dev` cuts off."""
    train, dev = task.train, task.dev
    return replace(
        task,
        train=train.after(8),
        selection=train.first(8),
        dev=dev.first(20),
        reserved=dev.after(20).examples,
    )


@pytest.mark.parametrize("name", ["held_out", "selection", "length", "copies"])
def test_a_filter_leaves_out_what_it_names(name: str, apart: Task, tmp_path: Path) -> None:
    (chosen,), (dev,), (more,) = (
        apart.selection.examples[3],
        apart.dev.examples[0],
        apart.reserved[0],
    )
    (known,) = apart.train.examples[0]
    cases: dict[str, tuple[dict[str, Any], Sequence[str], int]] = {
        "held_out": ({}, (dev, f"  {dev.upper()} ", more), 3),
        "selection": ({}, (chosen, chosen.replace(" ", "\t ")), 2),
        "length": (
            {"unlabelled_min_words": 2, "unlabelled_max_words": 3},
            ("one", "this has four words"),
            2,
        ),
        "copies": (
            {"unlabelled_distinct": True},
            (f" {known.title()}", OTHERS[0].upper(), "a third one"),
            3,
        ),
    }
    settings, gone, count = cases[name]
    added, left_out = others(apart, tmp_path, *OTHERS, *gone, **settings)
    assert added == list(OTHERS)
    assert left_out == {name: count}


def test_no_other_filter_is_on_by_default(apart: Task, tmp_path: Path) -> None:
    (known,) = apart.train.examples[0]
    texts = ["one", known, known, " ".join(["word"] * 500)]
    assert others(apart, tmp_path, *texts) == (texts, {})


def test_a_part_of_a_file_is_its_first_texts(apart: Task, tmp_path: Path) -> None:
    added, _ = others(apart, tmp_path, *OTHERS, "a fourth", max_unlabelled=2)
    assert added == [*OTHERS]


def test_texts_of_a_task_are_filtered_before_they_are_counted(
    apart: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = (apart.dev.examples[0], *((text,) for text in OTHERS), ("a fourth",))
    monkeypatch.setitem(TASKS, "toy", ToyNamedTask.of(apart, brought))
    named = replace(apart, source={"task": "toy"})
    two, left_out = with_unlabelled(named, DistillConfig(unlabelled_texts=2))
    assert [text for (text,) in two.train.after(len(apart.train)).examples] == list(OTHERS)
    assert left_out == {"held_out": 1}


def test_a_pair_is_known_by_both_its_texts(tmp_path: Path) -> None:
    task = pair_task()
    first, second = task.dev.examples[0]
    rows = [(first, second), (second, first), (first, "x")]
    table = "\n".join("\t".join(row) for row in [task.text_columns, *rows])
    (tmp_path / "pairs.tsv").write_text(table)
    extended, left_out = with_unlabelled(task, DistillConfig(unlabelled=tmp_path / "pairs.tsv"))
    added = extended.train.after(len(task.train)).examples
    assert added == ((second, first), (first, "x")) and left_out == {"held_out": 1}
    assert folded(("A  b ", "ÄB")) == ("a b", "äb")


def test_what_is_beyond_max_dev_is_never_learned(tmp_path: Path, task: Task) -> None:
    files = write_toy_files(tmp_path, task)
    whole = load_task(TaskConfig.parse({**files.task, "select": 0.5}))
    assert whole.reserved == ()
    few = load_task(TaskConfig.parse({**files.task, "select": 0.5, "max_dev": 4, "max_select": 5}))
    assert len(few.dev) == 4 and len(few.selection) == 5
    assert {*few.dev.examples, *few.selection.examples, *few.reserved} == {
        *whole.dev.examples,
        *whole.selection.examples,
    }
    texts = [text for (text,) in few.reserved]
    assert others(few, tmp_path, *texts)[0] == []


SURE, UNSURE = [5.0, -5.0], [0.1, 0.0]
LOGITS = {
    "first": torch.tensor([UNSURE, SURE, UNSURE, SURE]),
    "second": torch.tensor([SURE, SURE, SURE, SURE[::-1]]),
}
"""Of a text with a label and three without, by two teachers."""
BY_OUTPUTS: dict[str, tuple[list[str], dict[str, Any], list[bool]]] = {
    "entropy": (["first"], {"unlabelled_max_entropy": 0.5}, [True, True, False, True]),
    "agreement": (["first", "second"], {"unlabelled_agreement": True}, [True, True, True, False]),
}


@pytest.mark.parametrize("name", BY_OUTPUTS)
def test_filters_by_outputs(name: str, task: Task) -> None:
    teachers, settings, stay = BY_OUTPUTS[name]
    examples = task.train.examples[:4]
    some = replace(task, train=Split(examples, (0, NO_LABEL, NO_LABEL, NO_LABEL)))
    logits = [LOGITS[each] for each in teachers]
    config = DistillConfig(**settings)
    assert remaining(some, config, lambda: logits) == (tuple(stay), {name: 1})
    never = pytest.fail
    assert remaining(some, DistillConfig(), lambda: never("asked")) == ((True,) * 4, {})


def test_entropy_is_a_share_of_the_highest(task: Task) -> None:
    probabilities = torch.tensor([[0.9, 0.05, 0.05]])
    entropy = -sum(p * math.log(p) for p in (0.9, 0.05, 0.05)) / math.log(3)
    one = replace(task, train=Split((("x",),), (NO_LABEL,)))
    for bound, stays in ((entropy + 0.01, True), (entropy - 0.01, False)):
        config = DistillConfig(unlabelled_max_entropy=bound)
        assert remaining(one, config, lambda: [probabilities.log()])[0] == (stays,)


@pytest.mark.parametrize("augmentation", [None, "bilstm"])
def test_a_student_learns_from_what_the_filters_leave(
    augmentation: str | None,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    read: list[int] = []
    read_signals = outputs.read_signals

    def counted(model: Any, inputs: Any, wanted: Any) -> Any:
        read.append(len(inputs["input_ids"]))
        return read_signals(model, inputs, wanted)

    monkeypatch.setattr(outputs, "read_signals", counted)
    few, more = replace(task, train=task.train.first(8)), task.train.after(8)
    (dev,) = task.dev.examples[0]
    file = lines(tmp_path, *(text for (text,) in more.examples), dev)
    logits = teacher_logits(trained_teacher, more)
    shares = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1) / math.log(2)
    bound = float(shares.median())
    settings = {**SHORT, "method": "pkd", "unlabelled": file, "augmentation": augmentation}
    config = DistillConfig(**settings, unlabelled_max_entropy=bound)
    student = distill(trained_teacher, few, config, tmp_path / "student")
    training = student.card.findings.training
    assert training.unlabelled_texts == pytest.approx(44, abs=1)
    left_out = 88 - training.unlabelled_texts
    assert training.unlabelled_left_out == {"held_out": 1, "entropy": left_out}
    copies = training.augmented_texts or 0
    assert (copies > 0) is (augmentation is not None)
    assert training.steps == math.ceil((8 + training.unlabelled_texts + copies) / 8)
    if augmentation is None:
        assert sum(read) == 2 * 96, "for logits and for states, each once"
    print_artifact(student)
    said = f"unlabelled texts: {88 - left_out} learned from; left out: 1 by held_out, {left_out} by"
    assert said in capsys.readouterr().out


def teacher_logits(teacher: Artifact, split: Split) -> torch.Tensor:
    model, tokenizer = load_torch_classifier(teacher).eval(), load_tokenizer(teacher.path)
    tokens = tokenizer([text for (text,) in split.examples], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = model(**tokens).logits
    return logits


def test_an_ensemble_agrees(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    """An untrained second teacher predicts one label for nearly all."""
    other = save_artifact(tiny_classifier("bert"), task, tmp_path / "other")
    few, more = replace(task, train=task.train.first(8)), task.train.after(8)
    pairs = zip(*(teacher_logits(each, more) for each in (trained_teacher, other)), strict=True)
    disputed = sum(int(a.argmax() != b.argmax()) for a, b in pairs)
    assert disputed > 20
    config = DistillConfig(
        **SHORT,
        method="pkd",
        unlabelled=lines(tmp_path, *(text for (text,) in more.examples)),
        more_teachers=(other.path,),
        unlabelled_agreement=True,
    )
    student = distill(trained_teacher, few, config, tmp_path / "student")
    training = student.card.findings.training
    assert training.unlabelled_left_out == {"agreement": disputed}
    assert training.unlabelled_texts == 88 - disputed


WITH_TEXTS = {"unlabelled": "texts.txt"}
UNUSED: dict[str, dict[str, dict[str, Any]]] = {
    "filters without unlabelled texts": {
        f"{name}={value}: there are no unlabelled texts": {name: value}
        for name, value in {
            "unlabelled_min_words": 2,
            "unlabelled_max_words": 2,
            "unlabelled_distinct": True,
            "unlabelled_max_entropy": 0.5,
        }.items()
    },
    "minimum of words above maximum": {
        "unlabelled_min_words=3 and unlabelled_max_words=2: every text": {
            **WITH_TEXTS,
            "unlabelled_min_words": 3,
            "unlabelled_max_words": 2,
        }
    },
    "unused file limit": {"max_unlabelled=3: it limits the texts of a file": {"max_unlabelled": 3}},
    "agreement without more teachers": {
        "unlabelled_agreement=True: several teachers agree": {
            **WITH_TEXTS,
            "unlabelled_agreement": True,
        },
        "unlabelled_agreement=True: several teachers": {
            "more_teachers": "other",
            "unlabelled_agreement": True,
        },
    },
}
ELSEWHERE = {
    "named layers without a number of layers",
    "control of a method without a teacher",
    "columns without a teacher file",
    "method that needs more than logits",
    "texts without outputs in the teacher file",
    "floor with the whole vocabulary",
    "cut vocabulary for token-level losses",
    "augmentation without teacher outputs",
    "more teachers without logits",
    "rows of a file among more teachers",
    "unlabelled texts without teacher outputs",
}
"""Rules with a test of their own."""


@pytest.mark.parametrize(
    "name",
    sorted({*FILE_RULES, *FILTER_RULES, *DISTILL_RULES} - ELSEWHERE),
)
def test_settings_that_would_change_nothing_are_refused(name: str) -> None:
    for said, settings in UNUSED[name].items():
        with pytest.raises(ConfigError, match=said):
            DistillConfig.parse(settings)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_an_entropy_is_a_share(value: float) -> None:
    with pytest.raises(ConfigError, match=f"unlabelled_max_entropy={value}"):
        DistillConfig.parse({**WITH_TEXTS, "unlabelled_max_entropy": value})
