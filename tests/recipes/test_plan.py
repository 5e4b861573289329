"""What is found before the first step of a recipe runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender.core.config import Rule
from bertender.core.errors import BertenderError, ConfigError, DataError, RuntimeMissingError
from bertender.models.runtimes import Runtime
from bertender.recipes import recipe as recipes
from bertender.recipes.recipe import (
    Recipe,
    Step,
    checked,
    load_recipe,
    make_plan,
    parse_recipe,
    recipe_names,
    run_recipe,
)
from bertender.recipes.stage import Want
from bertender.recipes.stages import STAGES
from bertender.tasks.named import TASKS
from bertender.tasks.task import Task
from tests.front import ToyFiles, write_toy_files
from tests.toy_models import save_encoder
from tests.toy_tagging import TASK as TAGGING
from tests.toys import ToyNamedTask, ranking_task

CORPUS, ENCODER, OUT, GONE = "CORPUS", "ENCODER", "OUT", "/gone/away"
"""In place of paths that a fixture knows."""

ENCODERS = {"name": "encoder", "stage": "pretrain", "with": {"corpus": CORPUS}}
TEACHER = {"name": "teacher", "stage": "finetune", "with": {"teacher": ENCODER}}
GRAPH = {"name": "graph", "stage": "export", "from": "teacher"}
BASELINE = {"name": "words", "stage": "baseline"}


def last(stage: str, source: str | list[str], **settings: Any) -> dict[str, Any]:
    return {"name": "last", "stage": stage, "from": source, "with": settings}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_encoder("bert", tmp_path_factory.mktemp("plan") / "encoder"))


@pytest.fixture
def files(tmp_path: Path, task: Task) -> ToyFiles:
    return write_toy_files(tmp_path, task)


def recipe_of(files: ToyFiles, encoder: Path, out: Path, *steps: dict[str, Any]) -> Recipe:
    text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": list(steps)})
    for name, path in ((CORPUS, files.corpus), (ENCODER, encoder), (OUT, out)):
        text = text.replace(name, str(path))
    return parse_recipe("toy", text)


BAD = {
    "a setting that is no number": (last("compare", "teacher", rounds="many"), "rounds='many'"),
    "a tolerance that is none": (
        last("verify", ["teacher", "teacher"], tolerance="int9"),
        "no tolerance 'int9'",
    ),
    "mixed without a bound": (
        last("quantize", "graph", scheme="mixed"),
        "how much of it may be lost, in points, as --max-drop",
    ),
    "a setting of another scheme": (
        last("quantize", "graph", scheme="static", epochs=2),
        "epochs=2: scheme 'static' does not read it",
    ),
    "a target that runs no integers": (
        last("quantize", "graph", target="gpu"),
        "turned back into floats",
    ),
    **{
        f"a runtime that {stage} does not know": (
            last(stage, source, runtime="openvin"),
            "no runtime 'openvin'. Did you mean 'openvino'",
        )
        for stage, source in {
            "quantize": "graph",
            "verify": ["teacher", "graph"],
            "compare": ["teacher", "graph"],
        }.items()
    },
    "settings that no default scheme reads": (
        last("quantize", "graph", soft_labels=0.5),
        "no scheme of auto reads all of your settings. four-bit-embeddings is skipped",
    ),
    "heads of a student without": (
        last("distill", "teacher", method="bilstm", heads=2),
        "heads=2: the student of method 'bilstm' has no such part",
    ),
    "layers that a student does not start from": (
        last("distill", "teacher", method="mobilebert", teacher_layers=[0]),
        "the student of method 'mobilebert' has no such part",
    ),
    "heads that do not divide the student": (
        last("distill", "teacher", method="tinybert", hidden_size=32, heads=3),
        "hidden_size=32 is not a multiple of heads=3",
    ),
    "the method's own relation heads that do not divide": (
        last("distill", "teacher", method="minilm-v2", hidden_size=100),
        "relation_heads=48 must divide the widths of both models",
    ),
    "relation heads that do not divide": (
        last("distill", "teacher", method="minilm-v2", hidden_size=32, relation_heads=5),
        "relation_heads=5 must divide the widths of both models",
    ),
    "layers to start from of another vocabulary": (
        last("distill-general", "encoder", corpus=CORPUS, method="small-vocab", teacher_layers=[0]),
        "the student of method 'small-vocab' has no such part",
    ),
    "an encoder that grows in width": (
        last("pretrain", "encoder", corpus=CORPUS, hidden_size=64, layers=8),
        "hidden_size=64: step 'encoder' has hidden_size=",
    ),
    "an encoder that does not grow": (
        last("pretrain", "encoder", corpus=CORPUS, layers=1),
        "layers=1: step 'encoder' has",
    ),
    "nothing to prune": (last("prune", "teacher"), "there is nothing to prune"),
    "an unused setting of pruning": (
        last("prune", "teacher", vocab="task", rounds=2),
        "rounds=2: only heads and neurons are cut in rounds",
    ),
    "overflow of float32": (
        last("export", "teacher", overflow="allow"),
        "overflow=allow: it changes nothing with precision='float32'",
    ),
    "unlabelled texts without teacher outputs": (
        last("distill", "teacher", method="hard", unlabelled=CORPUS),
        "'hard' learns from labels alone",
    ),
    "more teachers without logits": (
        last("distill", "teacher", method="hard", more_teachers=["OUT/teacher"]),
        "'hard' reads no logits",
    ),
    "a method without its student": (
        last("distill", "teacher", method="pd"),
        "'pd' needs a small pre-trained student",
    ),
    "a student of two names": (
        last("distill", ["teacher", "encoder"], student=ENCODER),
        "the earlier step 'encoder' are both to start from",
    ),
    "a student for the teacher's own layers": (
        last("distill", ["teacher", "encoder"], method="theseus"),
        "replaces the teacher's own layers",
    ),
    "a teacher of two names": (
        last("finetune", "encoder", teacher=ENCODER),
        "the earlier step 'encoder' are both to start from",
    ),
    "heads that do not divide": (
        last("pretrain", [], corpus=CORPUS, heads=3, hidden_size=32),
        "heads=3 do not divide hidden_size=32",
    ),
    "a small vocabulary": (
        last("pretrain", [], corpus=CORPUS, tokenizer="bpe", vocabulary_size=200),
        "vocabulary_size=200 is too small",
    ),
    "unlabelled texts that are not there": (
        last("distill", "teacher", unlabelled=GONE),
        "unlabelled='/gone/away': there is no such file",
    ),
    "unlabelled texts of a recovery that are not there": (
        last("prune", "teacher", heads=0.5, unlabelled=GONE),
        "unlabelled='/gone/away': there is no such file",
    ),
    "a teacher of a recovery that is not there": (
        last("prune", "teacher", heads=0.5, teacher=GONE),
        "/gone/away",
    ),
    "a recovery that learns from an encoder": (
        last("prune", ["teacher", "encoder"], heads=0.5),
        "it starts from 'encoder', which will be .* and needs a torch classifier",
    ),
    "a teacher of a recovery of two names": (
        last("prune", ["teacher", "teacher"], heads=0.5, teacher=ENCODER),
        "the earlier step 'teacher' are both to start from",
    ),
    "filters without unlabelled texts": (
        last("distill", "teacher", unlabelled_distinct=True),
        "there are no unlabelled texts to leave some out of",
    ),
    "a teacher more that is not there": (
        last("distill", "teacher", more_teachers=[GONE]),
        "/gone/away",
    ),
    "a student that is not there": (
        last("distill", "teacher", student=GONE),
        "encoder '/gone/away' is not a folder",
    ),
    "a language model that is not there": (
        last("distill", "teacher", augmentation="tinybert", augmentation_model=GONE),
        "encoder '/gone/away' is not a folder",
    ),
    "a teacher that is not there": (
        last("finetune", [], teacher=GONE),
        "encoder '/gone/away' is not a folder",
    ),
    "an encoder to grow from that is not there": (
        last("pretrain", [], corpus=CORPUS, stack_from=GONE),
        "/gone/away",
    ),
    "a corpus that is not there": (
        last("pretrain", [], corpus=f"{GONE}.txt"),
        "corpus '/gone/away.txt': there is no such file",
    ),
    "a corpus of the vocabulary that is not there": (
        last("prune", "teacher", vocab=f"{GONE}.txt"),
        "corpus '/gone/away.txt': there is no such file",
    ),
    "a graph that would be trained": (
        last("quantize", "graph", scheme="qat"),
        "starts from 'graph', which will be a float32 onnx classifier of stage 'export', and "
        "needs a torch classifier. Give a step of stage finetune",
    ),
    "a model that was not exported": (
        last("quantize", "teacher", scheme="dynamic"),
        "starts from 'teacher', which will be a float32 torch classifier .*Give a step of stage "
        "export",
    ),
    "an encoder without a head": (last("export", "encoder"), "encoder without a classification"),
    "a comparison of an encoder": (last("compare", ["teacher", "encoder"]), "needs a classifier"),
    "an export of a graph": (last("export", "graph"), "needs a torch classifier"),
    "a pruning of words": (last("prune", "words", heads=0.5), "needs a torch classifier"),
    "a start from words": (last("finetune", "words"), "needs a torch model"),
    "a distillation of words": (last("distill", "words"), "needs a torch classifier"),
    "a choice among all layers of an earlier student": (
        last("distill", ["teacher", "encoder"], teacher_layers="spread"),
        "a student of another encoder has all of its layers where none are said",
    ),
    "a student from a graph": (last("distill", ["teacher", "graph"]), "needs a torch model"),
    "an encoder that grows from a teacher": (
        last("pretrain", "teacher", corpus=CORPUS),
        "needs an encoder of stage 'pretrain'",
    ),
    "a general teacher of words": (
        last("distill-general", "words", corpus=CORPUS),
        "needs a torch model",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_the_last_step_is_refused_before_the_first_runs(
    name: str, files: ToyFiles, encoder: Path, tmp_path: Path
) -> None:
    step, said = BAD[name]
    out = tmp_path / "run"
    recipe = recipe_of(files, encoder, out, ENCODERS, TEACHER, GRAPH, BASELINE, step)
    with pytest.raises(BertenderError, match=f"(?s)^step 'last' .*{said}"):
        next(run_recipe(recipe, out))
    assert not out.exists()


def test_a_graph_that_cannot_be_quantized_is_refused_before_it_is_made(
    files: ToyFiles, encoder: Path, tmp_path: Path
) -> None:
    settings, said = {"precision": "float16"}, "a float16 onnx classifier of stage 'export'"
    steps = (TEACHER, {**GRAPH, "with": settings}, last("quantize", "graph", scheme="dynamic"))
    recipe = recipe_of(files, encoder, tmp_path / "run", *steps)
    with pytest.raises(ConfigError, match=f"{said}, and needs a float32 onnx classifier"):
        next(run_recipe(recipe, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_endpoint_of_no_graph_is_refused(
    files: ToyFiles, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STAGES["endpoint"].wants(None, 0).next_step.endswith("stage export.")
    recipe = recipe_of(files, encoder, tmp_path / "run", TEACHER, last("endpoint", "teacher"))
    with pytest.raises(BertenderError, match="step 'last'"):
        next(run_recipe(recipe, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_what_an_earlier_step_makes_need_not_be_there(
    files: ToyFiles, encoder: Path, tmp_path: Path
) -> None:
    """The first step runs, though what the last one names is not made yet."""
    out = tmp_path / "run"
    named = {"more_teachers": ["OUT/teacher"], "student": "OUT/encoder"}
    step = last("distill", "teacher", method="pd", **named)
    recipe = recipe_of(files, encoder, out, BASELINE, ENCODERS, TEACHER, step)
    assert next(run_recipe(recipe, out)).step.name == "words"


@pytest.mark.parametrize(
    "name", [name for name, stage in STAGES.items() if stage.config.all_rules()]
)
def test_every_rule_says_what_to_do(name: str) -> None:
    config = STAGES[name].config
    for rule in config.all_rules().values():
        assert isinstance(rule, Rule) and rule.settings <= config.model_fields.keys()
        assert rule.against is None or rule.against in config.model_fields


@pytest.mark.parametrize("stage", ["quantize", "verify", "compare"])
def test_a_missing_runtime_is_refused_before_any_step(
    stage: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "version", None)
    config = STAGES[stage].config.parse({"runtime": "openvino"})
    with pytest.raises(RuntimeMissingError, match=r"pip install 'bertender\[openvino\]'"):
        STAGES[stage].check(config, task)


@pytest.mark.parametrize("name", recipe_names())
def test_the_embedded_recipes_fit_together(name: str) -> None:
    for step in load_recipe(name).steps:
        stage = STAGES[step.stage]
        config = stage.config.parse(step.settings)
        assert all(isinstance(stage.wants(config, at), Want) for at in range(len(step.sources)))


def test_a_run_below_a_file_is_refused_before_any_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*file is not a folder that"):
        make_plan(load_recipe("quickstart"), tmp_path / "file" / "run")


def test_a_tagger_of_more_tasks_is_refused_before_their_data_are_loaded(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = AssertionError("the data were loaded")
    toys = ToyNamedTask("a toy", ("a", "b"), "accuracy", ("text",), loaded)
    monkeypatch.setitem(TASKS, "toys", toys)
    for name in ("train.jsonl", "dev.jsonl"):
        words = {"words": ["saw", "pear"], "tags": ["B-tool", "O"]}
        (tmp_path / name).write_text(f"{json.dumps(words)}\n" * 4, encoding="utf-8")
    task = {
        "train": str(tmp_path / "train.jsonl"),
        "dev": str(tmp_path / "dev.jsonl"),
        "problem_type": "token_classification",
    }
    step = {**TEACHER, "with": {"teacher": str(encoder), "more_tasks": ["toys"]}}
    text = yaml.safe_dump({"summary": "toy", "task": task, "steps": [step]})
    with pytest.raises(ConfigError, match=r"step 'teacher' .*more_tasks=toys: .* on each alone"):
        next(run_recipe(parse_recipe("toy", text), tmp_path / "run"))


def test_a_step_that_takes_no_tags_is_left_out(
    files: ToyFiles,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = {"name": "table", "stage": "compare", "from": ["words", "teacher"]}
    recipe = recipe_of(files, encoder, tmp_path / "run", BASELINE, TEACHER, table)
    assert [len(each.step.sources) for each in checked(recipe, tmp_path / "run")[0]] == [0, 0, 2]
    monkeypatch.setattr(recipes, "load_task", lambda config, has_model: TAGGING)

    def stop(step: Step, number: int, steps: int) -> None:
        raise KeyError(f"{step.name} {number} of {steps}")

    with pytest.raises(KeyError, match="teacher 1 of 2"):
        next(run_recipe(recipe, tmp_path / "run", at_step=stop))
    assert "step 'words' (baseline) is left out" in caplog.text
    plan, _ = checked(recipe, tmp_path / "run")
    assert plan[1].step.sources == ("teacher",)
    alone = {**table, "from": ["words"]}
    for steps in ([BASELINE], [BASELINE, TEACHER, alone]):
        with pytest.raises(ConfigError, match="'baseline' takes tasks of"):
            checked(recipe_of(files, encoder, tmp_path / "run", *steps), tmp_path / "run")


def test_a_step_that_is_left_out_may_start_from_another(
    files: ToyFiles, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranking = ranking_task(8, 8)
    monkeypatch.setattr(recipes, "load_task", lambda config, has_model: ranking)
    own = {"name": "probable", "stage": "calibrate", "from": "words"}
    recipe = recipe_of(files, encoder, tmp_path / "run", BASELINE, own, TEACHER)
    plan, _ = checked(recipe, tmp_path / "run")
    assert [each.step.name for each in plan] == ["teacher"]


@pytest.mark.parametrize(
    "step",
    [
        {"name": "pruned", "stage": "prune", "from": ["probable", "teacher"], "with": {"ffn": 0.5}},
        {"name": "again", "stage": "finetune", "from": "probable"},
    ],
)
def test_a_step_never_starts_from_another_source(
    step: dict[str, Any],
    files: ToyFiles,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first source left out, it would prune its teacher, or train the default encoder."""
    monkeypatch.setattr(recipes, "load_task", lambda config, has_model: ranking_task(8, 8))
    own = {"name": "probable", "stage": "calibrate", "from": "teacher"}
    recipe = recipe_of(files, encoder, tmp_path / "run", TEACHER, own, step)
    with pytest.raises(ConfigError, match=r"step 'probable' .*'calibrate' takes tasks of"):
        checked(recipe, tmp_path / "run")


def test_missing_data_of_more_tasks_are_found_before_the_first_step(
    files: ToyFiles, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = DataError("the data are gone")
    toys = ToyNamedTask("a toy", ("a", "b"), "accuracy", ("text",), gone)
    monkeypatch.setitem(TASKS, "toys", toys)
    step = {**TEACHER, "with": {"teacher": ENCODER, "more_tasks": ["toys"]}}
    recipe = recipe_of(files, encoder, tmp_path / "run", BASELINE, step)
    with pytest.raises(DataError, match=r"step 'teacher' .*the data are gone"):
        next(run_recipe(recipe, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
