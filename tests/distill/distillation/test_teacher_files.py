"""`distill --teacher FILE`: a student of a file is that of the model that wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender import api
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import load_torch_classifier
from bertender.recipes.recipe import checked, parse_recipe
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Split, Task
from bertender.tasks.teacher_files import TeacherColumns, read_teacher_file
from bertender.text.tokenizer import load_tokenizer
from bertender.training.heads import HEADS
from bertender.training.heads.head import WEIGHT, logit_mse, soft_labels
from distill.distillation.config import DISTILL_RULES, DistillConfig
from distill.distillation.distiller import distill_from_file
from distill.distillation.texts import with_unlabelled
from distill.losses.terms import soft_cross_entropy
from distill.methods import METHODS
from tests.front import fail, succeed, write_csv
from tests.listening import Step, listed_steps, no_training
from tests.toy_kinds import TASKS
from tests.toy_models import save_artifact, save_encoder, tiny_classifier

FLAGS = ("--epochs", "2", "--batch-size", "8", "--learning-rate", "2e-3", "--precision", "fp32")
QUICK: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "learning_rate": 2e-3,
    "precision": "fp32",
    "vocab_size": "all",
    "allow_constant": True,
    "no_dropout": True,
}
LENGTH = ("--max-length", "32", "--vocab-size", "all")


def logits_of(teacher: Artifact, split: Split) -> torch.Tensor:
    model, tokenizer = load_torch_classifier(teacher).eval(), load_tokenizer(teacher.path)
    tokens = tokenizer([text for (text,) in split.examples], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = model(**tokens).logits
    return logits


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def soft_rows(teacher: Artifact, split: Split, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The rows that the teacher would write."""
    chances = logits_of(teacher, split).double().softmax(-1).tolist()
    return [
        {"text": text, "probabilities": dict(zip(labels, row, strict=True))}
        for (text,), row in zip(split.examples, chances, strict=True)
    ]


def losses_of(steps: Sequence[Step]) -> list[dict[str, float]]:
    return [{name: float(loss) for name, loss in each.losses.items()} for each in steps]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder("bert", tmp_path_factory.mktemp("encoder") / "bert", num_hidden_layers=1)


@pytest.fixture
def few(task: Task) -> Task:
    """The toy task of held-out texts alone, and without validation texts."""
    return replace(task, train=Split((), ()), source={})


def learned(
    rows: Sequence[Mapping[str, Any]], task: Task, encoder: Path, folder: Path, **settings: Any
) -> tuple[Artifact, list[Step]]:
    """Train a student on rows, and return the steps besides."""
    file = write_lines(folder / "labels.jsonl", rows)
    config = DistillConfig.parse(
        {**QUICK, "teacher_file": file, "student": str(encoder), **settings}
    )
    with listed_steps() as steps:
        student = distill_from_file(task, config, folder / "student")
    return student, steps


