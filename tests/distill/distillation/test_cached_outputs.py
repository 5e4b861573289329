"""What is cached of the teachers' outputs: when, once, within its limit, and averaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.training.heads.head import averaged_distributions as averaged
from distill.distillation import distillation as phases
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.losses.signals import Signals
from distill.methods import METHODS
from distill.teachers import outputs
from distill.teachers.encoders import load_teachers
from tests.distill.distillation.settings import SHORT
from tests.toy_models import (
    other_vocabulary,
    save_artifact,
    tiny_classifier,
    with_turned_labels,
)
from tests.toys import tiny_tokenizer


@pytest.fixture(scope="module")
def few(task: Task) -> Task:
    """A third of the toy task's texts."""
    return replace(task, train=task.train.first(32))


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, 0),
        ({"weights": {"cosine": 0}}, 1),
        ({"method": "pkd"}, 1),
        ({"method": "internal"}, 1),
        ({"method": "hard"}, 0),
    ],
    ids=["the teacher runs anyway", "logits", "logits and states", "the last phase", "labels"],
)
def test_answers_are_kept_only_where_they_free_a_phase_of_the_teacher_and_once(
    settings: dict[str, Any],
    runs: int,
    trained_teacher: Artifact,
    few: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    calls = []
    read_signals = outputs.read_signals
    monkeypatch.setattr(  # the texts fit in one batch
        outputs, "read_signals", lambda *given: (calls.append(1), read_signals(*given))[1]
    )
    for seed in (0, 1):
        config = DistillConfig(**SHORT, **settings, seed=seed)
        distill(trained_teacher, few, config, tmp_path / f"student-{seed}")
    assert len(calls) == runs


@pytest.mark.parametrize(
    "settings", [{"method": "pkd"}, {"weights": {"cosine": 0}}], ids=["pkd", "logits"]
)
def test_kept_and_online_answers_teach_the_same(
    settings: dict[str, Any],
    trained_teacher: Artifact,
    few: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = {**SHORT, **settings}
    with monkeypatch.context() as patched:
        patched.setattr(phases, "read_signals", lambda *given: pytest.fail("the teacher was run"))
        kept = distill(trained_teacher, few, DistillConfig(**plain), tmp_path / "kept")
    assert "the teacher runs in each step" not in caplog.text
    config = DistillConfig(**plain, teacher_cache_mb=0)
    online = distill(trained_teacher, few, config, tmp_path / "online")
    assert "more than teacher_cache_mb=0: the teacher runs in each step" in caplog.text
    losses = [artifact.card.findings.training.losses for artifact in (kept, online)]
    assert len(losses[0]) == 2
    for ours, theirs in zip(*losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("reason", ["a vocabulary of its own", "several teachers"])
def test_what_must_be_kept_is_refused_where_it_is_too_large(
    reason: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "a vocabulary of its own": {"student": str(other_vocabulary(tmp_path / "encoder"))},
        "several teachers": {"more_teachers": (trained_teacher.path,)},
    }[reason]
    config = DistillConfig(method="pkd", **SHORT, **settings, teacher_cache_mb=0)
    said = rf"sentence states of 96 texts are 0\.0 MB.*{reason}.*teacher_cache_mb 1 or more"
    with pytest.raises(ConfigError, match=said):
        distill(trained_teacher, task, config, tmp_path / "student")


def test_several_teachers_answer_together(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """An untrained second teacher makes the first one's answers less sure."""
    other = save_artifact(tiny_classifier("bert"), task, tmp_path / "other")
    alone, both = (
        distill(trained_teacher, task, DistillConfig(**SHORT, more_teachers=more), tmp_path / name)
        for name, more in (("alone", ()), ("both", (other.path,)))
    )
    assert alone.digest != both.digest
    with pytest.raises(ConfigError, match="'hard' reads no logits"):
        DistillConfig.parse({"method": "hard", "more_teachers": (other.path,)})
    kinds = replace(task, labels=("a", "b", "c"))
    save_artifact(tiny_classifier("bert", labels=3), kinds, tmp_path / "kinds")
    with pytest.raises(ConfigError, match=r"the teacher .* predicts .*was fine-tuned on this task"):
        config = DistillConfig(more_teachers=(tmp_path / "kinds",))
        distill(trained_teacher, task, config, tmp_path / "student")


def test_a_further_teacher_may_have_its_labels_in_another_order(
    trained_teacher: Artifact, few: Task, tmp_path: Path
) -> None:
    turned = with_turned_labels(trained_teacher, few, tmp_path / "turned")
    first, second = load_teachers(trained_teacher, [turned.path], few)
    tokens = tiny_tokenizer()(few.train.examples[0][0], return_tensors="pt")
    with torch.inference_mode():
        own, theirs = (each.model.eval()(**tokens).logits for each in (first, second))
    torch.testing.assert_close(own, theirs)
    students = [
        distill(
            trained_teacher, few, DistillConfig(**SHORT, more_teachers=(more,)), tmp_path / name
        )
        for name, more in (("of-same", trained_teacher.path), ("of-turned", turned.path))
    ]
    one, other = (open_classifier(each).logits(few.dev.examples[:8]) for each in students)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_logits_are_averaged_as_distributions() -> None:
    sure, unsure = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 0.0]])
    mean = (sure.softmax(-1) + unsure.softmax(-1)) / 2
    torch.testing.assert_close(averaged([sure, unsure]).softmax(-1), mean)
    assert averaged([sure]) is sure


def test_averaged_logits_lie_where_the_teachers_logits_lie() -> None:
    """A BiLSTM is brought to the logits themselves, not to what their softmax leaves of them."""
    logits = torch.tensor([[4.0, -1.0, 0.5], [-3.0, -3.5, 2.0], [0.0, 9.0, 30.0]])
    torch.testing.assert_close(averaged([logits, logits.clone()]), logits)
    (term,) = (term for term in METHODS["bilstm"].terms if term.name == "logits")
    target, other = averaged([logits] * 3), averaged([logits, logits.flip(0)])
    as_good = Signals(logits.clone())
    assert float(term(as_good, Signals(target), {})) == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(other.mean(-1), (logits + logits.flip(0)).mean(-1) / 2)
