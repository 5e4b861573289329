"""The methods benchmark: equal budgets, work that is reused, and a table that says what was run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.common.points import gain
from benchmarks.documents import block
from benchmarks.methods.measuring import (
    Budget,
    MethodsBenchmark,
    StudentResult,
    config_of,
    run,
    with_earlier,
)
from benchmarks.methods.table import method_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ConfigError
from bertender.measure.constant import ConstantRow
from bertender.metrics.scores import Score
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.distillation.phases import phase_settings
from distill.methods import METHODS
from tests.front import write_toy_files
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import toy_task

BUDGET = Budget(epochs=4, learning_rate=1e-3, batch_size=8, layers=3, max_train=12)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if not METHODS[name].student.wants_own_start]
)
def test_every_method_gets_the_same_epochs_and_pace(name: str) -> None:
    config = config_of(name, 7, BUDGET)
    phases = METHODS[name].at(BUDGET.layers).phases
    settings = [phase_settings(phase, config) for phase in phases]
    assert sum(setting.epochs for setting in settings) == BUDGET.epochs
    assert {setting.learning_rate for setting in settings} == {BUDGET.learning_rate}
    slow = config_of(name, 7, BUDGET.model_copy(update={"learning_rate": 1e-7}))
    own = METHODS[name].settings.get("learning_rate", slow.learning_rate)
    assert slow.learning_rate == max(own, 1e-7), "a method that learns faster keeps its own rates"
    assert config.seed == 7 and config.batch_size == 8


def test_too_few_epochs_for_the_phases_are_refused() -> None:
    with pytest.raises(ConfigError, match="epochs=3: method 'internal' has 4 phases"):
        config_of("internal", 0, BUDGET.model_copy(update={"epochs": 3}))


def student(method: str, seed: int, predictions: tuple[int, ...]) -> StudentResult:
    right = sum(predictions) / len(predictions)
    score = Score(metric="accuracy", value=right, low=0.0, high=1.0, n=len(predictions))
    return StudentResult(
        method=method,
        seed=seed,
        parameters=2_000_000,
        layers=None if method == "theseus" else 3,
        learning_rate=5e-3 if method == "pkd" else 1e-3,
        score=score,
        predictions=predictions,
    )


def benchmark_of(*students: StudentResult, task: str = "toy") -> MethodsBenchmark:
    return MethodsBenchmark(
        task=task,
        metric="accuracy",
        labels=(1, 1, 1, 1),
        teacher=Score(metric="accuracy", value=1.0, low=0.9, high=1.0, n=4),
        budget=BUDGET,
        environment=environment(),
        students=students,
    )


def test_the_table_orders_methods_and_says_under_what(tmp_path: Path) -> None:
    hard = student("hard", 0, (0, 1, 0, 1))
    first = benchmark_of(hard, student("pkd", 0, (1, 1, 1, 1)), student("theseus", 0, (0, 1, 0, 0)))
    files = {"one.json": first, "two.json": benchmark_of(hard, task="other")}
    for name, benchmark in files.items():
        (tmp_path / name).write_text(benchmark.model_dump_json())
    text = method_block({name: tmp_path / name for name in files})
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["`pkd`", "`hard`", "`theseus`"]
    (constant,) = (line for line in text.splitlines() if line.startswith("| always the most"))
    assert constant.startswith("| always the most frequent label | - | 1.000 [0.510, 1.000] |")
    assert "| `hard` | 2.0 | 0.500 | 0.500 |" in text
    assert "| `theseus` | 2.0 | 0.250, -25.0 [" in text
    assert "] | - |" in text, "a method that was not run on a task"
    assert "| Method | Params M | toy: accuracy, points over hard | other: accuracy" in text
    assert "12 training texts, 4 epochs" in text and "Raw: `one.json`, `two.json`" in text
    assert "rate 0.001 (`pkd`: 0.005), batches of 8; 3 layers (`theseus`: its own)." in text


def test_methods_are_chosen_by_other_texts_than_score(tmp_path: Path) -> None:
    """`theseus` is best on the texts to choose by, and not on the held-out ones."""
    right = {"hard": 0.5, "pkd": 0.6, "theseus": 0.9}
    held_out = {"hard": (0, 1, 0, 1), "pkd": (1, 1, 1, 1), "theseus": (0, 1, 0, 0)}
    scores = {
        name: Score(metric="accuracy", value=v, low=0, high=1, n=70) for name, v in right.items()
    }
    students = [
        student(name, 0, held_out[name]).model_copy(update={"choice": scores[name]})
        for name in right
    ]
    benchmark = benchmark_of(*students).model_copy(update={"chosen_on": "selection"})
    (tmp_path / "one.json").write_text(benchmark.model_dump_json())
    text = method_block({"one.json": tmp_path / "one.json"})
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["`theseus`", "`pkd`", "`hard`"]
    assert "order of their scores on 70 texts of the training file of toy" in text
    assert "over texts and seeds" in text
    older = benchmark_of(*[student(name, 0, held_out[name]) for name in right])
    (tmp_path / "one.json").write_text(older.model_dump_json())
    assert "which flatters the best" in method_block({"one.json": tmp_path / "one.json"})


def test_seeds_that_disagree_widen_a_gain(tmp_path: Path) -> None:
    """Each seed's texts are the same eight kinds, so that only the seeds' spread differs."""
    labels, hard = (1,) * 400, (0, 1) * 200
    alike = [(1, 1, 0, 1) * 100] * 3
    apart = [(0, 1) * 200, (1, 1, 0, 1) * 100, (1,) * 400]
    cells = [
        gain("accuracy", labels, [Seen(hard)] * 3, [Seen(each) for each in seeds])
        for seeds in (alike, apart)
    ]
    widths = [high - low for low, high in (interval(cell) for cell in cells)]
    assert [cell.split()[0] for cell in cells] == ["+25.0", "+25.0"]
    assert widths[1] > 3 * widths[0]


@dataclass(frozen=True)
class Seen:
    predictions: tuple[int, ...]


def interval(cell: str) -> tuple[float, float]:
    low, high = cell.partition("[")[2].rstrip("]").split(", ")
    return float(low), float(high)


def test_the_constant_row_is_the_recorded_one_where_there_is_one(tmp_path: Path) -> None:
    """What most training texts have need not be what most held-out texts have."""
    score = Score(metric="accuracy", value=0.25, low=0.125, high=0.5, n=4)
    recorded = benchmark_of(student("hard", 0, (0, 1, 0, 1))).model_copy(
        update={"constant": ConstantRow(label="no", score=score)}
    )
    (tmp_path / "one.json").write_text(recorded.model_dump_json())
    text = method_block({"one.json": tmp_path / "one.json"})
    assert "| always the most frequent label | - | 0.250 [0.125, 0.500] |" in text


def test_answering_the_same_to_every_pair_is_in_the_published_table() -> None:
    text = (block.ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| always the most frequent"))
    assert row.split("|")[4].split()[0] == "0.812", "of MRPC, in F1"


def test_what_was_measured_alike_can_be_added_to() -> None:
    old = student("pkd", 1, (1, 1, 1, 1)).model_copy(update={"layers": None, "learning_rate": None})
    earlier = benchmark_of(student("hard", 0, (0, 0, 0, 0)), old)
    now = benchmark_of(student("hard", 0, (0, 1, 0, 1)), student("bilstm", 0, (1, 1, 0, 1)))
    joined = with_earlier(now, earlier).students
    assert [(each.method, each.seed) for each in joined] == [("pkd", 1), ("hard", 0), ("bilstm", 0)]
    assert joined[0].layers == BUDGET.layers and joined[0].learning_rate == BUDGET.learning_rate
    assert joined[1] == now.students[0], "what was measured now takes the place of what was"
    other = earlier.model_copy(update={"budget": BUDGET.model_copy(update={"epochs": 9})})
    with pytest.raises(ConfigError, match="--add-to: its budget is not this one's"):
        with_earlier(now, other)


@pytest.mark.slow
def test_students_that_are_there_are_not_trained_again(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_toy_files(tmp_path, toy_task(train_size=600))
    own = load_task(TaskConfig.parse(files.task))
    teacher = save_artifact(tiny_classifier("bert"), own, tmp_path / "teacher")
    settings = {"seeds": 1, "max_train": 16, "epochs": 2, "layers": 2, "work": tmp_path / "work"}
    run(teacher.path, methods="hard,pkd", **settings)
    made = [Artifact.load(tmp_path / "work" / name).digest for name in ("hard-0", "pkd-0")]
    monkeypatch.setattr(
        "benchmarks.methods.measuring.distill", lambda *given: pytest.fail("trained again")
    )
    run(teacher.path, methods="hard,pkd", out=tmp_path / "result.json", **settings)
    saved = MethodsBenchmark.model_validate_json((tmp_path / "result.json").read_text())
    assert [result.method for result in saved.students] == ["hard", "pkd"]
    assert saved.chosen_on == "selection"
    assert {result.choices for result in saved.students} == {len(own.selection)}
    assert {result.score.n for result in saved.students} == {len(own.dev)}
    assert saved.constant and saved.constant.label in own.labels
    assert made == [Artifact.load(tmp_path / "work" / n).digest for n in ("hard-0", "pkd-0")]
