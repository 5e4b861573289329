"""The Python functions: promised, typed, loaded late, strict; their docstrings run."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.gate.artifacts import Verification
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize import integers as targets
from tests.front import ToyFiles, write_fresh_texts, write_toy_files
from tests.toy_models import save_classifier, save_encoder
from tests.toys import toy_task

Once = Callable[[str, Callable[[Path], object]], Path]

PROMISED = {
    *("Artifact", "Task", "BertenderError", "load_task", "pretrain", "distill_general"),
    *("finetune", "distill", "prune", "export", "quantize", "verify", "compare", "open_model"),
    *("serve", "classify", "deploy", "compress", "run_recipe", "import_model", "bundle"),
    *("score", "Scorer", "calibrate"),
}
NAMES = tuple(name for name in bertender.__all__ if not name.startswith("_"))
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(bertender, name))]
LIGHT = (
    *("Artifact", "BertenderError", "distill", "compare", "serve", "classify", "deploy"),
    "run_recipe",
)
"""To name them loads none of these."""
HEAVY = {"torch", "transformers", "datasets", "sklearn", "onnxruntime", "tritonclient"}


def example_of(name: str) -> str:
    """The example in the docstring of a promised name."""
    docstring = (inspect.getdoc(getattr(bertender, name)) or "") + "\n"
    (example,) = re.findall(r"^Example:\n((?:(?: {4}.*)?\n)+)", docstring, re.M)
    return textwrap.dedent(example).strip()


def test_these_names_are_promised() -> None:
    assert set(NAMES) == PROMISED <= set(dir(bertender))
    assert not hasattr(bertender, "destill")


def test_importing_bertender_loads_no_heavy_library() -> None:
    program = (
        "import sys, bertender\n"
        f"names = [getattr(bertender, name) for name in {LIGHT}]\n"
        f"print(sorted({HEAVY} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_type_checker_sees_every_name() -> None:
    tree = ast.parse(Path(bertender.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING"))
    imported = [alias.name for node in ast.walk(block) for alias in getattr(node, "names", [])]
    assert sorted(imported) == sorted(NAMES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_typed_and_explained(name: str) -> None:
    signature = inspect.signature(getattr(bertender, name))
    explained = inspect.getdoc(getattr(bertender, name)) or ""
    assert signature.return_annotation is not signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not signature.empty
        assert f"    {parameter.name}: " in explained


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example_of_itself(name: str) -> None:
    assert f"bertender.{name}" in example_of(name)


SETTINGS_OF = {name.replace("-", "_"): stage.config for name, stage in STAGES.items()}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name in SETTINGS_OF])
def test_no_setting_is_hidden_by_a_parameter_of_another_meaning(name: str) -> None:
    parameters = inspect.signature(getattr(bertender, name)).parameters
    fills = {"teacher", "corpus"} if name in ("pretrain", "distill_general") else set()
    assert parameters.keys() & SETTINGS_OF[name].model_fields.keys() == fills & parameters.keys()


REFUSED = {
    "pretrain": lambda out: bertender.pretrain("corpus.txt", out=out, layer=2),
    "distill_general": lambda out: bertender.distill_general("a", "b", out=out, layer=2),
    "finetune": lambda out: bertender.finetune("docs", out=out, epoch=2),
    "distill": lambda out: bertender.distill("nowhere", out=out, layer=2),
    "prune": lambda out: bertender.prune("nowhere", out=out, head=0.5),
    "export": lambda out: bertender.export("nowhere", out=out, opsets=18),
    "quantize": lambda out: bertender.quantize("nowhere", out=out, schema="static"),
    "bundle": lambda out: bertender.bundle("nowhere", out=out, too="browser"),
    "calibrate": lambda out: bertender.calibrate("nowhere", out=out, metod="platt"),
    "verify": lambda out: bertender.verify("nowhere", "nowhere", text=3),
    "compare": lambda out: bertender.compare(["nowhere"], round=3),
    "load_task": lambda out: bertender.load_task(trains="train.csv"),
    "deploy": lambda out: bertender.deploy("nowhere", out, keeps=2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_setting_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\w+: unknown key. Did you mean"):
        REFUSED[name](tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("models", ["runs/teacher", Path("runs/teacher"), []])
def test_a_comparison_wants_a_list_of_models(models: list[str]) -> None:
    with pytest.raises(ConfigError, match="is not a list of models"):
        bertender.compare(models)


def test_an_unknown_name_of_a_recipe_or_its_step_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="quickstart"):
        bertender.run_recipe("quickstrat")
    with pytest.raises(ConfigError, match=r"Steps: .*teacher"):
        bertender.run_recipe("quickstart", settings={"teachr.epochs": 1})


@pytest.fixture
def files(tmp_path: Path, task: Task) -> ToyFiles:
    return write_toy_files(tmp_path, task)


def test_paths_and_objects_go_in_and_artifacts_and_records_come_out(
    teacher: Artifact, task: Task, files: ToyFiles, tmp_path: Path
) -> None:
    onnx = bertender.export(teacher, task, out=tmp_path / "onnx", parity_texts=4)
    assert (onnx.path, onnx.card.kind) == (tmp_path / "onnx", "onnx")
    settings = {"train": files.train, "dev": str(files.dev)}
    out = tmp_path / "parity.json"
    parity = bertender.verify(str(teacher.path), onnx, settings, out=out, texts=4)
    assert parity.passed and parity.candidate == "onnx"
    assert Verification.model_validate_json(out.read_text(encoding="utf-8")) == parity
    assert bertender.open_model(onnx.path).labels == task.labels


def test_without_a_task_the_recorded_one_is_asked_for(teacher: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not record its task"):
        bertender.export(teacher, out=tmp_path / "onnx")


def test_no_task_is_trained_by_default(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data: give your files"):
        bertender.finetune({"max_train": 10}, teacher=save_encoder("bert", tmp_path), out="out")


def test_a_place_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory; give the name of a JSON file"):
        bertender.compare(["nowhere"], out=tmp_path)


def test_the_home_folder_is_put_in(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    onnx = bertender.export(teacher, task, out="~/onnx", parity_texts=4)
    assert onnx.path == tmp_path / "onnx"
    assert bertender.open_model("~/onnx").labels == task.labels
    bertender.export(teacher, task, out="~no-user", parity_texts=4)
    assert {each.name for each in tmp_path.iterdir()} == {"onnx", "~no-user"}


RECIPE = {
    "summary": "a student",
    "task": {"task": "toy", "train": "train.csv", "dev": "dev.csv"},
    "steps": [
        {"name": "teacher", "stage": "finetune", "with": {"teacher": "runs/encoder", "epochs": 1}},
        {"name": "student", "stage": "distill", "from": "teacher", "with": {"epochs": 1}},
    ],
}
ASK_A_SERVER = ("serve", "classify", "deploy")
IN_ORDER = (*(name for name in NAMES if name[0].islower()), "Artifact", "Task", "BertenderError")
"""The functions in the order in which they are listed: each works on what an earlier one made."""


def run_example(name: str) -> None:
    exec(compile(example_of(name), f"example of {name}", "exec"), {"bertender": bertender})


@pytest.fixture
def examples(once: Once, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has run every example but those that ask a server.

    Its models have hardly learned: their logits nearly cancel, so that 7 bits, which are written on
    CPUs without 8-bit dot products, move them too far for the gate.
    """
    monkeypatch.setattr(targets, "has_int8_acceleration", lambda flags: True)

    def fill(folder: Path) -> None:
        write_toy_files(folder, toy_task(240))
        write_fresh_texts(folder / "fresh.csv", toy_task(240))
        save_classifier(folder / "theirs")
        (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
        monkeypatch.chdir(folder)
        for name in IN_ORDER:
            if name not in ASK_A_SERVER:
                run_example(name)

    return once("api-examples", fill)


@pytest.mark.slow
def test_the_examples_run_one_after_another(examples: Path) -> None:
    made = {
        path.parent.name: Artifact.load(path.parent)
        for path in examples.glob("runs/*/*.json")
        if path.name == "artifact.json"
    }
    assert {name: artifact.card.stage for name, artifact in made.items()} == {
        "imported": "import",
        "encoder": "pretrain",
        "small": "distill-general",
        "teacher": "finetune",
        "student": "distill",
        "pruned": "prune",
        "onnx": "export",
        "int8": "quantize",
        "page": "bundle",
        "calibrated": "quantize",
    }
    assert (examples / "runs" / "recipe" / "student" / "artifact.json").is_file()


FIRST_WORDS = {"serve": "http://127.0.0.1", "classify": ("fruit", "tool"), "deploy": "serving"}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("name", ASK_A_SERVER)
def test_the_examples_that_ask_a_server_run(
    name: str, examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(examples)
    run_example(name)
    first = capsys.readouterr().out.split()[0]
    assert first.startswith(FIRST_WORDS[name])
