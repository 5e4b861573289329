"""A plain folder that changes while a run is interrupted: the run must not go on from its steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distiller import distill
from distill.distillation.general import distill_general_by_name
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining.config import PretrainConfig
from distill.pretraining.pretrain import pretrain_by_name
from tests.front import write_toy_files
from tests.listening import interrupted_at
from tests.toy_models import save_encoder

SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 8, "checkpoint_steps": 2, "max_length": 16}


class Runs:
    """Runs that start from the folder `encoder`, by the name of their command."""

    def __init__(self, folder: Path, task: Task, teacher: Artifact) -> None:
        self.encoder, self.out = save_encoder("bert", folder / "encoder"), folder / "out"
        self.task, self.teacher, self.files = task, teacher, write_toy_files(folder, task)

    def finetune(self) -> Artifact:
        config = FinetuneConfig(teacher=str(self.encoder), **SHORT)
        return finetune_by_name(self.task, config, self.out)

    def distill(self) -> Artifact:
        config = DistillConfig(method="pd", student=str(self.encoder), **SHORT)
        return distill(self.teacher, self.task, config, self.out)

    def pretrain(self) -> Artifact:
        settings = {**SHORT, "corpus": str(self.files.corpus), "encoder": str(self.encoder)}
        return pretrain_by_name(PretrainConfig(**settings), self.out)

    def distill_general(self) -> Artifact:
        settings = {**SHORT, "corpus": str(self.files.corpus), "teacher": str(self.encoder)}
        return distill_general_by_name(GeneralConfig(layers=1, **settings), self.out)


def another_activation(encoder: Path) -> None:
    change(encoder / "config.json", lambda config: config.update(hidden_act="relu"))


def another_case(encoder: Path) -> None:
    change(encoder / "tokenizer_config.json", lambda config: config.update(do_lower_case=False))


def change(file: Path, edit: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("edit", [another_activation, another_case])
@pytest.mark.parametrize("name", ["finetune", "distill", "pretrain", "distill_general"])
def test_a_run_from_a_changed_folder_starts_anew(
    name: str,
    edit: Callable[[Path], None],
    task: Task,
    trained_teacher: Artifact,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = Runs(tmp_path, task, trained_teacher)
    with interrupted_at(4), pytest.raises(KeyboardInterrupt):
        getattr(runs, name)()
    edit(runs.encoder)
    getattr(runs, name)()
    assert "starts from the beginning" in caplog.text
