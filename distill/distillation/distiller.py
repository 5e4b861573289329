"""Distilling: a student trained on what its teacher predicts, by a row of METHODS.

teacher artifact + task + DistillConfig -> `on_task` -> `Distillation.run` -> student artifact
With `control`, the same student learns from labels alone after it (`train_controls`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from bertender.training.trained import Writer, trained_artifact
from distill.distillation.control import train_controls
from distill.distillation.distill_config import DistillConfig
from distill.distillation.on_task import Compared, check_sources_stay, no_control, on_task

__all__ = ["DistillConfig", "distill"]


def distill(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher, or the augmentation's words; raised before training
            starts.
        DataError: the file of unlabelled texts is wrong.
        ConstantError: the teacher predicts one label everywhere; or the student does, whose
            checkpoints stay.
    """
    config.check_rules()
    check_sources_stay(out, teacher, config)  # before the teacher reads every text
    ready = on_task(teacher, task, config)

    def train(work: Path) -> Writer:
        trained = ready.distillation.run(config, work, f"distill {out.name}")
        findings = ready.findings(trained, config)
        compared: Compared = no_control
        if config.control:
            compared = train_controls(ready, teacher, task, config, work / "control").compared
        return partial(ready.write, trained, findings, compared)

    return trained_artifact(out, "distill", config, train, identity=ready.identity, parent=teacher)
