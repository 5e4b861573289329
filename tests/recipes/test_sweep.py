"""Sweeps: validation texts choose, held-out texts are read once, and failures lose nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ConfigError, TrainingError, UnknownNameError
from bertender.metrics import score
from bertender.metrics.metric import Score
from bertender.recipes import sweep as sweeps
from bertender.recipes.recipe import Recipe, parse_recipe
from bertender.recipes.stages import Baseline
from bertender.recipes.sweep import Sweep, read_axis, run_sweep, scored_steps, variants_of
from bertender.tasks.task import Task
from tests.front import ToyFiles, fail, invoke, last_line, succeed, write_toy_files
from tests.toy_models import save_encoder
from tests.toys import toy_task

WORDS = {"name": "words", "stage": "baseline"}
PARITY = {"name": "parity", "stage": "verify", "from": ["words", "words"]}
DEV = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ToyFiles:
    """Every fourth held-out label is wrong: a score of 1 is none of held-out texts."""
    task = toy_task(400, DEV)
    wrong = [label if row % 4 else 1 - label for row, label in enumerate(task.dev.label_ids)]
    dev = replace(task.dev, label_ids=tuple(wrong))
    return write_toy_files(tmp_path_factory.mktemp("files"), replace(task, dev=dev))


def recipe_of(files: ToyFiles, steps: Sequence[Any], **task: Any) -> Recipe:
    values = {"summary": "s", "task": {**files.task, "select": 0.2, **task}, "steps": [*steps]}
    return parse_recipe("toy", yaml.safe_dump(values))


@pytest.fixture
def recipe(files: ToyFiles) -> Recipe:
    return recipe_of(files, [WORDS, PARITY])


def held_out_score(artifact: str | Path | None) -> float:
    scores = Artifact.load(str(artifact)).card.findings.scores
    assert scores is not None
    return scores.score


def test_texts_set_apart_choose_and_held_out_texts_are_read_once(
    recipe: Recipe, tmp_path: Path
) -> None:
    sweep = run_sweep(recipe, tmp_path, ["longest_ngram=1,2", "words.seed=0,1"])
    assert len(sweep.variants) == 4 and sweep.step == "words" and sweep.texts > 50
    values = [each.score.value for each in sweep.variants if each.score]
    assert values == sorted(values, reverse=True) and len(values) == 4
    for each in sweep.variants:
        assert each.score and each.score.n == sweep.texts
        assert held_out_score(each.path) == each.score.value, "which saw no held-out text"
    best = sweep.variants[0]
    assert (sweep.best, best.change) == (best.name, None)
    assert best.score and best.score.value > 0.9
    assert sweep.held_out and (sweep.held_out.n, sweep.held_out.value < 0.8) == (DEV, True)
    assert held_out_score(sweep.path) == sweep.held_out.value
    assert Path(str(sweep.path)) == tmp_path / "best" / "words"
    assert not list(tmp_path.rglob("parity.json")), "which would read held-out texts"
    saved = Sweep.model_validate_json((tmp_path / "sweep.json").read_text())
    assert saved == sweep


def test_what_is_built_is_built_once(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    work = Baseline.work

    def counted(self: Baseline, sources: Any, task: Any, config: Any, out: Path) -> Artifact:
        built.append(config.longest_ngram)
        return work(self, sources, task, config, out)

    monkeypatch.setattr(Baseline, "work", counted)
    first = run_sweep(recipe, tmp_path, ["longest_ngram=1,2"])
    assert sorted(built)[0] == 1 and len(built) == 3, "two variants, and the best again"
    again = run_sweep(recipe, tmp_path, ["longest_ngram=1,2"])
    assert (len(built), again.best) == (3, first.best)
    run_sweep(recipe, tmp_path, ["longest_ngram=1,2,3"])
    assert built.count(3) >= 1 and built.count(1) == 1 + (first.best == "words.longest_ngram=1")


def test_the_best_by_texts_set_apart_is_first(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {0: 30, 1: 50, 2: 50}
    read: list[bool] = []

    def scored(artifact: Artifact, task: Task, *, held_out: bool = False) -> tuple[Score, Any]:
        read.append(held_out)
        split = task.dev if held_out else task.selection
        truth = np.array(split.label_ids)
        count = right[artifact.card.seed]
        found = np.where(np.arange(len(truth)) < count, truth, 1 - truth)
        return score("accuracy", truth, found, label_count=2), found

    monkeypatch.setattr(sweeps, "_score_of", scored)
    sweep = run_sweep(recipe, tmp_path, ["seed=0,1,2"])
    names = [each.settings["words.seed"] for each in sweep.variants]
    assert names == [1, 2, 0], "of equal ones, the first of the grid"
    assert sweep.best == "words.seed=1" and read == [False] * 3 + [True]
    lost = sweep.variants[2].change
    assert lost and lost.value == pytest.approx(-100 * 20 / sweep.texts) and lost.high < 0


def test_a_variant_that_fails_leaves_the_others(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Baseline.work

    def failing(self: Baseline, sources: Any, task: Any, config: Any, out: Path) -> Artifact:
        if config.longest_ngram == 2:
            raise TrainingError("it broke")
        return work(self, sources, task, config, out)

    monkeypatch.setattr(Baseline, "work", failing)
    sweep = run_sweep(recipe, tmp_path, ["longest_ngram=0,2,1"])
    good, refused, broken = sweep.variants
    assert good.name == sweep.best == "words.longest_ngram=1" and good.failed is None
    assert refused.failed and "longest_ngram=0" in refused.failed
    assert broken.failed == "step 'words' (baseline): it broke"
    assert (refused.score, broken.path) == (None, None)
    none = run_sweep(recipe, tmp_path / "none", ["longest_ngram=2,0"])
    assert (none.best, none.held_out, len(none.failures)) == (None, None, 2)
    with pytest.raises(BertenderError, match="longest_ngram"):
        run_sweep(recipe, tmp_path / "refused", ["longest_ngram=0,-1"])


def test_without_texts_set_apart_it_is_refused(files: ToyFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set task.select=0.2 \(--select"):
        run_sweep(recipe_of(files, [WORDS], select=0.0), tmp_path, ["longest_ngram=1,2"])
    assert not list(tmp_path.iterdir())


def test_steps_that_no_setting_changes_are_shared(files: ToyFiles, tmp_path: Path) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    quick = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 16}
    steps = [
        {"name": "teacher", "stage": "finetune", "with": {"teacher": str(encoder), **quick}},
        {"name": "student", "stage": "distill", "from": ["teacher"], "with": quick},
    ]
    few = recipe_of(files, steps, max_train=48)
    sweep = run_sweep(few, tmp_path / "out", ["layers=1,2"])
    assert not sweep.failures
    shared = (tmp_path / "out" / "shared").glob("[!.]*")
    assert [path.name for path in shared] == ["teacher"]
    best, variant = (Artifact.load(str(path)) for path in (sweep.path, sweep.variants[0].path))
    assert best.digest == variant.digest, "the same training, scored on other texts"
    seen = [each.card.findings.lengths for each in (best, variant)]
    assert [own and own.held_out.texts for own in seen] == [DEV, sweep.texts]


@pytest.mark.parametrize(
    ("grid", "values"),
    [
        ("words.longest_ngram=1,2", (1, 2)),
        ("longest_ngram=1, 2", (1, 2)),
        ("longest_ngram=[[1, 2], 3]", ((1, 2), 3)),
        ("longest_ngram=one", ("one",)),
    ],
)
def test_a_grid_is_read(grid: str, values: tuple[Any, ...], recipe: Recipe) -> None:
    steps = scored_steps(recipe, None)
    assert read_axis(grid, recipe, steps) == ("words", "longest_ngram", values)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("longest_ngram", "write it as STEP.KEY=VALUE,VALUE"),
        ("longest_ngram=", "write it as"),
        (".longest_ngram=1", "write it as"),
        ("longest_ngram=1,1", "a value is there twice"),
        ("longest_ngram=1e-4,0.0001", "a value is there twice"),
        ("longest_ngam=1,2", "Did you mean 'longest_ngram'"),
        ("parity.texts=1,2", "'parity' is no step that makes the model of 'words'"),
        ("task.max_train=50,100", "'task' is no step"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(grid: str, said: str, recipe: Recipe) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        read_axis(grid, recipe, scored_steps(recipe, None))


def test_a_setting_of_several_steps_needs_its_step(files: ToyFiles) -> None:
    teacher = {"name": "teacher", "stage": "finetune"}
    student = {"name": "student", "stage": "distill", "from": ["teacher"]}
    recipe = recipe_of(files, [teacher, student, {**WORDS, "name": "other"}])
    steps = scored_steps(recipe, "student")
    assert [each.name for each in steps] == ["teacher", "student"]
    with pytest.raises(ConfigError, match=r"Write teacher.epochs or student.epochs"):
        read_axis("epochs=1,2", recipe, steps)
    with pytest.raises(ConfigError, match=r"Those are teacher, student, other"):
        scored_steps(recipe, "studnt")


def test_combinations_are_drawn_alike_each_time(recipe: Recipe) -> None:
    steps = scored_steps(recipe, None)
    axes = [read_axis(each, recipe, steps) for each in ("longest_ngram=1,2,3", "seed=0,1,2")]
    whole = [each.name for each in variants_of(recipe, steps, axes, None)]
    drawn = [each.name for each in variants_of(recipe, steps, axes, 4)]
    assert len(whole) == 9 and len(drawn) == 4
    assert drawn == [name for name in whole if name in drawn], "in the order of the grid"
    assert drawn == [each.name for each in variants_of(recipe, steps, axes, 4)]
    with pytest.raises(ConfigError, match="give each setting once"):
        variants_of(recipe, steps, [axes[0], axes[0]], None)


def test_a_recipe_of_several_tasks_is_refused(tmp_path: Path) -> None:
    text = yaml.safe_dump({"summary": "s", "tasks": ["cola", "rte"], "steps": [WORDS]})
    with pytest.raises(ConfigError, match="is of several tasks"):
        run_sweep(parse_recipe("two", text), tmp_path, ["longest_ngram=1,2"])


def test_the_command_shows_one_table_and_fails_where_a_variant_failed(
    files: ToyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"summary": "s", "task": {**files.task, "select": 0.2}, "steps": [WORDS]}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    words = ("sweep", "mine.yaml", "--grid", "longest_ngram=1,2")
    shown = succeed(*words).stdout
    assert "words.longest_ngram" in shown and f"n = {DEV}" in shown and "validation texts" in shown
    assert (tmp_path / "runs" / "mine-sweep" / "sweep.json").is_file()
    said = last_line(succeed(*words, "--json"))
    assert said["held_out"]["n"] == DEV and len(said["variants"]) == 2
    bad = ("sweep", "mine.yaml", "--grid", "longest_ngram=1,0")
    assert "1 of 2 variants failed, first words.longest_ngram=0" in fail(*bad)
    result = invoke(*bad, "--json")
    assert result.exit_code == 2 and json.loads(result.stdout)["best"] == "words.longest_ngram=1"
    assert "select=0.2" in fail(*words, "--set", "task.select=0")
