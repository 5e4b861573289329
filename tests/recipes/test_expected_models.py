"""Architectures that a later step refuses: a recipe shows them before its first step runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import BertConfig

from bertender.core.errors import BertenderError
from bertender.models.classifier import onnx_file
from bertender.models.families import family_name
from bertender.models.own_models import PRUNABLE, expected_on_disk, heads_of
from bertender.models.steps import FUSIONS
from bertender.recipes.recipe import make_plan, parse_recipe
from bertender.recipes.stage import Earlier, Product
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from distill.distillation.general import GeneralTeacher
from distill.methods import GENERAL_METHODS, METHODS
from distill.pretraining.config import OBJECTIVES
from distill.pretraining.pretrain import TRAINING_MODULES
from distill.students import StudentShape
from distill.teachers.encoders import load_masked_language_model
from export.precision import OPTIMIZATIONS
from quantize.config import SCHEMES
from quantize.graph import take_inventory
from tests.distill.pretraining.settings import with_phrases
from tests.exports import PlainExport
from tests.front import ToyFiles, write_toy_files
from tests.listening import interrupted_at
from tests.toy_models import (
    BERT_SHAPE,
    OWN_SHAPES,
    SHAPES,
    UNKNOWN,
    save_artifact,
    save_encoder,
    tiny_classifier,
    tiny_language_model,
)

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 8, "precision": "fp32"}
LATER: dict[str, tuple[str, dict[str, Any]]] = {
    "prune heads": ("prune", {"heads": 0.5, "scored_texts": 8, **QUICK}),
    "prune too few heads": ("prune", {"heads": 0.01, **QUICK}),
    "prune layers": ("prune", {"layers": 1, "scored_texts": 8, **QUICK}),
    "prune all layers": ("prune", {"layers": 4, "scored_texts": 8, **QUICK}),
    "prune tokens": ("prune", {"vocab": "task", **QUICK}),
    **{
        f"quantize {name}": ("quantize", {"scheme": name, **QUICK})
        for name, scheme in SCHEMES.items()
        if scheme.source == "torch"
    },
}
"""Steps that train a model that they start from: in their first step of training, they are
interrupted."""


def refusal(run: Callable[[], object]) -> str | None:
    """Return the message of what refuses, or None where training begins."""
    try:
        with interrupted_at(1):
            run()
    except KeyboardInterrupt:
        return None
    except BertenderError as error:
        return str(error)
    return None


def classifier_of(model_type: str) -> Any:
    shape = BERT_SHAPE if model_type == UNKNOWN else {}
    return tiny_classifier(model_type, pad_token_id=0, **shape)


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES, UNKNOWN])
def test_the_plan_refuses_what_the_step_refuses(
    model_type: str, later: str, task: Task, tmp_path: Path
) -> None:
    name, settings = LATER[later]
    stage = STAGES[name]
    config = stage.config.parse(settings)
    model = classifier_of(model_type)
    source = save_artifact(model, task, tmp_path / "source")
    product = Product("distill", "torch", model=expected_on_disk(source.path))
    planned = refusal(lambda: stage.check_source(config, 0, "source", product))
    real = refusal(lambda: stage.make([source], task, config, tmp_path / "out"))
    assert planned == (real and f"it starts from 'source': {real}")


@pytest.mark.parametrize("optimize", OPTIMIZATIONS)
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES, UNKNOWN])
def test_the_plan_refuses_the_exports_that_the_step_refuses(
    model_type: str, optimize: str, task: Task, tmp_path: Path
) -> None:
    """Those that neither refuses are in the tests of export."""
    stage = STAGES["export"]
    config = stage.config.parse({"optimize": optimize})
    source = save_artifact(classifier_of(model_type), task, tmp_path / "source")
    product = Product("distill", "torch", model=expected_on_disk(source.path))
    planned = refusal(lambda: stage.check_source(config, 0, "source", product))
    fused = FUSIONS.get(model_type.removeprefix("bertender-pruned-"))
    refused = optimize == "fused" and (fused is None or bool(fused.obstacle))
    assert (planned is not None) == refused
    if planned:
        real = refusal(lambda: stage.make([source], task, config, tmp_path / "out"))
        assert planned == f"it starts from 'source': {real}"


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES])
def test_four_bits_are_planned_where_a_graph_has_a_place_for_them(
    model_type: str, plain_export: PlainExport
) -> None:
    source, graph = plain_export(model_type)
    stage = STAGES["quantize"]
    product = Product("export", "onnx", model=expected_on_disk(source.path))
    config = stage.config.parse({"scheme": "four-bit"})
    planned = refusal(lambda: stage.check_source(config, 0, "source", product))
    places = [each for each in take_inventory(onnx_file(graph)).products if not each.is_gemm]
    assert (planned is None) == bool(places)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_encoder_predicts_words_where_its_row_promises_it(
    objective: str, tmp_path: Path
) -> None:
    stage = STAGES["pretrain"]
    model = TRAINING_MODULES[objective].untrained(BertConfig(vocab_size=30, **BERT_SHAPE))
    model.save_pretrained(tmp_path)
    refused = refusal(lambda: load_masked_language_model(str(tmp_path)))
    promised = stage.makes(stage.config.parse(with_phrases(objective, tmp_path))).predicts_words
    assert promised == (refused is None), refused


@pytest.mark.parametrize("method", GENERAL_METHODS)
def test_a_general_student_predicts_words_where_its_method_promises_it(method: str) -> None:
    stage, row = STAGES["distill-general"], GENERAL_METHODS[method]
    config = stage.config.parse({"method": method})
    bert = tiny_classifier("bert")
    teacher = GeneralTeacher("bert", bert, tiny_language_model("bert"))
    words = row.predicts_words
    teacher = teacher if words else replace(teacher, language_model=None)
    student = teacher.student(row, StudentShape(2))
    has_head = student.get_output_embeddings() is not None
    assert stage.makes(config).predicts_words == has_head == words


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_pretrained_encoder_is_known_by_its_settings(objective: str, tmp_path: Path) -> None:
    stage = STAGES["pretrain"]
    settings = {**with_phrases(objective, tmp_path), "layers": 3, "hidden_size": 48, "heads": 2}
    known = stage.model(stage.config.parse(settings), Earlier())
    assert known is not None and known.shape_known
    config = known.model.config
    assert config.model_type == OBJECTIVES[objective].family
    assert (config.num_hidden_layers, config.hidden_size) == (3, 48)
    assert config.num_attention_heads == 2


PRUNINGS: dict[str, dict[str, Any]] = {
    "heads": {"heads": 0.5},
    "neurons": {"ffn": 0.5},
    "neurons of each layer": {"ffn": 0.5, "across": "layer"},
    "layers": {"layers": 1},
    "tokens": {"vocab": "task"},
}


@pytest.mark.parametrize("pruning", PRUNINGS)
@pytest.mark.parametrize("model_type", ["bert", "bertender-pruned-bert"])
def test_what_is_known_of_a_pruned_model_holds(
    model_type: str, pruning: str, task: Task, tmp_path: Path
) -> None:
    stage = STAGES["prune"]
    reads = {} if pruning == "tokens" else {"scored_texts": 8}
    config = stage.config.parse({"recover": False, **reads, **PRUNINGS[pruning]})
    source = save_artifact(classifier_of(model_type), task, tmp_path / "source")
    known = stage.model(config, Earlier([expected_on_disk(source.path)]))
    assert known is not None
    made = expected_on_disk(stage.make([source], task, config, tmp_path / "out").path)
    assert made is not None
    theirs, ours = known.model.config, made.model.config
    assert family_name(theirs) == family_name(ours)
    if family_name(theirs) != theirs.model_type:  # then a step refuses it for its uneven layers
        assert family_name(ours) != ours.model_type
    if known.shape_known:
        assert theirs.num_hidden_layers == ours.num_hidden_layers
        assert heads_of(theirs) == heads_of(ours)


UNKNOWN_TEACHER = "somebody/an-encoder"
FINETUNE = {"name": "teacher", "stage": "finetune", "with": {"teacher": "TEACHER"}}


def planned(
    steps: list[dict[str, Any]], files: ToyFiles, out: Path, teacher: str | Path = UNKNOWN_TEACHER
) -> str:
    """Return what the plan of some steps refuses."""
    text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": steps})
    for name, path in (("TEACHER", teacher), ("CORPUS", files.corpus), ("OUT", out)):
        text = text.replace(name, str(path))
    with pytest.raises(BertenderError) as raised:
        make_plan(parse_recipe("toy", text), out)
    assert not out.exists()
    return str(raised.value)


def step(name: str, stage: str, source: str | list[str], **settings: Any) -> dict[str, Any]:
    return {"name": name, "stage": stage, "from": source, "with": settings}


@pytest.fixture
def files(tmp_path: Path, task: Task) -> ToyFiles:
    return write_toy_files(tmp_path, task)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 4 layers, 32 wide, with 4 heads."""
    return Path(save_encoder("bert", tmp_path_factory.mktemp("expected") / "encoder"))


