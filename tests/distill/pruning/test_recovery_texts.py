"""What a pruned model recovers on: another teacher than the unpruned model, and more texts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import load_torch_classifier, open_classifier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from bertender.training.examples import token_dataset
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.pruning.rounds import PruningContext, recovery_texts
from distill.teachers.encoders import Teacher
from distill.teachers.outputs import LOGITS
from tests.listening import listed_steps
from tests.toy_models import save_artifact, tiny_classifier, with_turned_labels
from tests.toys import answer_task, byte_level_tokenizer, tiny_tokenizer, write_model

QUICK: dict[str, Any] = {
    "heads": 0.5,
    "epochs": 1,
    "batch_size": 8,
    "precision": "fp32",
    "scored_texts": 40,
}


@pytest.fixture(scope="module")
def untrained(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model of other outputs than the trained teacher's."""
    return save_artifact(tiny_classifier("bert"), task, tmp_path_factory.mktemp("other") / "other")


@pytest.fixture
def more(task: Task, tmp_path: Path) -> Path:
    """The training texts from the ninth on, and a held-out one."""
    texts = (*task.train.after(8).examples, task.dev.examples[0])
    (tmp_path / "more.txt").write_text("\n".join(text for (text,) in texts))
    return tmp_path / "more.txt"


def logits_learned(unpruned: Artifact, task: Task, config: PruneConfig) -> torch.Tensor:
    texts = recovery_texts(Teacher.load(unpruned, task), task, config)
    return torch.stack(list(texts.examples(tiny_tokenizer()).columns[LOGITS]))


def test_it_learns_from_the_teacher_that_is_set(
    trained_teacher: Artifact, untrained: Artifact, task: Task, tmp_path: Path
) -> None:
    for teacher in (None, trained_teacher):
        config = PruneConfig(**QUICK, teacher=teacher and teacher.path)
        expected = open_classifier(teacher or untrained).logits(task.train.examples)
        learned = logits_learned(untrained, task, config)
        torch.testing.assert_close(learned, torch.from_numpy(expected), rtol=1e-3, atol=1e-4)
    first, second = (
        prune(untrained, task, PruneConfig(**QUICK, teacher=path), tmp_path / name)
        for name, path in (("own", None), ("other", trained_teacher.path))
    )
    assert first.digest != second.digest
    for made in (first, second):
        (start, *_) = made.card.findings.training.losses
        assert start.keys() == {"soft", "hard"} and all(start.values())
    assert second.card.parent.digest == untrained.digest
    assert first.card.findings.pruning.unpruned == second.card.findings.pruning.unpruned
    scores = [each.card.findings.pruning.rounds[0].head_importance for each in (first, second)]
    assert scores[0] == scores[1], "what is cut does not depend on it"


def test_a_teacher_may_have_a_vocabulary_of_its_own(
    untrained: Artifact, task: Task, tmp_path: Path
) -> None:
    tokenizer = byte_level_tokenizer()
    model = tiny_classifier("roberta", vocab_size=len(tokenizer), pad_token_id=1)
    teacher = write_model(model, tokenizer, task, tmp_path / "teacher")
    learned = logits_learned(untrained, task, PruneConfig(**QUICK, teacher=teacher.path))
    expected = open_classifier(teacher).logits(task.train.examples)
    torch.testing.assert_close(learned, torch.from_numpy(expected), rtol=1e-3, atol=1e-4)


def test_it_recovers_on_unlabelled_texts(
    trained_teacher: Artifact, task: Task, more: Path, tmp_path: Path
) -> None:
    few = replace(task, train=task.train.first(8))
    config = PruneConfig(**QUICK, unlabelled=more)
    texts = recovery_texts(Teacher.load(trained_teacher, few), few, config)
    assert len(texts.task.train) == 96 and texts.left_out == {"held_out": 1}
    assert set(texts.task.train.after(8).label_ids) == {NO_LABEL}
    with listed_steps() as steps:
        pruned = prune(trained_teacher, few, config, tmp_path / "pruned")
    training = pruned.card.findings.training
    assert training.unlabelled_texts == 88
    assert training.unlabelled_left_out == texts.left_out
    assert len(steps) >= math.ceil(96 / 8)
    alone = prune(trained_teacher, few, PruneConfig(**QUICK), tmp_path / "alone")
    assert alone.card.findings.training.unlabelled_texts is None
    importance = [each.card.findings.pruning.rounds[0].head_importance for each in (pruned, alone)]
    assert importance[0] == importance[1], "texts without labels score no part"


