"""Choices read the validation texts, and the held-out ones are read once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quantize.context
from bertender.comparison import fitting
from bertender.comparison.accuracy import evaluate
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import open_classifier
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task, TaskConfig
from distill.distillation.config import DistillConfig
from distill.distillation.texts import with_unlabelled
from distill.finetuning.config import MultiTaskConfig
from distill.finetuning.finetune import finetune_tasks
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SCHEMES
from tests.front import write_toy_files
from tests.quantize.contexts import SETTINGS, context_of
from tests.toy_models import save_encoder, tiny_classifier
from tests.toys import ToyNamedTask, tiny_tokenizer, toy_task

LEARNED, APART = 72, 24
WATCHED = (
    (fitting, "evaluate", "evaluate_all", "answers"),
    (quantize.context, "evaluate", "evaluate_all"),
)
"""Modules, and the functions by which they score."""
QUICK: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
    "max_length": 32,
}


@pytest.fixture(scope="module")
def apart(task: Task) -> Task:
    """The toy task, the last of its training texts as validation texts."""
    examples, labels = task.train.examples, task.train.label_ids
    return replace(
        task,
        train=task.train.first(LEARNED),
        selection=Split(examples[LEARNED:], labels[LEARNED:]),
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, apart: Task) -> Artifact:
    folder = tmp_path_factory.mktemp("choosing")
    config = MultiTaskConfig(teacher=str(save_encoder("bert", folder / "encoder")), **QUICK)
    return STAGES["finetune"].make([], apart, config, folder / "teacher")


@pytest.fixture(scope="module")
def onnx(teacher: Artifact, apart: Task) -> Artifact:
    return export(teacher, apart, ExportConfig(), teacher.path.parent / "onnx")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, apart: Task) -> list[str]:
    """What is scored from now on: the name of each split, in turn."""
    names: list[str] = []
    splits = {"dev": apart.dev, "selection": apart.selection, "train": apart.train}

    def watched(asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(classifier: Any, split: Split, *given: Any, **more: Any) -> Any:
            names.append(next(name for name, known in splits.items() if known == split))
            return asked(classifier, split, *given, **more)

        return ask

    for module, *functions in WATCHED:
        for name in functions:
            monkeypatch.setattr(module, name, watched(getattr(module, name)))
    return names


def score_of(artifact: Artifact, split: Split) -> float:
    return evaluate(open_classifier(artifact), split, "accuracy")[0].value


@pytest.mark.parametrize("stage", ["finetune", "distill"])
def test_epochs_are_scored_apart_and_the_end_is_held_out(
    stage: str, teacher: Artifact, apart: Task, tmp_path: Path, read: list[str]
) -> None:
    sources: dict[str, dict[str, Any]] = {
        "finetune": {"teacher": str(teacher.path)},
        "distill": {"layers": 2},
    }
    config = STAGES[stage].config.parse({**QUICK, **sources[stage]})
    given = [teacher] if stage == "distill" else []
    made = STAGES[stage].make(given, apart, config, tmp_path / "out")
    assert read == ["selection", "selection", "dev"]
    findings = made.card.findings
    assert findings.scores.chosen_on == "selection"
    assert findings.scores.score == pytest.approx(score_of(made, apart.dev))
    last = findings.training.epochs[-1]["accuracy"]
    assert last == pytest.approx(score_of(made, apart.selection))


def test_several_tasks_are_scored_apart_too(apart: Task, tmp_path: Path, read: list[str]) -> None:
    other = replace(apart, name="cola")
    config = MultiTaskConfig(more_tasks=("cola",), **{**QUICK, "epochs": 1})
    models = [tiny_classifier("bert") for _ in range(2)]
    made = finetune_tasks(models, tiny_tokenizer(), (apart, other), config, tmp_path / "out")
    assert read == ["selection", "selection", "dev", "dev"]
    for path in (made.path, tmp_path / "out-cola"):
        scores = Artifact.load(path).card.findings.scores
        assert scores.score == pytest.approx(score_of(Artifact.load(path), apart.dev))


PRUNINGS: dict[str, dict[str, Any]] = {
    "cut": {"heads": 0.5, "recover": False, "batch_size": 16},
    "rescaled": {"heads": 0.5, "retraining_free": True, "batch_size": 16},
    "in rounds": {"heads": 0.5, "rounds": 2, **QUICK},
    "vocabulary": {"vocab": "task", "recover": False},
}


@pytest.mark.parametrize("name", PRUNINGS)
def test_a_pruning_is_judged_apart(
    name: str, teacher: Artifact, apart: Task, tmp_path: Path, read: list[str]
) -> None:
    config = STAGES["prune"].config.parse({**PRUNINGS[name], "max_drop": 100.0})
    made = STAGES["prune"].make([teacher], apart, config, tmp_path / "out")
    # where it predicts one label, the advice reads the selection once more
    assert read.count("dev") == 2 and set(read[: read.index("dev")]) == {"selection"}
    scores, pruning = made.card.findings.scores, made.card.findings.pruning
    assert scores.chosen_on == "selection"
    assert scores.score == pytest.approx(score_of(made, apart.dev))
    assert scores.score_before == pytest.approx(score_of(teacher, apart.dev))
    assert pruning.rounds[-1].score == pytest.approx(score_of(made, apart.selection))
    assert pruning.unpruned == pytest.approx(score_of(teacher, apart.selection))


@pytest.mark.one_path
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantization_is_judged_apart(
    scheme: str, teacher: Artifact, onnx: Artifact, apart: Task, tmp_path: Path, read: list[str]
) -> None:
    source = {"torch": teacher, "onnx": onnx}[SCHEMES[scheme].source]
    settings = {"scheme": scheme, "target": "vnni", **SETTINGS[scheme], "max_drop": 100.0}
    config = STAGES["quantize"].config.parse(settings)
    made = STAGES["quantize"].make([source], apart, config, tmp_path / "out")
    assert read[-2:] == ["dev", "dev"] and set(read[:-2]) == {"selection"}
    scores = made.card.findings.scores
    assert scores.chosen_on == "selection" and scores.choice.n == APART
    assert scores.score == pytest.approx(score_of(made, apart.dev))
    assert scores.score_before == pytest.approx(score_of(source, apart.dev))
    assert scores.choice.after == pytest.approx(score_of(made, apart.selection))


DROPS: dict[str, Callable[[Artifact, Artifact], tuple[str, Artifact, dict[str, Any]]]] = {
    "prune": lambda teacher, onnx: ("prune", teacher, PRUNINGS["cut"]),
    "quantize": lambda teacher, onnx: ("quantize", onnx, {"target": "vnni"}),
}


@pytest.mark.parametrize("name", DROPS)
def test_where_nothing_is_set_apart_the_result_says_so(
    name: str, teacher: Artifact, onnx: Artifact, task: Task, tmp_path: Path
) -> None:
    stage, source, settings = DROPS[name](teacher, onnx)
    config = STAGES[stage].config.parse({**settings, "max_drop": 100.0})
    scores = STAGES[stage].make([source], task, config, tmp_path / "out").card.findings.scores
    assert scores.chosen_on == "dev"
    assert scores.score == pytest.approx(score_of(Artifact.load(tmp_path / "out"), task.dev))


def test_every_stage_of_a_chain_sets_the_same_texts_apart(tmp_path: Path) -> None:
    """Only the first is told of the files; whatever its seed and limits, none learns from them."""
    files = write_toy_files(tmp_path, toy_task(train_size=800))
    first = load_task(TaskConfig.parse(files.task))
    encoder = save_encoder("bert", tmp_path / "encoder")
    chain = {
        "finetune": {**QUICK, "teacher": str(encoder), "epochs": 1},
        "distill": {**QUICK, "layers": 2, "epochs": 1, "seed": 7},
        "export": {"seed": 3},
        "quantize": {"target": "vnni", "max_drop": 100.0, "seed": 5},
    }
    made: list[Artifact] = []
    for stage, settings in chain.items():
        task = recorded_task(made[-1], {"max_train": 90}) if made else first
        assert task.selection == first.selection and len(task.selection) >= 50
        assert not set(task.train.examples) & set(first.selection.examples)
        config = STAGES[stage].config.parse(settings)
        made.append(STAGES[stage].make(made[-1:], task, config, tmp_path / stage))
    assert {artifact.card.task.source["select"] for artifact in made} == {0.1}
    timings = CompareConfig(
        processes=1, rounds=2, single_texts=2, batch_size=2, warmup_rounds=0, threads=1
    )
    comparison = compare(made[::3], recorded_task(made[0], {}), timings)
    assert comparison.circumstances.chosen_on == ("selection",)
    assert comparison.circumstances.n == len(first.dev)


def test_unlabelled_texts_are_not_those_to_choose_by(apart: Task, tmp_path: Path) -> None:
    (seen,), (other,) = apart.selection.examples[0], ("another text",)
    (tmp_path / "texts.txt").write_text(f"{seen}\n{other}\n")
    given, left_out = with_unlabelled(apart, DistillConfig(unlabelled=tmp_path / "texts.txt"))
    assert left_out == {"selection": 1}
    assert given.train.examples == (*apart.train.examples, (other,))


def test_unlabelled_texts_come_with_a_task(apart: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = (apart.selection.examples[0], ("another text",), ("a third one",))
    monkeypatch.setitem(TASKS, apart.name, ToyNamedTask.of(apart, brought))
    named = replace(apart, source={"task": apart.name})
    one, _ = with_unlabelled(named, DistillConfig(unlabelled_texts=1))
    assert one.train.examples == (*apart.train.examples, ("another text",))
    assert one.train.label_ids[-1] == NO_LABEL
    more, _ = with_unlabelled(named, DistillConfig(unlabelled_texts=9))
    assert len(more.train) == len(apart.train) + 2


def test_a_file_comes_with_none(apart: Task, caplog: pytest.LogCaptureFixture) -> None:
    own = replace(apart, name="docs", source={"task": "docs", "train": "mine/docs.csv"})
    assert with_unlabelled(own, DistillConfig(unlabelled_texts=5))[0].train == own.train
    assert "task docs comes with no unlabelled texts" in caplog.text


def test_texts_to_calibrate_on_are_not_those_to_choose_by(
    onnx: Artifact, apart: Task, tmp_path: Path
) -> None:
    drawn = context_of(onnx, apart, tmp_path).texts(1000, "calibrate").examples
    assert len(drawn) == LEARNED and not set(drawn) & set(apart.selection.examples)
