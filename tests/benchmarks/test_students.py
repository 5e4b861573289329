"""The benchmark of students: seeds of one name are a row, and choose nothing of their score."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.students import measuring as students
from benchmarks.students.measuring import (
    StudentsBenchmark,
    groups_of,
    made_by,
    run,
    scored_students,
)
from benchmarks.students.start_table import start_layers_block
from benchmarks.students.table import change_of, read_students, retained, students_block
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.metrics.scores import score
from bertender.tasks.task import Task
from distill.distillation.distiller import DistillConfig, distill
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig
from tests.toy_models import save_encoder

SMALL = {"method": "pd", "epochs": 1, "batch_size": 16, "layers": 1, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def family(
    trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Artifact]:
    """A teacher and what comes from it: two seeds of a student, and another one with its graph."""
    folder = tmp_path_factory.mktemp("family")
    start = str(save_encoder("bert", folder / "encoder"))
    settings = {
        "small-0": {"seed": 0},
        "small-1": {"seed": 1},
        "longer": {"epochs": 2},
    }
    made = {
        name: distill(
            trained, task, DistillConfig(**{**SMALL, "student": start, **own}), folder / name
        )
        for name, own in settings.items()
    }
    graphs = {"graph": made["longer"], "graph of small": made["small-0"]}
    return {
        **made,
        **{
            name: export(source, task, ExportConfig(), folder / name)
            for name, source in graphs.items()
        },
    }


@pytest.fixture
def apart(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    with_choices = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(students, "recorded_task", lambda artifact, changes: with_choices)


@pytest.fixture
def result(
    trained: Artifact, family: dict[str, Artifact], apart: None, tmp_path: Path
) -> StudentsBenchmark:
    out = tmp_path / "result.json"
    run(trained.path, [each.path for each in family.values()], out)
    return read_students(out)


def test_cached_scores_are_of_unchanged_artifacts_and_texts(
    family: dict[str, Artifact],
    trained: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_choices = replace(task, selection=task.train.first(24))
    fewer = replace(task, selection=task.train.first(20))
    rest = ([family["small-0"]], tmp_path / "scores")
    first, other = (scored_students(trained, each, *rest) for each in (with_choices, fewer))
    assert (first.teacher.choice.n, other.teacher.choice.n) == (24, 20)
    monkeypatch.setattr(students, "evaluate", lambda *_: pytest.fail("scored again"))
    assert scored_students(trained, fewer, *rest) == other


def test_every_model_is_scored_on_both_kinds_of_texts(
    result: StudentsBenchmark, family: dict[str, Artifact], task: Task
) -> None:
    assert [each.name for each in result.students] == [*family]
    for each in (result.teacher, *result.students):
        assert (each.choice.n, each.score.n) == (24, len(task.dev))
        assert len(each.predictions) == len(result.labels)
        assert each.size.model_size_bytes > 0
    assert [each.stage for each in result.students] == [*["distill"] * 3, "export", "export"]


def test_seeds_of_one_name_are_a_group(result: StudentsBenchmark) -> None:
    first, second, *rest = result.students
    groups = groups_of(result.students)
    assert groups == {"small": [first, second], **{each.name: [each] for each in rest}}
    wrong = tuple(1 - label for label in result.labels)
    failed = first.model_copy(
        update={"predictions": wrong, "score": score(result.metric, result.labels, wrong)}
    )
    right = first.model_copy(
        update={
            "predictions": result.labels,
            "score": score(result.metric, result.labels, result.labels),
        }
    )
    assert retained([failed], result) == 0
    assert retained([failed, right], result) == pytest.approx(0.5 / result.teacher.score.value)
    change = change_of([failed, right], result)
    assert change.low == pytest.approx(change_of([failed], result).value, abs=15), "a seed's part"
    nothing = result.teacher.model_copy(update={"score": failed.score})
    assert retained([right], result.model_copy(update={"teacher": nothing})) is None


def test_the_table_says_what_rows_differ_by(result: StudentsBenchmark, tmp_path: Path) -> None:
    lines = students_block("a.json", tmp_path / "result.json").split("\n")
    rows = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert "| distill, `epochs=1` |" in rows["small"]
    assert "| distill, `epochs=2` |" in rows["longer"]
    assert "| export |" in rows["graph"]
    scores = ", ".join(f"{each.score.value:.3f}" for each in result.students[:2])
    assert f"| {scores} |" in rows["small"] and result.teacher.name in rows


def test_the_table_of_starts_has_what_the_first_layers_gain(
    result: StudentsBenchmark, tmp_path: Path
) -> None:
    """The same, whether the students stand alone or in a table of systems."""
    wrong = tuple(1 - label for label in result.labels)
    some = [result.students[0].model_copy(update={"predictions": wrong})]
    some += [result.students[1].model_copy(update={"predictions": result.labels})]
    for place, names in enumerate((("a-even-0", "a-first-0"), ("hard-6-0", "pkd-6-labels-0"))):
        students = [
            each.model_copy(update={"name": name}) for each, name in zip(some, names, strict=True)
        ]
        alone = result.model_copy(update={"students": tuple(students)}).model_dump(mode="json")
        raw = {"budget_s": 60, "scores": alone} if place else alone
        (tmp_path / "raw.json").write_text(json.dumps(raw), encoding="utf-8")
        row = start_layers_block({"raw.json": tmp_path / "raw.json"}).splitlines()[2]
        assert row.startswith(
            f"| {result.task}, {result.metric} | {result.teacher.name} | 1 | `pd` |"
        )
        assert ("| 60 s | 1 | `first` |" if place else "| 1 epochs | 1 | `first` |") in row
        assert "| +100.0 [+100.0, +100.0] |" in row


def test_a_file_without_a_pair_of_starts_is_named(
    result: StudentsBenchmark, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no two groups of small, longer, graph"):
        start_layers_block({"result.json": tmp_path / "result.json"})


def test_no_folder_of_this_machine_is_recorded(result: StudentsBenchmark) -> None:
    assert result.students[0].settings["student"] == "encoder"
    assert "/" not in str([each.settings for each in (result.teacher, *result.students)])
    some = ["/a/one", {"epochs": 1}, "~/two,org/three"]
    assert students.without_folders(some) == ["one", {"epochs": 1}, "two,org/three"]


def copied(artifact: Artifact, place: Path) -> Path:
    shutil.copytree(artifact.path, place)
    return place


REFUSED: dict[str, tuple[Callable[[dict[str, Artifact], Path], list[Path]], str]] = {
    "two of one name": (
        lambda family, folder: [family["longer"].path, copied(family["longer"], folder / "longer")],
        "two artifacts are called 'longer'",
    ),
    "of no known source": (
        lambda family, folder: [copied(family["graph"], folder / "far" / "away")],
        "does not come from",
    ),
    "graphs of seeds that are none": (
        lambda family, folder: [
            copied(family["graph"], family["graph"].path.with_name("graph-1")),
            copied(family["graph of small"], family["graph"].path.with_name("graph-2")),
        ],
        "differ by a number, which is for seeds",
    ),
    "seeds that are none": (
        lambda family, folder: [
            family["small-0"].path,
            copied(family["longer"], family["longer"].path.with_name("small-7")),
        ],
        "differ by a number, which is for seeds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("apart")
def test_what_is_no_row_of_the_table_is_refused(
    name: str, trained: Artifact, family: dict[str, Artifact], tmp_path: Path
) -> None:
    choose, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        run(trained.path, choose(family, tmp_path), tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_texts_to_choose_by_are_needed(
    trained: Artifact,
    family: dict[str, Artifact],
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(students, "recorded_task", lambda artifact, changes: task)
    with pytest.raises(ConfigError, match="has no texts to choose by"):
        run(trained.path, [family["longer"].path], tmp_path / "out.json")


@pytest.mark.parametrize(
    ("settings", "read", "unread"),
    [
        ({"scheme": "qat"}, {"epochs"}, {"weight_bits", "sensitivity", "block_size", "seed"}),
        (
            {"scheme": "q-bert"},
            {"weight_bits", "weight_groups"},
            {"sensitivity", "sensitive_bits", "block_size"},
        ),
        ({"scheme": "q-bert", "table_bits": 4}, {"table_bits", "block_size"}, {"sensitivity"}),
        (
            {"scheme": "q-bert", "sensitive_bits": 4, "sensitivity": "hessian-trace"},
            {"sensitivity", "sensitive_bits"},
            {"base"},
        ),
        ({"scheme": "four-bit"}, {"sensitivity", "block_size"}, {"weight_bits", "epochs"}),
    ],
)
def test_settings_that_a_scheme_does_not_read_are_left_out(
    settings: dict[str, object], read: set[str], unread: set[str]
) -> None:
    stage, shown = made_by("quantize", QuantizeConfig.parse(settings).model_dump())
    assert stage == "quantize" and read | {"scheme"} <= shown.keys()
    assert not unread & shown.keys()
