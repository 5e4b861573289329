"""A compression of a model of each kind of problem, and what its candidates are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.compression.candidates import cuts_vocabulary
from bertender.compression.compress import Compression
from bertender.compression.config import CompressConfig
from bertender.compression.report import MODEL, CompressionReport, sentence
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.classifier import open_classifier
from bertender.models.importing import import_model
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Task
from tests.compression.brief import brief_probes
from tests.quick import quick
from tests.toy_kinds import ALL, NAMED, TASKS

__all__ = ["brief_probes"]

SMALLEST: dict[str, Any] = {
    "students": (),
    "layers": (3,),
    "heads": (0.0,),
    "ffn": (0.0,),
    "schemes": ("dynamic",),
    "epochs": 2,
    "learning_rate": 3e-3,
    "batch_size": 16,
    "noisy": True,
    "threads": 1,
    "processes": 1,
}


@pytest.mark.usefixtures("brief_probes")
@pytest.mark.parametrize("kind", quick(NAMED, TOKEN_CLASSIFICATION.name))
def test_a_model_of_each_kind_is_compressed(
    kind: str,
    teacher_of: Callable[[str], Artifact],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = NAMED[kind]
    teacher = teacher_of(kind)
    compression = Compression(teacher, task, CompressConfig.parse(SMALLEST), tmp_path / "out")
    caplog.clear()
    planned = compression.plan()
    assert not caplog.messages, "a probe is hardly trained, and nothing is said of its scores"
    assert not planned.obstacles
    vocabularies = {False} if task.problem.keeps_vocabulary else {False, True}
    assert {each.candidate.vocab for each in planned.candidates} == vocabularies
    report = compression.run()
    assert (report.verdict, report.metric) == ("met", task.metric)
    assert report == CompressionReport.model_validate_json(
        (tmp_path / "out/report.json").read_bytes()
    )
    assert sentence(report).startswith(f"Deploy {report.chosen}: {task.metric} ")
    model = open_classifier(Artifact.load(tmp_path / "out" / MODEL))
    asked = task.problem.asked(task.dev.examples[:3])
    assert len(model.outputs(asked)) == len(asked)


@pytest.mark.usefixtures("brief_probes")
def test_a_finished_model_of_choices_is_compressed(
    teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    """Its card does not say how many choices there are."""
    task, theirs = TASKS[MULTIPLE_CHOICE.name], tmp_path / "theirs"
    shutil.copytree(teacher_of(task.problem_type).path, theirs)
    (theirs / "artifact.json").unlink()
    finished = import_model(theirs, tmp_path / "finished")
    assert finished.card.task.labels == ("0",)
    config = CompressConfig.parse(SMALLEST)
    report = Compression(finished, task, config, tmp_path / "out").run()
    assert report.verdict == "met" and report.teacher_score is not None


@pytest.mark.usefixtures("brief_probes")
def test_probes_of_a_whole_vocabulary_are_not_made_again_for_other_texts(
    teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    kind, texts, said = TOKEN_CLASSIFICATION.name, tmp_path / "more.txt", list[str]()
    texts.write_text("plum saw")
    for more in ({}, {"unlabelled": texts}):
        config = CompressConfig.parse({**SMALLEST, **more})
        Compression(teacher_of(kind), NAMED[kind], config, tmp_path / "out", said.append).plan()
    assert said == ["probe teacher-3-dynamic"]


@pytest.mark.parametrize("kind", ALL)
def test_a_size_of_the_vocabulary_is_read_or_refused(kind: str) -> None:
    task, config = TASKS[kind], CompressConfig.parse({"vocab_size": 70})
    if task.problem.per_token:
        said = "vocab_size=70: tags and answers are learned token by token"
        with pytest.raises(ConfigError, match=said):
            cuts_vocabulary(task, config)
        return
    assert cuts_vocabulary(task, config)
    by_default = cuts_vocabulary(task, CompressConfig())
    assert by_default == (kind != SENTENCE_EMBEDDING.name)


@pytest.mark.usefixtures("brief_probes")
def test_a_probe_is_not_held_against_a_map_of_labels(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """Hardly trained, it may score less than a guess."""
    mapped = replace(task, source={**task.source, "label_map": '{"0": "fruit", "1": "tool"}'})
    config = CompressConfig.parse(SMALLEST)
    assert not Compression(trained, mapped, config, tmp_path).plan().obstacles


def test_a_map_that_swaps_the_labels_is_refused_before_a_probe_is_made(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    dev = replace(task.dev, label_ids=tuple(1 - label for label in task.dev.label_ids))
    source = {**task.source, "label_map": '{"0": "tool", "1": "fruit"}'}
    swapped = replace(task, dev=dev, selection=dev, source=source)
    compression = Compression(trained, swapped, CompressConfig.parse(SMALLEST), tmp_path / "out")
    with pytest.raises(ConfigError, match="labels look swapped"):
        compression.plan()
    assert not (tmp_path / "out").exists()