def test_an_unknown_teacher_hides_no_architecture_that_the_method_sets(
    files: ToyFiles, tmp_path: Path
) -> None:
    for method in METHODS:
        model_type = METHODS[method].student.model_type
        if model_type is None or model_type in PRUNABLE:
            continue
        student = step("student", "distill", "teacher", method=method)
        last = step("last", "prune", "student", heads=0.5)
        said = planned([FINETUNE, student, last], files, tmp_path / "run")
        expected = "step 'last' (prune): it starts from 'student': "
        assert said.startswith(f"{expected}a '{model_type}' model cannot be pruned"), method


ALBERTS = {"objective": "mlm+sop", "corpus": "CORPUS", "layers": 2, "hidden_size": 32, "heads": 4}
REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a fused mobilebert": (
        [
            FINETUNE,
            step("student", "distill", "teacher", method="mobilebert"),
            step("last", "export", "student", optimize="fused"),
        ],
        "it starts from 'student': --optimize fused finds no attention to fuse in a 'mobilebert'",
    ),
    "training an LSTM with errors of 8 bits": (
        [
            FINETUNE,
            step("student", "distill", "teacher", method="bilstm"),
            step("last", "quantize", "student", scheme="qat"),
        ],
        "it starts from 'student': a 'bertender-bilstm' model has an LSTM",
    ),
    "an LSTM as the teacher of states": (
        [
            FINETUNE,
            step("student", "distill", "teacher", method="bilstm"),
            step("last", "distill", "student", method="pkd"),
        ],
        "of a 'bertender-bilstm' teacher only the logits can be learned from",
    ),
    "a pruned teacher of attention": (
        [
            FINETUNE,
            step("pruned", "prune", "teacher", heads=0.5),
            step("last", "distill", "pruned", method="tinybert"),
        ],
        "the layers of a 'bertender-pruned-bert' teacher are not alike",
    ),
    "more layers than the teacher's": (
        [FINETUNE, step("last", "distill", "teacher", layers=9)],
        "layers=9: the teacher has only 4",
    ),
    "layers of a student's student": (
        [
            FINETUNE,
            step("student", "distill", "teacher", layers=2),
            step("last", "distill", "student", method="pkd", layers=3),
        ],
        "layers=3: the teacher has only 2",
    ),
    "relation heads that do not divide the teacher's width": (
        [FINETUNE, step("last", "distill", "teacher", method="minilm-v2", relation_heads=5)],
        "relation_heads=5 must divide the widths of both models",
    ),
    "heads that do not divide the teacher's width": (
        [FINETUNE, step("last", "distill", "teacher", method="tinybert", heads=3)],
        "hidden_size=32 is not a multiple of heads=3",
    ),
    "all layers of a teacher": (
        [FINETUNE, step("last", "prune", "teacher", layers=4)],
        "layers=4: the model has 4, and one must stay",
    ),
    "layers of an encoder that is pre-trained first": (
        [
            step("encoder", "pretrain", [], corpus="CORPUS", layers=2, hidden_size=32, heads=4),
            step("teacher", "finetune", "encoder"),
            step("last", "distill", "teacher", layers=3),
        ],
        "layers=3: the teacher has only 2",
    ),
    "pruning a pre-trained ALBERT": (
        [
            step("encoder", "pretrain", [], **ALBERTS),
            step("teacher", "finetune", "encoder"),
            step("last", "prune", "teacher", ffn=0.5),
        ],
        "it starts from 'teacher': a 'albert' model cannot be pruned",
    ),
    "more layers than a general teacher's": (
        [step("last", "distill-general", [], teacher="TEACHER", corpus="CORPUS", layers=9)],
        "layers=9: the teacher has only 4",
    ),
    "pruning a general student": (
        [
            step("general", "distill-general", [], teacher="TEACHER", method="mobilebert"),
            step("teacher", "finetune", "general"),
            step("last", "prune", "teacher", heads=0.5),
        ],
        "it starts from 'teacher': a 'mobilebert' model cannot be pruned",
    ),
    "4 bits of an LSTM": (
        [
            FINETUNE,
            step("student", "distill", "teacher", method="bilstm"),
            step("graph", "export", "student"),
            step("last", "quantize", "graph", scheme="four-bit"),
        ],
        "it starts from 'graph': a 'bertender-bilstm' model has no layers",
    ),
    "words of a classifier": (
        [FINETUNE, step("last", "distill-general", "teacher", method="distilbert")],
        "needs a torch model that predicts words. Give a step of stage pretrain whose objective "
        "masks words, or choose a method that does not read the teacher's predictions of words: "
        "minilm, minilm-v2, modernbert, small-vocab, tinybert",
    ),
    "words of an encoder that detects replaced ones": (
        [
            step("encoder", "pretrain", [], corpus="CORPUS", objective="rtd"),
            step("last", "distill-general", "encoder", method="mobilebert"),
        ],
        "needs a torch model that predicts words",
    ),
    "more layers than an own start's": (
        [FINETUNE, step("last", "distill", "teacher", method="pd", student="TEACHER", layers=9)],
        "layers=9: the teacher has only 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_the_last_step_refuses_is_found_when_it_is_planned(
    name: str, files: ToyFiles, encoder: Path, tmp_path: Path
) -> None:
    steps, said = REFUSED[name]
    message = planned(steps, files, tmp_path / "run", encoder)
    assert message.startswith("step 'last' (") and said in message


def test_a_folder_that_a_step_will_write_is_not_read(
    files: ToyFiles, encoder: Path, tmp_path: Path
) -> None:
    """It may lie there from a run with other settings."""
    out = tmp_path / "run"
    save_encoder("albert", out / "encoder")
    steps = [
        step("encoder", "pretrain", [], corpus="CORPUS", layers=2, hidden_size=32, heads=4),
        {"name": "teacher", "stage": "finetune", "with": {"teacher": "OUT/encoder"}},
        step("last", "prune", "teacher", heads=0.5),
    ]
    text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": steps})
    text = text.replace("CORPUS", str(files.corpus)).replace("OUT", str(out))
    assert len(make_plan(parse_recipe("toy", text), out)) == 3
