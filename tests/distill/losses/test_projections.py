"""What brings a student's states to its teacher's width goes from a general stage to a task's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.general import distill_general_by_name
from distill.distillation.on_task import OnTask
from distill.methods import GENERAL_METHODS
from distill.trained import PROJECTIONS_NAME, load_projections, save_projections
from tests.distill.distillation.general_settings import settings_of
from tests.quick import quick
from tests.toy_models import save_language_model
from tests.toys import passages

PROJECTED = [
    name
    for name, row in GENERAL_METHODS.items()
    if any(getattr(term, "projected", False) for term in row.terms)
]
NARROW = {"hidden_size": 16, "heads": 4, "epochs": 1}


def general(folder: Path, method: str, **settings: int) -> Artifact:
    """A general student of a language model of 4 layers x 32."""
    (folder / "corpus.txt").write_text("\n".join(passages(200)), encoding="utf-8")
    teacher, corpus = str(save_language_model(folder / "teacher")), str(folder / "corpus.txt")
    config = GeneralConfig(
        **settings_of(method, teacher=teacher, corpus=corpus, **{"epochs": 1, **settings})
    )
    return distill_general_by_name(config, folder / "general")


@pytest.mark.parametrize("method", quick(PROJECTED, "tinybert"))
def test_a_task_stage_goes_on_with_the_projection_of_the_general_stage(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    start = general(tmp_path, method, **NARROW)
    learned = load_projections(str(start.path), method)
    assert {name: tuple(each.shape) for name, each in learned.items()} == {
        "hidden_states.weight": (32, 16),
        "hidden_states.bias": (32,),
    }
    assert PROJECTIONS_NAME in start.card.files
    AutoModel.from_pretrained(start.path)  # it remains a folder of transformers
    # at such a rate nothing changes but what is drawn anew
    slow = {"learning_rate": 1e-12, "earlier_learning_rate": 1e-12}
    settings = {"epochs": 1, "earlier_epochs": 1, "precision": "fp32", **slow}
    config = DistillConfig(method=method, student=str(start.path), **settings)
    ready = OnTask(trained_teacher, task, config)
    trained = ready.run(config, tmp_path / "work", "distill")
    assert trained.projections.keys() == learned.keys()
    for name, each in learned.items():
        torch.testing.assert_close(trained.projections[name].detach(), each, atol=1e-6, rtol=0)


def test_one_of_another_width_is_drawn_anew(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    start = general(tmp_path, "tinybert", **NARROW)
    encoder = AutoModel.from_pretrained(start.path)
    encoder.config.update({"hidden_size": 8})
    narrower = AutoModel.from_config(encoder.config)
    other = tmp_path / "other"
    narrower.save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json", PROJECTIONS_NAME):
        (other / name).write_bytes((start.path / name).read_bytes())
    settings = {"epochs": 1, "earlier_epochs": 1}
    config = DistillConfig(method="tinybert", student=str(other), precision="fp32", **settings)
    trained = OnTask(trained_teacher, task, config).run(config, tmp_path / "work", "distill")
    assert trained.projections["hidden_states.weight"].shape == (32, 8)


def test_an_encoder_as_wide_as_its_teacher_has_none(tmp_path: Path) -> None:
    assert not load_projections(str(general(tmp_path, "tinybert").path), "tinybert")


def test_those_of_another_method_are_drawn_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have the same names and shapes, and lead to what other terms compare."""
    save_projections({"hidden_states.weight": torch.ones(32, 16)}, tmp_path, "mobilebert")
    assert load_projections(str(tmp_path), "mobilebert").keys() == {"hidden_states.weight"}
    with caplog.at_level(logging.INFO):
        assert not load_projections(str(tmp_path), "tinybert")
    assert "learned by method mobilebert, not by tinybert" in caplog.text


def test_those_of_an_unknown_method_are_drawn_anew(tmp_path: Path) -> None:
    save_file({"hidden_states.weight": torch.ones(32, 16)}, tmp_path / PROJECTIONS_NAME)
    assert not load_projections(str(tmp_path), "tinybert")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / PROJECTIONS_NAME).write_bytes(b"damaged")
    with pytest.raises(ModelError, match=f"cannot read .*{PROJECTIONS_NAME}.*delete it"):
        load_projections(str(tmp_path), "tinybert")