def test_tokens_of_unlabelled_texts_stay(
    untrained: Artifact, task: Task, more: Path, tmp_path: Path
) -> None:
    few = replace(task, train=task.train.first(2))
    cut = {"vocab": "task", "recover": False}
    settings = {"alone": cut, "together": {**cut, "unlabelled": more}}
    pruned = {
        name: prune(untrained, few, PruneConfig.parse(each), tmp_path / name)
        for name, each in settings.items()
    }
    entries = {
        name: each.card.findings.pruning.vocabulary.after.entries for name, each in pruned.items()
    }
    assert entries["alone"] < entries["together"]
    training = pruned["together"].card.findings.training
    assert training is None or training.unlabelled_texts is None, "nothing learned from them"


def test_a_teacher_in_another_order_is_learned_from_by_name(
    untrained: Artifact, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """Its outputs are cached apart from those in its own order."""
    turned = with_turned_labels(trained_teacher, task, tmp_path / "turned")
    own = Teacher.load(turned, replace(task, labels=turned.card.task.labels))
    assert own.digest == turned.digest != Teacher.load(turned, task).digest
    learned = [
        logits_learned(untrained, task, PruneConfig(**QUICK, teacher=each.path))
        for each in (trained_teacher, turned)
    ]
    torch.testing.assert_close(*learned)


def test_what_cannot_be_learned_from_is_refused(
    untrained: Artifact, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    kinds = replace(task, labels=("a", "b", "c"))
    other = save_artifact(tiny_classifier("bert", labels=3), kinds, tmp_path / "kinds")
    with pytest.raises(ConfigError, match=r"the teacher .*kinds predicts a, b, c"):
        prune(untrained, task, PruneConfig(**QUICK, teacher=other.path), tmp_path / "out")
    same = save_artifact(load_torch_classifier(trained_teacher), task, tmp_path / "same")
    with pytest.raises(ArtifactError, match="same"):
        prune(untrained, task, PruneConfig(**QUICK, teacher=same.path), same.path)
    assert not (tmp_path / "out").exists()


def test_an_earlier_step_may_be_the_teacher(
    untrained: Artifact, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    stage, config = STAGES["prune"], PruneConfig(**QUICK)
    by_step = stage.make([untrained, trained_teacher], task, config, tmp_path / "by-step")
    named = config.changed({"teacher": trained_teacher.path})
    by_name = stage.make([untrained], task, named, tmp_path / "by-name")
    assert by_step.digest == by_name.digest
    assert by_step.card.config["teacher"] == str(trained_teacher.path)
    with pytest.raises(ConfigError, match=r"teacher=.* are both to start from"):
        stage.make([untrained, trained_teacher], task, named, tmp_path / "both")


@pytest.mark.parametrize("unlabelled", [0, 9])
def test_the_windows_of_all_labelled_questions_are_scored(unlabelled: int) -> None:
    labelled = answer_task()
    extended = labelled.with_unlabelled(labelled.dev.examples[:unlabelled])
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 32
    windows, more = (
        token_dataset(each.train, tokenizer, each.problem_type) for each in (labelled, extended)
    )
    assert len(windows) > len(labelled.train)
    context = PruningContext(
        teacher=cast(Teacher, None),
        task=labelled,
        config=PruneConfig(heads=0.5, scored_texts=10_000),
        tokenizer=tokenizer,
        examples=more,
        work=Path(),
        description="",
    )
    batches = [*context.scored_batches(torch.device("cpu"))]
    assert all((batch["labels"] != NO_LABEL).all() for batch in batches)
    assert sum(len(batch["labels"]) for batch in batches) == len(windows)
