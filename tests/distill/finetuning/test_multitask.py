"""Several tasks in one run: whose batches train what, what is written, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, ConfigError, UnknownNameError
from bertender.models.classifier import open_classifier
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from bertender.training.loop import planned
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning import finetune as multitask
from distill.finetuning.config import MultiTaskConfig
from distill.finetuning.finetune import (
    SharedEncoder,
    finetune_tasks_by_name,
    joined,
    objective_of,
)
from tests.distill.architectures import save_teacher
from tests.listening import interrupted_at
from tests.quick import quick
from tests.toy_models import tiny_classifier
from tests.toys import FRUIT, TOOLS, ToyNamedTask, pair_task, tiny_tokenizer

QUICK: dict[str, Any] = {
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
    "more_tasks": ("mixtures", "pairs"),
}
SHORT = {**QUICK, "epochs": 1, "allow_constant": True}
NAMES = ("toy", "mixtures", "pairs")


def mixtures(train_size: int = 90) -> Task:
    """Three classes: texts of fruit, of tools, and of both."""
    words = (FRUIT, TOOLS, (FRUIT[0], TOOLS[0], FRUIT[1], TOOLS[1], FRUIT[2], TOOLS[2]))

    def text(row: int) -> str:
        own = words[row % 3]
        return " ".join(own[(row + place) % 6] for place in range(2 + 2 * (row % 2)))

    examples = tuple((text(row),) for row in range(train_size))
    split = Split(examples, tuple(row % 3 for row in range(train_size)))
    return Task(
        "mixtures", ("fruit", "tool", "both"), "accuracy", ("text",), split, split.first(30)
    )


@pytest.fixture(scope="module", autouse=True)
def toys_by_name() -> Iterator[None]:
    """Put a task of three labels and a task of pairs among those with a name."""
    with pytest.MonkeyPatch.context() as patch:
        for task in (mixtures(), pair_task()):
            patch.setitem(TASKS, task.name, ToyNamedTask.of(task))
        yield


@pytest.fixture(scope="module")
def tasks(task: Task) -> dict[str, Task]:
    return {each.name: each for each in (task, mixtures(), pair_task())}


def made_at(out: Path) -> dict[str, Artifact]:
    """The artifacts of a run, by the names of their tasks."""
    paths = {"toy": out, **{name: out.with_name(f"{out.name}-{name}") for name in NAMES[1:]}}
    return {name: Artifact.load(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def made(
    task: Task, teacher: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Artifact]:
    """A run on three tasks that starts from an artifact."""
    out = tmp_path_factory.mktemp("tasks") / "out"
    finetune_tasks_by_name(task, MultiTaskConfig(teacher=str(teacher.path), **QUICK), out)
    return made_at(out)


@pytest.mark.parametrize("name", NAMES)
def test_each_artifact_opens_in_transformers_with_the_score_in_its_card(
    name: str, made: dict[str, Artifact], tasks: dict[str, Task]
) -> None:
    path, task = made[name].path, tasks[name]
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    columns = [list(column) for column in zip(*task.dev.examples, strict=True)]
    tokens = AutoTokenizer.from_pretrained(path)(*columns, padding=True, return_tensors="pt")
    with torch.inference_mode():
        predicted = model(**tokens).logits.argmax(-1)
    accuracy = float((predicted == torch.tensor(task.dev.label_ids)).float().mean())
    assert model.config.id2label == dict(enumerate(task.labels))
    assert (
        made[name].card.task
        == replace(
            task, source=made[name].card.task.source, data=made[name].card.task.data
        ).record()
    )
    assert made[name].card.findings.training.epochs[-1] == {"accuracy": pytest.approx(accuracy)}
    assert accuracy > 0.9, "it has learned beside the others"


def test_the_encoder_is_one_and_the_heads_are_each_their_own(made: dict[str, Artifact]) -> None:
    models = {
        name: AutoModelForSequenceClassification.from_pretrained(artifact.path)
        for name, artifact in made.items()
    }
    first, *others = (encoder_of(model) for model in models.values())
    for other in others:
        assert all(torch.equal(tensor, other[key]) for key, tensor in first.items())
    heads = {name: model.classifier.weight for name, model in models.items()}
    assert [len(head) for head in heads.values()] == [2, 3, 2]
    assert not torch.equal(heads["toy"], heads["pairs"])
    poolers = [model.bert.pooler.dense.weight for model in models.values()]
    assert not torch.equal(poolers[0], poolers[1])


def encoder_of(model: Any) -> dict[str, torch.Tensor]:
    """The weights that the tasks share."""
    weights = model.base_model.state_dict()
    return {name: weight for name, weight in weights.items() if "pooler" not in name}


def test_the_cards_tell_of_each_other_and_of_the_start(
    made: dict[str, Artifact], teacher: Artifact
) -> None:
    for name, artifact in made.items():
        card = artifact.card
        assert card.parent is not None and card.parent.digest == teacher.digest
        assert (artifact.path / card.parent.path).resolve() == teacher.path.resolve()
        assert card.config["more_tasks"] == ["mixtures", "pairs"] and card.stage == "finetune"
        assert card.findings.training.together.keys() == set(NAMES) - {name}
        for other, beside in card.findings.training.together.items():
            assert artifact.path.with_name(beside.artifact) == made[other].path
            assert beside.epochs == made[other].card.findings.training.epochs
            assert len(beside.epochs) == QUICK["epochs"]


def test_each_task_has_the_steps_of_its_size(
    made: dict[str, Artifact], tasks: dict[str, Task]
) -> None:
    """Batches are filled within a task, so each has as many as it would have alone."""
    examples = joined([token_dataset(tasks[name].train, tiny_tokenizer()) for name in NAMES])
    plan = planned(examples, MultiTaskConfig(**SHORT))
    of_tasks = [{examples.groups[index] for index in batch} for batch in plan.batches]
    assert all(len(numbers) == 1 for numbers in of_tasks), "no batch mixes tasks"
    order = [numbers.pop() for numbers in of_tasks]
    sizes = [len(tasks[name].train) for name in NAMES]
    assert Counter(order) == {
        number: math.ceil(size / QUICK["batch_size"]) for number, size in enumerate(sizes)
    }
    assert order != sorted(order), "the tasks take turns"
    assert made["toy"].card.findings.training.steps == len(plan) * QUICK["epochs"]


def shared_encoder(*label_counts: int) -> SharedEncoder:
    return SharedEncoder([tiny_classifier("bert", labels=count) for count in label_counts])


def batch_of(number: int) -> dict[str, torch.Tensor]:
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    numbers = torch.full((2,), number)
    return {**tokens, "labels": torch.tensor([0, 1]), "task": numbers}


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_trains_the_encoder_and_the_head_of_its_own_task(number: int) -> None:
    shared = shared_encoder(2, 3)
    heads = dict.fromkeys(["first", "second"], HEADS[SINGLE_LABEL.name])
    loss = objective_of(heads)(shared, batch_of(number), 0)
    assert loss.keys() == {("first", "second")[number]}
    sum(loss.values()).backward()  # type: ignore[union-attr]
    own, other = shared.classifiers[number], shared.classifiers[1 - number]
    for part in (own.bert.embeddings.word_embeddings, own.bert.pooler.dense, own.classifier):
        assert part.weight.grad.abs().max() > 0
    assert other.bert.encoder is own.bert.encoder
    assert other.classifier.weight.grad is None and other.bert.pooler.dense.weight.grad is None


def test_the_encoder_is_there_once() -> None:
    shared = shared_encoder(2, 3, 2)
    heads = [p for each in shared.classifiers for p in each.classifier.parameters()]
    poolers = [p for each in shared.classifiers for p in each.base_model.pooler.parameters()]
    parts = (*encoder_of(shared.classifiers[0]).values(), *heads, *poolers)
    assert sum(p.numel() for p in shared.parameters()) == sum(p.numel() for p in parts)
    with torch.no_grad():
        shared.classifiers[0].base_model.embeddings.word_embeddings.weight.zero_()
    assert not shared.classifiers[2].base_model.embeddings.word_embeddings.weight.any()


@pytest.mark.parametrize(
    "name", quick(["gpt2", "t5", "xlnet", "deberta-v2", "distilbert"], "gpt2", "t5", "distilbert")
)
def test_any_architecture_shares_its_encoder(
    name: str, tasks: dict[str, Task], tmp_path: Path
) -> None:
    source = str(save_teacher(name, tmp_path / "encoder"))
    config = MultiTaskConfig(teacher=source, **{**SHORT, "more_tasks": ("mixtures",)})
    few = replace(tasks["toy"], train=tasks["toy"].train.first(16), source={"max_train": 16})
    main = finetune_tasks_by_name(few, config, tmp_path / "out")
    other = Artifact.load(tmp_path / "out-mixtures")
    assert main.card.findings.training.steps == 2, "the other task has as many examples at most"
    assert open_classifier(other).logits(tasks["mixtures"].dev.examples[:4]).shape == (4, 3)
    one, two = (
        encoder_of(AutoModelForSequenceClassification.from_pretrained(artifact.path))
        for artifact in (main, other)
    )
    assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())


def test_a_student_is_distilled_from_a_sibling(
    made: dict[str, Artifact], tasks: dict[str, Task], tmp_path: Path
) -> None:
    settings = {name: QUICK[name] for name in ("batch_size", "learning_rate", "precision")}
    config = DistillConfig(layers=2, epochs=3, **settings)
    student = distill(made["mixtures"], tasks["mixtures"], config, tmp_path / "student")
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.9
    assert student.card.parent is not None
    assert student.card.parent.digest == made["mixtures"].digest


def digests(out: Path) -> dict[str, str]:
    return {name: artifact.digest for name, artifact in made_at(out).items()}


def test_a_killed_run_goes_on_to_the_same_artifacts(
    task: Task, teacher: Artifact, tmp_path: Path
) -> None:
    config = MultiTaskConfig(teacher=str(teacher.path), checkpoint_steps=4, **SHORT)
    whole = finetune_tasks_by_name(task, config, tmp_path / "whole")
    with interrupted_at(7) as steps:
        with pytest.raises(KeyboardInterrupt):
            finetune_tasks_by_name(task, config, tmp_path / "killed")
        assert not list(tmp_path.glob("killed*"))
        config = config.changed({"checkpoint_steps": 3})
        resumed = finetune_tasks_by_name(task, config, tmp_path / "killed")
    assert len(steps) == 7 + whole.card.findings.training.steps - 4, (
        "it went on from the checkpoint"
    )
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert resumed.card.findings.training.epochs == whole.card.findings.training.epochs
    assert resumed.card.findings.training.losses == whole.card.findings.training.losses


def test_a_run_killed_between_two_artifacts_writes_them_all_again(
    task: Task, teacher: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MultiTaskConfig(teacher=str(teacher.path), checkpoint_steps=4, **SHORT)
    write = multitask.write_trained

    def dies(*given: Any, out: Path, **made: Any) -> None:
        if out.name == "out":
            raise KeyboardInterrupt
        write(*given, out=out, **made)

    with monkeypatch.context() as patch:
        patch.setattr(multitask, "write_trained", dies)
        with pytest.raises(KeyboardInterrupt):
            finetune_tasks_by_name(task, config, tmp_path / "out")
    shown = sorted(path.name for path in tmp_path.glob("out*"))
    assert shown == ["out-mixtures", "out-pairs"], "the main one is there when all are"
    finetune_tasks_by_name(task, config, tmp_path / "out")
    assert set(digests(tmp_path / "out")) == set(NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-mixtures", "out-pairs"]


def test_one_task_is_fine_tuned_as_ever(task: Task, teacher: Artifact, tmp_path: Path) -> None:
    settings = {**SHORT, "more_tasks": (), "teacher": str(teacher.path)}
    alone = finetune_tasks_by_name(task, MultiTaskConfig(**settings), tmp_path / "alone")
    assert alone.card.findings.training.together == {}
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]


BAD_SETTINGS: dict[str, tuple[str, type[Exception], str]] = {
    "unknown": ("pears", UnknownNameError, "more_tasks: no task 'pears'.*mean 'pairs'"),
    "twice": ("cola,pairs,cola", ConfigError, "'cola' is there twice among cola, pairs, cola"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_tasks_are_refused(case: str) -> None:
    names, error, said = BAD_SETTINGS[case]
    with pytest.raises(error, match=said):
        MultiTaskConfig.parse({"more_tasks": names})


def test_the_command_lines_form() -> None:
    assert MultiTaskConfig.parse({"more_tasks": "cola, pairs"}).more_tasks == ("cola", "pairs")


def test_windows_of_several_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"windows=mean: the texts of several"):
        MultiTaskConfig.parse({**SHORT, "more_tasks": "cola", "windows": "mean"})
    assert MultiTaskConfig.parse({"windows": "mean"}).windows == "mean"


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multitask, "train", lambda *given, **named: pytest.fail("it trained"))


@pytest.mark.usefixtures("untrained")
def test_the_main_task_is_not_named_again(task: Task, teacher: Artifact, tmp_path: Path) -> None:
    config = MultiTaskConfig(teacher=str(teacher.path), **SHORT)
    with pytest.raises(ConfigError, match="'pairs' is there twice among pairs, mixtures, pairs"):
        finetune_tasks_by_name(replace(task, name="pairs"), config, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("untrained")
def test_a_sibling_over_something_foreign_is_refused(
    task: Task, teacher: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "out-pairs").mkdir()
    (tmp_path / "out-pairs" / "thesis.txt").write_text("the only copy")
    config = MultiTaskConfig(teacher=str(teacher.path), **SHORT)
    with pytest.raises(ArtifactError, match="out-pairs exists and is not an artifact"):
        finetune_tasks_by_name(task, config, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out-pairs"]


@pytest.mark.usefixtures("untrained")
def test_a_sibling_over_the_start_is_refused(
    task: Task, made: dict[str, Artifact], tmp_path: Path
) -> None:
    config = MultiTaskConfig(teacher=str(made["pairs"].path), **SHORT)
    before = made["pairs"].digest
    with pytest.raises(ArtifactError, match="out-pairs is the artifact to start from"):
        finetune_tasks_by_name(task, config, made["toy"].path)
    assert Artifact.load(made["pairs"].path).digest == before
