"""A problem type, a method, a scheme and a stage are added as rows, and run from training to the
real endpoint.

No file of the product changes: what the tables list is all that the command line, the recipes and
the gates know. The problem type comes as a package's would, by entry points, which the server's
process finds as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.core.config import Place
from bertender.core.errors import ConfigError
from bertender.metrics.scores import METRICS
from bertender.models.opening import open_classifier
from bertender.problems import PROBLEMS
from bertender.recipes.recipe import parse_recipe, run_recipe
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.training.heads import HEADS
from distill.methods import METHODS
from quantize.schemes import SCHEMES
from serve.asking_commands import lines_of
from serve.check import show_endpoint
from serve.client.served_model import Classification
from tests.extension import WITHOUT_HEAD
from tests.front import last_line, succeed, write_toy_files
from tests.toy_models import save_encoder
from tests.toys import FRUIT, TOOLS

pytestmark = pytest.mark.slow

TRAINING = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 16}
LEARNED = {"method": "warm", "layers": 2, **TRAINING}
STEPS = (
    {"name": "student", "stage": "distill", "with": LEARNED},
    {"name": "sharp", "stage": "sharpen", "from": "student", "with": {"by": 3.0}},
    {"name": "onnx", "stage": "export", "from": "sharp"},
    {"name": "int8", "stage": "quantize", "from": "onnx", "with": {"scheme": "without-head"}},
    {"name": "parity", "stage": "verify", "from": ["sharp", "int8"]},
    {"name": "endpoint", "stage": "endpoint", "from": "int8", "with": {"texts": 4}},
)
FAST = {"processes": 1, "rounds": 2, "single_texts": 4, "batch_size": 4, "noisy": True}
PRUNE = {"name": "cut", "stage": "prune", "with": {"heads": 0.5, **TRAINING}}
TABLE = {"name": "table", "stage": "compare", "from": ["teacher", "int8"], "with": FAST}
ROWS = {
    "bertender.problems": ("multi_label_classification", "tests.multi_label:MULTI_LABEL"),
    "bertender.heads": ("multi_label_classification", "tests.multi_label_head:HEAD"),
    "bertender.metrics": ("exact_match", "tests.multi_label:EXACT_MATCH"),
}
"""Group of entry points -> name and place of a row."""


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = Place("tests.extension:WARM", "soft labels at three degrees")
    sharpen = Place("tests.extension:SHARPEN", "Multiply a classifier's logits.")
    monkeypatch.setitem(METHODS.places, "warm", warm)
    monkeypatch.setitem(STAGES.places, "sharpen", sharpen)
    monkeypatch.setitem(SCHEMES, "without-head", WITHOUT_HEAD)


@pytest.mark.usefixtures("added")
def test_added_rows_run_to_the_endpoint(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    files = write_toy_files(tmp_path, task)
    settings = {"teacher": str(teacher.path), "epochs": 6, "learning_rate": 3e-3, "batch_size": 16}
    first = {"name": "teacher", "stage": "finetune", "with": settings}
    steps: list[dict[str, Any]] = [first, *({"from": "teacher", **step} for step in STEPS)]
    text = yaml.safe_dump({"summary": "added rows", "task": files.task, "steps": steps})
    outcomes = list(run_recipe(parse_recipe("added", text), tmp_path / "run"))
    assert [outcome.step.stage for outcome in outcomes][1:] == [step["stage"] for step in STEPS]
    student, sharp = (Artifact.load(tmp_path / "run" / name) for name in ("student", "sharp"))
    logits = [open_classifier(each).logits(task.dev.examples) for each in (student, sharp)]
    np.testing.assert_allclose(logits[1], 3 * logits[0], rtol=1e-4, atol=1e-5)
    int8 = Artifact.load(tmp_path / "run" / "int8").card.findings.quantization
    assert int8 is not None and int8.products == 2 * 6 + 1, "the pooler's, and not the head's"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that adds a problem type, as pip leaves it behind."""
    folder = tmp_path / "site" / "multi_label-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: multi-label\nVersion: 1.0\n")
    points = "".join(f"[{group}]\n{name} = {place}\n" for group, (name, place) in ROWS.items())
    (folder / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(folder.parent)
    yield
    for table, (name, _) in zip((PROBLEMS, HEADS, METRICS), ROWS.values(), strict=True):
        table.pop(name, None)


def write_multi_label(folder: Path) -> dict[str, str]:
    """Texts with fruit, tools, both or none, as two files."""
    paths = {name: folder / f"{name}.jsonl" for name in ("train", "dev")}
    for path, rows in zip(paths.values(), (range(160), range(700, 740)), strict=True):
        path.write_text("\n".join(map(json.dumps, map(_row, rows))), encoding="utf-8")
    return {name: str(path) for name, path in paths.items()}


def _row(number: int) -> dict[str, Any]:
    kinds = {"fruit": FRUIT, "tool": TOOLS}
    names = [name for bit, name in enumerate(kinds) if number >> bit & 1]
    words = [kinds[name][number * 5 % 6] for name in names for _ in range(1 + number % 3)]
    return {"text": " ".join([*words, "number", str(number)]), "labels": names}


@pytest.mark.usefixtures("added", "installed")
def test_an_added_problem_type_runs_to_the_endpoint(tmp_path: Path) -> None:
    name, _ = ROWS["bertender.problems"]
    encoder = save_encoder("bert", tmp_path / "encoder")
    settings = {"teacher": str(encoder), "epochs": 12, "learning_rate": 3e-3, "batch_size": 16}
    first = {"name": "teacher", "stage": "finetune", "with": settings}
    student, *others = ({"from": "teacher", **step} for step in (*STEPS, PRUNE, TABLE))
    student["with"] = {**LEARNED, "epochs": 12}
    task = {**write_multi_label(tmp_path), "problem_type": name}
    steps = [first, student, *others]
    text = yaml.safe_dump({"summary": "added rows", "task": task, "steps": steps})
    outcomes = run_recipe(parse_recipe("added", text), tmp_path / "run")
    found = {outcome.step.name: outcome for outcome in outcomes}
    made = {each: Artifact.load(found[each].output) for each in ("student", "int8", "cut")}
    assert {each.card.task.problem_type for each in made.values()} == {name}
    config = json.loads((made["student"].path / "config.json").read_text())
    assert config["problem_type"] == name
    for name in ("student", "cut"):
        scores = made[name].card.findings.scores
        assert scores is not None and scores.score > 0.8
    (row, *_), constant = found["table"].result["rows"], found["table"].result["constant"]
    assert row["score"]["metric"] == "exact_match" and constant["score"]["value"] < 0.5
    show_endpoint(found["endpoint"].output)
    served = found["endpoint"].result["served"]
    for each in served:
        answer = Classification.model_validate(each["answer"])
        (line,) = lines_of(answer, tuple(each["text"]), PROBLEMS["multi_label_classification"])
        assert line.startswith(f"{','.join(answer.label) or '-'}\t")
    right = [each["answer"]["label"] == each["true_label"] for each in served]
    assert len({len(each["true_label"]) for each in served}) > 1 and sum(right) > len(right) / 2


@pytest.mark.usefixtures("installed")
def test_what_is_for_one_label_a_text_is_refused(tmp_path: Path) -> None:
    name, _ = ROWS["bertender.problems"]
    task = load_task(TaskConfig.parse({**write_multi_label(tmp_path), "problem_type": name}))
    distill, baseline = STAGES["distill"], STAGES["baseline"]
    config = distill.config.parse({"more_teachers": "elsewhere"})
    with pytest.raises(ConfigError, match="more_teachers: for tasks whose texts have one label"):
        distill.check(config, task)
    with pytest.raises(ConfigError, match="is one of 'multi_label_classification'"):
        baseline.accepts(task)


@pytest.mark.usefixtures("added")
def test_added_rows_are_commands_and_choices(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    files, out = write_toy_files(tmp_path, task), tmp_path / "sharp"
    assert "sharpen" in succeed("--help").stdout
    assert "warm" in succeed("methods").stdout and "without-head" in succeed("schemes").stdout
    said = succeed("sharpen", teacher.path, "--out", out, "--by", "2", *files.flags, "--json")
    assert last_line(said)["stage"] == "sharpen"
    assert Artifact.load(out).card.config["by"] == 2
