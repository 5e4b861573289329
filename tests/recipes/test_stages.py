"""Stages by name, and the task that an artifact brings along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from transformers import AutoConfig

import bertender
from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.errors import ConfigError, DataError, UnknownNameError
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stage import folder_digest
from bertender.recipes.stages import STAGES, CorpusText
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.finetuning.config import MultiTaskConfig
from distill.pretraining.config import PretrainConfig
from tests.front import ToyFiles, write_toy_files
from tests.toy_heads import JOINT
from tests.toy_kinds import TASKS
from tests.toy_models import save_artifact, tiny_classifier, with_turned_labels
from tests.toys import toy_task

KINDS = ("single_label_classification", "multi_label_classification", "token_classification")


@pytest.fixture
def files(tmp_path: Path, task: Task) -> ToyFiles:
    return write_toy_files(tmp_path, task)


def made_for(artifact: Artifact, **source: Any) -> Artifact:
    """The artifact as it would be, had it been made for the task of these settings."""
    record = artifact.card.task.model_copy(update={"source": source})
    return replace(artifact, card=artifact.card.model_copy(update={"task": record}))


@pytest.mark.parametrize("name", STAGES)
def test_every_row_loads_and_is_complete(name: str) -> None:
    stage = STAGES[name]
    assert stage.name == name and stage.summary and issubclass(stage.config, Config)
    if not stage.suffix:
        alone = stage.source is None or stage.file_setting is not None
        assert alone == (0 in stage.sources)


def test_the_second_source_of_a_distillation_keeps_its_layers(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """As the recipe of a general student and then the task's: half of it would be one layer."""
    general = save_artifact(tiny_classifier("bert", num_hidden_layers=2), task, tmp_path / "small")
    config = DistillConfig(method="tinybert", epochs=1, earlier_epochs=1, batch_size=32)
    student = STAGES["distill"].make([teacher, general], task, config, tmp_path / "student")
    assert AutoConfig.from_pretrained(student.path).num_hidden_layers == 2
    alone = STAGES["distill"].make([teacher], task, config, tmp_path / "alone")
    assert AutoConfig.from_pretrained(alone.path).num_hidden_layers == 2, "half of the teacher's"