@pytest.mark.parametrize(
    "method",
    [("pd",), ("distilbert", "--weights", "cosine=0", "--temperature", "3", "--layers", "1")],
    ids=["pd", "distilbert"],
)
def test_a_file_teaches_as_the_model_that_wrote_it(
    method: Sequence[str],
    trained_teacher: Artifact,
    task: Task,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    rows = soft_rows(trained_teacher, task.train, task.labels)
    file = write_lines(tmp_path / "labels.jsonl", rows)
    (tmp_path / "texts.txt").write_text("\n".join(row["text"] for row in rows))
    shared = ("--dev", tmp_path / "dev.csv", "--student", encoder, "--method", *method)
    losses = []
    for teacher in ((trained_teacher.path, "--unlabelled", tmp_path / "texts.txt"), (file,)):
        out = tmp_path / f"student-{len(losses)}"
        with listed_steps() as steps:
            succeed("distill", "--teacher", *teacher, *shared, *FLAGS, *LENGTH, "--out", out)
        losses.append(losses_of(steps))
    assert len(losses[0]) == len(losses[1]) > 10
    for ours, theirs in zip(*losses, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert losses[0][0] != losses[0][-1]


WEIGHTS = torch.tensor([1.0, 0.25])
STUDENT = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
TEACHER = torch.tensor([[0.0, 3.0], [2.0, 0.0]])


@pytest.mark.parametrize(
    "loss",
    [
        lambda *given: soft_labels(*given[:2], 2.0, *given[2:]),
        lambda *given: soft_cross_entropy(*given[:2], 2.0, *given[2:]),
        logit_mse,
    ],
    ids=["soft", "cross-entropy", "logits"],
)
def test_a_row_counts_by_its_weight(loss: Any) -> None:
    """(1 x first + 0.25 x second) / 1.25."""
    first, second = (loss(STUDENT[row : row + 1], TEACHER[row : row + 1]) for row in (0, 1))
    expected = (first + 0.25 * second) / 1.25
    assert float(loss(STUDENT, TEACHER, WEIGHTS)) == pytest.approx(float(expected))


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_sets_and_numbers_count_by_their_weight(problem_type: str) -> None:
    head = HEADS[problem_type]
    outputs = 1 if problem_type == "regression" else 2

    def loss(rows: slice, **weight: torch.Tensor) -> float:
        batch = {"spread": torch.full((2,), 0.5)[rows], **weight}
        ours, theirs = STUDENT[rows, :outputs], TEACHER[rows, :outputs]
        return float(head.soft_loss(ours, theirs, batch, 1.0))

    whole = loss(slice(2), **{WEIGHT: WEIGHTS})
    assert whole == pytest.approx((loss(slice(1)) + 0.25 * loss(slice(1, 2))) / 1.25)
    if problem_type == "regression":  # squared distances 1 and 2.25, in units of 0.5
        assert whole == pytest.approx((4 * 1 + 0.25 * 4 * 2.25) / 1.25)


def test_confidences_reach_the_loss(task: Task, few: Task, encoder: Path, tmp_path: Path) -> None:
    texts = [text for (text,) in task.train.examples[:8]]
    rows = [
        {"text": text, "label": task.labels[row % 2], "confidence": 1.0 if row < 4 else 0.0}
        for row, text in enumerate(texts)
    ]
    student, steps = learned(rows, few, encoder, tmp_path)
    (step,) = steps
    assert sorted(step.batch[WEIGHT].tolist()) == [0.0] * 4 + [1.0] * 4
    _, of_half = learned(rows[:4], few, encoder, tmp_path, seed=0)
    assert losses_of(steps) == [pytest.approx(each, abs=1e-6) for each in losses_of(of_half)]
    found = student.card.findings.teacher_file
    assert found is not None and (found.form, found.rows, found.gold) == ("labels", 8, 0)


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_sets_and_numbers_are_learned(problem_type: str, encoder: Path, tmp_path: Path) -> None:
    task = TASKS[problem_type]
    own = Split(task.train.examples[:16], task.train.label_ids[:16])
    rows: list[dict[str, Any]] = []
    for (text,), target in zip(own.examples, own.label_ids, strict=True):
        if problem_type == "regression":
            rows.append({"text": text, "predicted": target, "confidence": 0.5})
        else:
            chances = {name: 0.9 * (place in target) for place, name in enumerate(task.labels)}
            rows.append({"text": text, "probabilities": chances})
    held_out = replace(task, train=Split((), ()), source={})
    student, steps = learned(rows, held_out, encoder, tmp_path)
    assert student.card.task.labels == task.labels
    assert steps and all(np.isfinite([*each.values()]).all() for each in losses_of(steps))


def test_gold_labels_are_learned_where_there_are_some(
    task: Task, few: Task, encoder: Path, tmp_path: Path
) -> None:
    texts = [text for (text,) in task.train.examples[:8]]
    soft = dict(zip(task.labels, (0.25, 0.75), strict=True))
    rows: list[dict[str, Any]] = [{"text": text, "probabilities": soft} for text in texts]
    rows[0]["gold"], rows[3]["gold"] = task.labels[1], task.labels[0]
    settings = {"method": "distilbert", "weights": "cosine=0", "layers": 1}
    student, (step,) = learned(rows, few, encoder, tmp_path, **settings)
    assert sorted(step.batch["labels"].tolist()) == [NO_LABEL] * 6 + [0, 1]
    assert float(step.losses["hard"]) > 0
    found = student.card.findings.teacher_file
    assert found is not None and found.gold == 2


@pytest.fixture
def answered(trained_teacher: Artifact, task: Task) -> list[dict[str, Any]]:
    return soft_rows(trained_teacher, task.train.first(24), task.labels)


def test_filters_leave_rows_out(
    answered: list[dict[str, Any]], task: Task, few: Task, encoder: Path, tmp_path: Path
) -> None:
    first, second = task.labels
    chances = {first: 0.55, second: 0.45}
    unsure = [{"text": f"unsure {row}", "probabilities": chances} for row in range(3)]
    rather = [{"text": "rather", "probabilities": {first: 0.7, second: 0.3}}]
    (held_out,) = few.dev.examples[0]
    seen = [{"text": held_out, "probabilities": {first: 1, second: 0}}]
    rows = [*answered, *unsure, *rather, *seen]
    settings = {"min_confidence": 0.6, "unlabelled_max_entropy": 0.85}
    student, _ = learned(rows, few, encoder, tmp_path, **settings)
    training = student.card.findings.training
    assert training is not None
    # the entropy of 0.7 and 0.3 is 0.88 of the highest
    assert training.unlabelled_left_out == {"held_out": 1, "confidence": 3, "entropy": 1}
    assert training.unlabelled_texts == len(answered)


def test_so_many_rows_are_drawn_as_max_train_says(
    answered: list[dict[str, Any]], few: Task, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "labels.jsonl", answered)
    file = read_teacher_file(path, few, TeacherColumns())
    config = DistillConfig.parse({"teacher_file": "labels.jsonl", "student": "any"})
    some, _ = with_unlabelled(replace(few, source={"max_train": 5}), config, file)
    assert len({*some.train.examples}) == 5 and {*some.train.examples} < {*file.examples}
    assert some.train.examples != file.examples[:5]


def test_agreement_with_the_teacher_is_of_held_out_texts(
    answered: list[dict[str, Any]],
    trained_teacher: Artifact,
    few: Task,
    encoder: Path,
    tmp_path: Path,
) -> None:
    own = soft_rows(trained_teacher, few.dev, few.labels)
    student, _ = learned([*answered, *own[:20]], few, encoder, tmp_path)
    found = student.card.findings.teacher_file
    assert found is not None and found.held_out == 20
    both = few.dev.first(20)
    ours, theirs = (
        logits_of(each, both).argmax(-1).tolist() for each in (student, trained_teacher)
    )
    pairs = [*zip(ours, theirs, few.dev.label_ids, strict=False)]
    assert found.agreement == pytest.approx(np.mean([a == b for a, b, _ in pairs]))
    assert found.score == pytest.approx(np.mean([b == gold for _, b, gold in pairs]))
    shown = " ".join(succeed("show", student.path).stdout.split())
    assert "agrees with it on 20 held-out texts" in shown
    assert "44 rows of probabilities" in shown


OTHER = {"first": [0.9, 0.1], "second": [0.2, 0.8], "third": [0.6, 0.4]}


def test_two_files_are_averaged_or_must_agree(few: Task, encoder: Path, tmp_path: Path) -> None:
    own = {"first": [0.7, 0.3], "second": [0.7, 0.3], "third": [0.8, 0.2]}
    rows, others = (
        [
            {"text": text, "probabilities": dict(zip(few.labels, chances, strict=True))}
            for text, chances in of.items()
        ]
        for of in (own, OTHER)
    )
    other = write_lines(tmp_path / "other.jsonl", others)
    settings = {"more_teachers": str(other)}
    _, (step,) = learned(rows, few, encoder, tmp_path, **settings)
    found = sorted(step.batch["teacher_logits"].softmax(-1)[:, 0].tolist())
    assert found == pytest.approx([0.45, 0.7, 0.8])
    student, (step,) = learned(rows, few, encoder, tmp_path, **settings, unlabelled_agreement=True)
    assert len(step.batch["labels"]) == 2
    training = student.card.findings.training
    assert training is not None and training.unlabelled_left_out == {"agreement": 1}
    write_lines(other, others[:2])
    with pytest.raises(DataError, match=r"lacks 1 of the 3 training texts, first \('third',\)"):
        learned(rows, few, encoder, tmp_path, **settings)


@pytest.mark.parametrize("first", ["file", "model"])
def test_a_file_and_a_model_teach_together(
    first: str,
    answered: list[dict[str, Any]],
    task: Task,
    few: Task,
    encoder: Path,
    tmp_path: Path,
) -> None:
    """The model is untrained: the mean is neither's."""
    model = save_artifact(tiny_classifier("bert"), task, tmp_path / "model")
    split = task.train.first(24)
    rows = [
        {**row, "probabilities": dict(reversed(row["probabilities"].items()))} for row in answered
    ]
    theirs = logits_of(model, split).softmax(-1)
    expected = (theirs + torch.tensor([[*row["probabilities"].values()] for row in answered])) / 2
    if first == "file":
        _, steps = learned(rows, few, encoder, tmp_path, more_teachers=str(model.path))
    else:
        file = write_lines(tmp_path / "labels.jsonl", rows)
        texts = tmp_path / "texts.txt"
        texts.write_text("\n".join(row["text"] for row in rows))
        settings = {**QUICK, "student": str(encoder), "more_teachers": [file], "unlabelled": texts}
        with listed_steps() as steps:
            api.distill(model, few, out=tmp_path / "student", method="pd", **settings)
    found = torch.cat([each.batch["teacher_logits"].softmax(-1)[:, 0] for each in steps])
    torch.testing.assert_close(found.sort()[0], expected[:, 0].sort()[0], atol=1e-5, rtol=0)


def test_the_control_learns_the_hard_labels_of_the_file(
    answered: list[dict[str, Any]], few: Task, encoder: Path, tmp_path: Path
) -> None:
    answered[0]["gold"] = few.labels[0]
    student, steps = learned(answered, few, encoder, tmp_path, control=True)
    of_control = [each for each in steps if each.description.startswith("control")]
    decided = [max(row["probabilities"], key=row["probabilities"].get) for row in answered[1:]]
    expected = sorted(few.labels.index(label) for label in (few.labels[0], *decided))
    (epochs,) = {each.description for each in of_control}
    found = torch.cat([each.batch["labels"] for each in of_control])
    assert epochs == "control of 1 epochs" and sorted(found.tolist()) == expected
    control = student.card.findings.control
    assert control is not None and control.equal_epochs == 1
    shown = " ".join(succeed("show", student.path).stdout.split())
    assert "trained on the file's hard labels alone" in shown and "--method hard" not in shown


def test_hard_labels_alone_need_no_control(few: Task, encoder: Path, tmp_path: Path) -> None:
    rows = [{"text": f"text {row}", "label": few.labels[row % 2]} for row in range(8)]
    with pytest.raises(ConfigError, match=r"control=True: .* is its own control"), no_training():
        learned(rows, few, encoder, tmp_path, control=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_reads_more_than_outputs_is_refused(method: str, tmp_path: Path) -> None:
    settings = {"teacher_file": str(tmp_path / "labels.jsonl"), "method": method, "student": "any"}
    if METHODS[method].needs == {"logits"}:
        assert DistillConfig.parse(settings).method == method
        return
    with pytest.raises(ConfigError, match=r"Methods that learn from a file: .*pd"):
        DistillConfig.parse(settings)


def test_the_method_is_chosen_by_what_there_is(tmp_path: Path) -> None:
    assert DistillConfig.parse({"teacher_file": "labels.jsonl"}).method == "pd"
    weights = {"teacher_file": "a.csv", "method": "distilbert", "weights": "cosine=0"}
    assert DistillConfig.parse(weights).changed_method().needs == {"logits"}
    with pytest.raises(ConfigError, match="or distilbert with --weights cosine=0"):
        DistillConfig.parse({"teacher_file": "a.csv", "method": "distilbert"})


FILE = {"teacher_file": "labels.jsonl", "student": "any"}
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "texts without outputs in the teacher file": (
        {**FILE, "unlabelled": "texts.txt"},
        "unlabelled=texts.txt: the teacher labels.jsonl is a file, and has no outputs on other",
    ),
    "columns without a teacher file": (
        {"min_confidence": 0.8},
        "min_confidence=0.8: for a teacher that is a data file, and no teacher is one",
    ),
    "rows of a file among more teachers": (
        {"more_teachers": "labels.jsonl", "min_confidence": 0.8, "gold_column": "truth"},
        "gold_column=truth, min_confidence=0.8: for the rows of a file given by --teacher",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_go_with_no_file_are_refused(name: str) -> None:
    settings, said = REFUSED[name]
    assert name in DISTILL_RULES
    with pytest.raises(ConfigError, match=said):
        DistillConfig.parse(settings)


def test_the_command_says_what_it_lacks(
    answered: list[dict[str, Any]], task: Task, encoder: Path, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "labels.jsonl", answered)
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    command = ("distill", "--teacher", file, "--out", tmp_path / "student")
    dev = ("--dev", tmp_path / "dev.csv")
    with no_training():
        assert "a score would be agreement with the teacher" in fail(*command, "--student", encoder)
        assert "no model for the student to start from. Give --student" in fail(*command, *dev)
        missing = ("distill", "--teacher", tmp_path / "no.jsonl", "--out", tmp_path / "student")
        assert "there is no such file" in fail(*missing, *dev, "--student", encoder)
        own = (*command, *dev, "--student", encoder)
        assert "no row of" in fail(*own, "--method", "minibert", "--label-smoothing", "0.1")
        assert "min_confidence=0.8: for a teacher" in fail(
            *("distill", "--teacher", encoder, *dev, "--min-confidence", "0.8"),
            *("--out", tmp_path / "student"),
        )


def test_what_is_made_of_the_student_needs_no_teacher(
    answered: list[dict[str, Any]], task: Task, encoder: Path, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "labels.jsonl", answered)
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    settings = {**QUICK, "student": encoder}
    dev = {"dev": tmp_path / "dev.csv"}
    student = api.distill(file, dev, out=tmp_path / "student", **settings)
    assert student.card.parent is None
    file.unlink()
    int8 = api.quantize(student, out=tmp_path / "int8", max_drop=100, scheme="dynamic")
    assert int8.card.kind == "onnx"
    shown = " ".join(succeed("show", int8.path).stdout.split())
    assert "learned from" in shown and "24 rows of probabilities" in shown


def test_a_label_map_pairs_the_labels_of_the_data_with_those_of_the_file(
    answered: list[dict[str, Any]], task: Task, encoder: Path, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "labels.jsonl", answered)
    write_csv(tmp_path / "dev.csv", task.dev, ("sweet", "hard"))
    dev = {"dev": tmp_path / "dev.csv"}
    with pytest.raises(ConfigError, match="Say which is which: --label-map"):
        api.distill(file, dev, out=tmp_path / "student", **QUICK, student=encoder)
    mapped = {**dev, "label_map": "sweet=fruit,hard=tool"}
    student = api.distill(file, mapped, out=tmp_path / "student", **QUICK, student=encoder)
    assert student.card.task.labels == task.labels
    assert recorded_task(student, {}).dev.label_ids == task.dev.label_ids


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_score_wrote_teaches(
    form: str, trained_teacher: Artifact, task: Task, few: Task, encoder: Path, tmp_path: Path
) -> None:
    some = task.train.first(20)
    write_csv(tmp_path / "texts.csv", some, task.labels)
    folder = tmp_path / "scored"
    flags = ("--format", form, "--texts-per-part", "8", "--out", folder)
    succeed("score", trained_teacher.path, tmp_path / "texts.csv", *flags)
    config = DistillConfig.parse({**QUICK, "teacher_file": folder, "student": str(encoder)})
    with listed_steps() as steps:
        student = distill_from_file(few, config, tmp_path / "student")
    found = student.card.findings.teacher_file
    assert found is not None and (found.form, found.rows, found.gold) == ("probabilities", 20, 20)
    ours = torch.cat([each.batch["teacher_logits"].softmax(-1)[:, 0] for each in steps])
    theirs = logits_of(trained_teacher, some).softmax(-1)[:, 0]
    torch.testing.assert_close(ours.sort()[0], theirs.sort()[0], atol=1e-4, rtol=0)


RECIPE = """
summary: a student of a file
task: {{dev: {dev}}}
steps:
  - name: student
    stage: distill
    with: {{teacher_file: {file}, student: {encoder}, epochs: 1}}
  - name: onnx
    stage: export
    from: student
"""


def test_a_recipe_takes_a_file(
    answered: list[dict[str, Any]], task: Task, encoder: Path, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "labels.jsonl", answered)
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    text = RECIPE.format(dev=tmp_path / "dev.csv", file=file, encoder=encoder)
    plan, own = checked(parse_recipe("own", text), tmp_path / "run")
    assert len(own.train) == 0 and plan[0].stage.files_digest(plan[0].config)
    without = text.replace(f"student: {encoder}, ", "")
    with pytest.raises(ConfigError, match="needs a small pre-trained student of its own"):
        checked(parse_recipe("own", without), tmp_path / "run")
    no_teacher = text.replace(f"teacher_file: {file}, ", "")
    with pytest.raises(ConfigError, match="starts from a teacher"):
        checked(parse_recipe("own", no_teacher), tmp_path / "run")