@pytest.mark.parametrize("name", [*KINDS, JOINT.problem_type])
def test_a_loaded_task_fits_a_model_with_its_labels_in_another_order(
    name: str,
    teacher_of: Callable[[str], Artifact],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task, model = TASKS[name], teacher_of(name)
    turned = with_turned_labels(model, task, tmp_path / "turned")
    made = bertender.export(turned, task, out=tmp_path / "onnx")
    assert made.card.task.labels == turned.card.task.labels != task.labels
    assert "less than a guess" not in caplog.text
    settings = {"scheme": "dynamic", "max_drop": 100.0}
    scores = bertender.quantize(made, task, out=tmp_path / "int8", **settings).card.findings.scores
    own = model.card.findings.scores
    assert scores is not None and own is not None
    assert scores.score_before == pytest.approx(own.score)
    found = bertender.verify(turned, model, task)
    assert found.passed and found.score_change == 0.0, "the labels of the texts count too"


def test_a_start_with_more_labels_leaves_the_task_its_own(task: Task, tmp_path: Path) -> None:
    start = replace(task, labels=(*task.labels, "other"))
    source = save_artifact(tiny_classifier("bert", labels=3), start, tmp_path / "start")
    config = MultiTaskConfig(epochs=1, precision="fp32", allow_constant=True)
    made = STAGES["finetune"].make([source], task, config, tmp_path / "tuned")
    assert made.card.task.labels == task.labels


def test_an_unknown_stage_has_a_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'exprot'. Did you mean 'export'"):
        STAGES["exprot"]


@pytest.mark.parametrize("changes", [{}, {"max_dev": 4}, {"text_column": "x"}])
def test_an_artifact_without_a_task_needs_one(teacher: Artifact, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"does not record its task.*--task"):
        recorded_task(teacher, changes)


def test_the_recorded_task_is_loaded_again(teacher: Artifact, files: ToyFiles, task: Task) -> None:
    found = recorded_task(made_for(teacher, **files.task), {})
    assert found.fingerprint() == task.fingerprint()
    assert found.name == "toy"


def test_settings_change_the_recorded_task(teacher: Artifact, files: ToyFiles) -> None:
    found = recorded_task(made_for(teacher, **files.task), {"max_dev": 6, "max_train": 10})
    assert (len(found.train), len(found.dev)) == (10, 6)


def test_a_named_task_takes_the_place_of_the_recorded_one(
    teacher: Artifact, files: ToyFiles
) -> None:
    elsewhere = made_for(teacher, task="gone", train="/gone/train.csv", dev="/gone/dev.csv")
    with pytest.raises(DataError, match=r"/gone/train\.csv"):
        recorded_task(elsewhere, {})
    found = recorded_task(elsewhere, {"train": files.train, "dev": files.dev})
    assert found.labels == ("fruit", "tool")


def test_data_have_as_many_texts_as_the_model_reads(teacher: Artifact, files: ToyFiles) -> None:
    """Without it, a model of pairs would be calibrated on its first texts alone."""
    record = teacher.card.task.model_copy(update={"text_columns": ("premise", "hypothesis")})
    pairs = replace(teacher, card=teacher.card.model_copy(update={"task": record}))
    said = r"the columns are text, and the model reads 2 texts .*Name it by --pair-column"
    for changes in ({"train": files.train, "dev": files.dev}, {"dev": files.dev}):
        with pytest.raises(ConfigError, match=said):
            recorded_task(pairs, changes)


@pytest.fixture
def many(tmp_path: Path) -> ToyFiles:
    """So many texts that a tenth is enough to validate on."""
    return write_toy_files(tmp_path, toy_task(train_size=800))


def test_what_was_set_apart_stays_apart(teacher: Artifact, many: ToyFiles) -> None:
    own = load_task(TaskConfig.parse(many.task))
    assert own.source["select"] == 0.1 and len(own.selection) >= 50
    made = made_for(teacher, **own.source)
    for changes in ({}, {"max_train": 10}, {"train": many.train, "dev": many.dev}):
        assert recorded_task(made, changes).selection == own.selection
    assert len(recorded_task(made, {"select": 0}).selection) == 0
    larger = {"select": 0.2}
    for changes in (larger, {**many.task, **larger}):
        with pytest.raises(ConfigError, match=r"select=0\.2: .* select=0\.1, and has learned from"):
            recorded_task(made, changes)


def test_an_older_artifact_has_learned_from_every_training_text(
    teacher: Artifact, many: ToyFiles
) -> None:
    made = made_for(teacher, **many.task)
    for changes in ({}, {"train": many.train, "dev": many.dev}):
        found = recorded_task(made, changes)
        assert (len(found.train), found.chosen_on) == (800, "dev")
    with pytest.raises(ConfigError, match=r"made with select=0,"):
        recorded_task(made, {"select": 0.1})


def test_the_corpus_counts_by_its_text(files: ToyFiles) -> None:
    digest = STAGES["pretrain"].files_digest
    before = digest(PretrainConfig(corpus=str(files.corpus)))
    assert digest(PretrainConfig(corpus=str(files.corpus), epochs=9)) == before
    with files.corpus.open("a", encoding="utf-8") as corpus:
        corpus.write("\none more line")
    assert digest(PretrainConfig(corpus=str(files.corpus))) != before


def test_the_encoder_counts_by_its_files(tmp_path: Path) -> None:
    digest = STAGES["finetune"].files_digest
    folder = tmp_path / "encoder"
    config = MultiTaskConfig(teacher=str(folder))
    assert digest(config) == "", "a name: there is nothing to read"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    before = digest(config)
    (folder / "model.safetensors").write_bytes(b"2")
    assert before and digest(config) not in ("", before)


@pytest.mark.parametrize("field", ["student", "augmentation_model"])
def test_the_encoders_of_a_student_count_by_their_files(field: str, tmp_path: Path) -> None:
    config = DistillConfig.model_validate({"augmentation": "tinybert", field: str(tmp_path)})
    before = STAGES["distill"].files_digest(config)
    (tmp_path / "model.safetensors").write_bytes(b"1")
    assert STAGES["distill"].files_digest(config) != before


def test_one_thing_to_start_from(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    """A setting that an earlier step would silently win over is an error."""
    config = MultiTaskConfig(teacher="elsewhere")
    with pytest.raises(ConfigError, match="'elsewhere' and the earlier step 'teacher'"):
        STAGES["finetune"].make([teacher], task, config, tmp_path / "out")


def test_data_that_are_not_the_artifacts_have_a_share_of_their_own(
    teacher: Artifact, files: ToyFiles, tmp_path: Path
) -> None:
    """A tenth of a small file is too little to validate on, and nothing asked for it."""
    made = made_for(teacher, task="elsewhere", train="/gone/train.csv", select=0.1)
    found = recorded_task(made, {"train": files.train, "dev": files.dev})
    assert len(found.selection) == 0


def test_a_file_that_moves_to_another_folder_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (file := tmp_path / "a" / "part.csv").write_text("text")
    before = folder_digest(tmp_path)
    file.rename(tmp_path / "b" / file.name)
    assert folder_digest(tmp_path) != before


def test_an_encoder_of_a_hub_counts_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    stages = {
        "finetune": MultiTaskConfig(teacher="their/model"),
        "distill": DistillConfig(student="their/model"),
        "distill-general": GeneralConfig(teacher="their/model"),
        "pretrain": PretrainConfig.parse({"encoder": "their/model"}),
    }
    monkeypatch.setattr(CorpusText, "digest", lambda self: "")

    def digests() -> list[str]:
        return [STAGES[name].files_digest(config).strip() for name, config in stages.items()]

    assert digests() == [""] * 4, "it is not on this machine, and there is no hub"
    repository = tmp_path / "models--their--model"
    (repository / "refs").mkdir(parents=True)
    for commit in ("0" * 40, "1" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
        (repository / "refs" / "main").write_text(commit)
        assert digests() == [commit] * 4


def test_a_path_may_be_written_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b.txt", "texts.csv", "below/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    folders = {tmp_path: "", tmp_path / "below": "../", tmp_path.parent: f"{tmp_path.name}/"}
    identities = []
    for folder, to in folders.items():
        monkeypatch.chdir(folder)
        pretrained = PretrainConfig(corpus=f"{to}a.txt,{to}b.txt", phrases=Path(f"{to}a.txt"))
        distilled = DistillConfig(
            unlabelled=Path(f"{to}texts.csv"),
            more_teachers=(Path(f"{to}a.txt"),),
            student="their/model",
        )
        identities.append([each.shaping() for each in (pretrained, distilled)])
    assert identities[0] == identities[1] == identities[2]
    assert identities[0][0]["corpus"] == "a.txt,b.txt"
    assert identities[0][1]["student"] == "their/model"
    gone = PretrainConfig(corpus="elsewhere/a.txt,b.txt").shaping()["corpus"]
    assert gone == "elsewhere/a.txt,b.txt"
