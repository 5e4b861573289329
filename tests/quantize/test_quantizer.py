"""Every row of SCHEMES: smaller, near its source, the same each time; or nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.core.artifact import GOLDEN_NAME, Artifact
from bertender.core.errors import (
    AccuracyError,
    ConfigError,
    ModelError,
    ParityError,
    UnknownNameError,
)
from bertender.core.findings import ProductCheck
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.families import FAMILIES
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from export.config import ExportConfig
from export.exporter import export
from quantize import quantizer
from quantize.config import SCHEMES, SHARED, QuantizeConfig
from quantize.graph_check import TensorDifference, check_float_nodes, check_kernels
from quantize.product_check import ProductFindings, check_products, check_saturation
from quantize.quantizer import WRITERS
from tests.exports import PlainExport
from tests.listening import listed_steps, no_training
from tests.quantize.contexts import SETTINGS, config_of, target_for
from tests.quick import quick
from tests.served import ask_one_by_one, one_by_one, served
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import pair_task

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
ONE_GRAPH = [name for name, row in SCHEMES.items() if row.source == "onnx"]


def quantize(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    """As the stage does it, which knows how to export."""
    return STAGES["quantize"].make([source], task, config, out)


@pytest.fixture(scope="module")
def sources(float_model: Artifact) -> dict[str, Artifact]:
    """What each kind of scheme starts from: the tiny BERT, and its export."""
    assert float_model.card.parent is not None
    trained = Artifact.load(float_model.path / float_model.card.parent.path)
    return {"onnx": float_model, "torch": trained}


def source_of(scheme: str, sources: dict[str, Artifact]) -> Artifact:
    return sources[SCHEMES[scheme].source]


@pytest.fixture(scope="module", params=quick(SCHEMES, "dynamic", "four-bit", "qat", "static"))
def quantized(
    request: pytest.FixtureRequest,
    sources: dict[str, Artifact],
    task: Task,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """The tiny BERT by each scheme."""
    out = tmp_path_factory.mktemp("quantized") / "int8"
    return quantize(source_of(request.param, sources), task, config_of(request.param), out)


def test_every_scheme_is_tested() -> None:
    assert SETTINGS.keys() == SCHEMES.keys()


def test_the_file_is_smaller(quantized: Artifact, float_model: Artifact) -> None:
    assert onnx_file(quantized).stat().st_size < 0.75 * onnx_file(float_model).stat().st_size


def test_the_answers_stay_near(quantized: Artifact, float_model: Artifact, task: Task) -> None:
    ours, theirs = (
        open_classifier(artifact).logits(task.dev.examples) for artifact in (quantized, float_model)
    )
    assert not np.array_equal(ours, theirs)
    far = {"qat": 0.5, "q-bert": 1.0, "four-bit": 0.3}.get(quantized.card.config["scheme"], 0.1)
    assert np.abs(ours - theirs).max() < far * np.abs(theirs).max()


def test_the_card_says_what_was_done(quantized: Artifact, sources: dict[str, Artifact]) -> None:
    card = quantized.card
    source = source_of(card.config["scheme"], sources)
    assert card.precision == config_of(card.config["scheme"]).graph_precision
    assert (card.kind, card.stage, card.family) == ("onnx", "quantize", source.card.family)
    assert card.parent is not None and card.parent.digest == source.digest
    assert card.findings.parameters == open_classifier(source).parameters
    assert card.findings.parity.passed


def test_the_card_says_what_runs_in_integers_and_why_the_rest_does_not(
    quantized: Artifact,
) -> None:
    found = quantized.card.findings.quantization
    assert found.target == "vnni"
    assert found.products == found.running_in_integers == 4 * 6 + 2
    assert len(found.float_nodes) == 4 * 2, "scores and contexts of each layer"
    assert all("attention" in reason for reason in found.float_nodes.values())
    assert found.saturation.largest_deviation < 1e-6
    assert found.product_check.checked == found.products + 3, "and three tables"
    graph = onnx.load(onnx_file(quantized)).graph
    assert not [
        node.name
        for node in graph.node
        if node.op_type in ("MatMul", "Gemm")
        and node.input[1] in {item.name for item in graph.initializer}
    ]


def test_config_and_tokenizer_come_along(quantized: Artifact, float_model: Artifact) -> None:
    ours, theirs = dict(quantized.card.files), dict(float_model.card.files)
    for of_the_model in ("model.onnx", GOLDEN_NAME):
        assert ours.pop(of_the_model) != theirs.pop(of_the_model)
    assert ours == theirs


@pytest.mark.one_path
@every_scheme
def test_the_same_source_gives_the_same_bytes(
    scheme: str, sources: dict[str, Artifact], task: Task, tmp_path: Path
) -> None:
    source, config = source_of(scheme, sources), config_of(scheme)
    first, second = (quantize(source, task, config, tmp_path / name) for name in ("a", "b"))
    assert onnx_file(first).read_bytes() == onnx_file(second).read_bytes()
    assert first.digest == second.digest


@pytest.mark.one_path
@pytest.mark.parametrize("scheme", sorted({*SCHEMES} - {"four-bit-embeddings"}))
def test_embeddings_can_stay_in_float(
    scheme: str, sources: dict[str, Artifact], task: Task, tmp_path: Path
) -> None:
    config = config_of(scheme, no_embeddings=True)
    artifact = quantize(source_of(scheme, sources), task, config, tmp_path / "int8")
    constants = {
        item.name: numpy_helper.to_array(item)
        for item in onnx.load(onnx_file(artifact)).graph.initializer
    }
    tables = {name: value for name, value in constants.items() if "_embeddings.weight" in name}
    assert len(tables) == 3
    assert {table.dtype for table in tables.values()} == {np.dtype(np.float32)}
    reasons = artifact.card.findings.quantization.float_nodes
    assert [*reasons.values()].count("left by --no-embeddings") == 3


@pytest.mark.slow
@pytest.mark.one_path
@every_scheme
def test_pairs(scheme: str, tmp_path: Path) -> None:
    task = pair_task()
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    onnx_model = export(source, task, ExportConfig(), tmp_path / "onnx")
    given = {"onnx": onnx_model, "torch": source}[SCHEMES[scheme].source]
    artifact = quantize(given, task, config_of(scheme), tmp_path / "int8")
    assert "token_type_ids" in open_classifier(artifact).predictor.inputs


@pytest.mark.one_path
@every_scheme
def test_answers_that_move_too_far_are_refused_and_gone(
    scheme: str,
    sources: dict[str, Artifact],
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = WRITERS[scheme].write

    def write_negated(context: Any, target: Path) -> Any:
        written = write(context, target)
        model = onnx.load(target)
        for item in model.graph.initializer:
            if item.name.startswith("classifier") and item.name.endswith("_scale"):
                item.CopyFrom(numpy_helper.from_array(-9 * numpy_helper.to_array(item), item.name))
        onnx.save(model, target)
        return written

    unchecked = ProductCheck(checked=0, worst={})  # it would be the first
    monkeypatch.setattr(quantizer, "check_products", lambda findings: unchecked)
    monkeypatch.setattr(WRITERS[scheme], "write", write_negated)
    with pytest.raises(ParityError, match="int8 does not agree with"):
        quantize(source_of(scheme, sources), task, config_of(scheme), tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
    if SCHEMES[scheme].source == "onnx":  # which keeps its checkpoints
        assert not any(tmp_path.iterdir())


@pytest.mark.one_path
@every_scheme
def test_a_score_that_falls_too_far_is_refused_and_gone(
    scheme: str,
    sources: dict[str, Artifact],
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        quantizer.QuantizationContext, "score", lambda self, graph: self.score_before - 0.011
    )
    source = source_of(scheme, sources)
    with pytest.raises(AccuracyError, match=r"1\.1 points of accuracy.*max_drop=1\b"):
        quantize(source, task, config_of(scheme, max_drop=1.0), tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
    if SCHEMES[scheme].source == "onnx":  # which keeps its checkpoints
        assert not any(tmp_path.iterdir())
    kept = quantize(source, task, config_of(scheme, max_drop=1.1), tmp_path / "int8")
    assert kept.card.findings.scores.score < 1


@pytest.mark.one_path
@pytest.mark.parametrize("scheme", ONE_GRAPH)
def test_only_float_graphs_are_quantized(
    scheme: str, task: Task, float_model: Artifact, tmp_path: Path
) -> None:
    config = config_of(scheme)
    once = quantize(float_model, task, config, tmp_path / "once")
    with pytest.raises(ModelError, match=r"is int\d already. Give the float32 artifact"):
        quantize(once, task, config, tmp_path / "twice")
    assert [path.name for path in tmp_path.iterdir()] == ["once"]


def test_training_starts_from_a_torch_artifact(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(
        ModelError, match=r"kind 'onnx'; this scheme quantizes torch.*that it was exported from"
    ):
        quantize(float_model, task, config_of("qat"), tmp_path / "out")
    assert not any(tmp_path.iterdir())


OTHER_TASKS = [
    (pair_task(), r"2 text column\(s\).*from 1\. Texts of another task"),
    ("labels", "has the labels yes, no"),
]


@every_scheme
@pytest.mark.parametrize(("other", "message"), OTHER_TASKS)
def test_texts_of_another_task_are_refused(
    scheme: str,
    other: Any,
    message: str,
    sources: dict[str, Artifact],
    task: Task,
    tmp_path: Path,
) -> None:
    if other == "labels":
        other = replace(task, labels=("yes", "no"))
    with pytest.raises(ConfigError, match=message):
        quantize(source_of(scheme, sources), other, config_of(scheme), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_held_out_file_alone_calibrates_and_trains_nothing(
    sources: dict[str, Artifact], task: Task, tmp_path: Path
) -> None:
    held_out = replace(task, train=Split((), ()), dev=task.dev, selection=task.train)
    made = quantize(source_of("static", sources), held_out, config_of("static"), tmp_path / "out")
    assert made.card.findings.quantization.ranges
    with pytest.raises(ConfigError, match="--train FILE"):
        quantize(source_of("qat", sources), held_out, config_of("qat"), tmp_path / "trained")


IDLE = [
    ("dynamic", {"calibrator": "mse"}, r"'dynamic' does not read it; static or mixed does"),
    ("static", {"epochs": 2}, r"'static' does not read it; qat or q-bert does.*--scheme qat"),
    ("four-bit", {"base": "static"}, r"'four-bit' does not read it; mixed does"),
    ("qat", {"sensitivity": "hessian-trace"}, r"mixed or four-bit or q-bert does"),
    ("dynamic", {"weight_bits": 2}, r"'dynamic' does not read it; q-bert does"),
    ("static", {"percentile": 99.0}, "changes nothing here: it needs --calibrator percentile"),
    ("mixed", {"max_drop": 1.0, "calibrator": "mse"}, "it needs --base static"),
    ("four-bit", {"sensitivity": "hessian-trace"}, "it needs --max-drop"),
    ("q-bert", {"sensitivity": "hessian-trace"}, "all products have --weight-bits"),
    ("q-bert", {"sensitive_share": 0.2}, "Give --sensitive-bits too"),
    ("q-bert", {"sensitive_bits": 3}, "are no more than weight_bits=3"),
    (
        "q-bert",
        {"sensitive_bits": 4, "sensitivity": "leave-one-out"},
        "Leave --sensitivity out",
    ),
]


@pytest.mark.parametrize("setting", ["weight_bits", "sensitive_bits"])
def test_bits_that_are_not_packed_are_refused(setting: str) -> None:
    message = setting + r"=5: such weights are not packed; allowed are 2, 3, 4\. Scheme qat has 8"
    with pytest.raises(ConfigError, match=message):
        QuantizeConfig.parse({"scheme": "q-bert", setting: 5})


@pytest.mark.parametrize(("scheme", "settings", "message"), IDLE)
def test_settings_that_change_nothing_are_refused(
    scheme: str,
    settings: dict[str, Any],
    message: str,
    sources: dict[str, Artifact],
    task: Task,
    tmp_path: Path,
) -> None:
    config = QuantizeConfig(scheme=scheme, **settings)
    with pytest.raises(ConfigError, match=message):
        quantize(source_of(scheme, sources), task, config, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_each_setting_is_read_by_a_scheme() -> None:
    read = set().union(SHARED, *(row.reads for row in SCHEMES.values()))
    assert read == set(QuantizeConfig.model_fields)


@pytest.mark.parametrize("scheme", ["auto", "dynamic"])
def test_a_gpu_is_refused_whatever_the_scheme(
    scheme: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(target="gpu", scheme=scheme)
    with pytest.raises(ModelError, match="turned back into floats") as caught:
        quantize(float_model, task, config, tmp_path / "out")
    assert str(caught.value).count("target='gpu'") == 1 and "Try next" not in str(caught.value)
    assert not any(tmp_path.iterdir())


GATES: dict[str, Callable[[], object]] = {
    "products": lambda: check_products([ProductFindings("a", "8-bit", {"weights_gain": 1.1})]),
    "rest": lambda: check_float_nodes([TensorDifference("a", 1.0)]),
    "kernels": lambda: check_kernels({}, 1),
}


@pytest.mark.parametrize("gate", GATES)
def test_what_a_gate_raises_lets_another_scheme_be_tried(gate: str) -> None:
    with pytest.raises(quantizer.REFUSALS) as caught:
        GATES[gate]()
    assert type(caught.value) is not ModelError


def test_sums_that_saturate_end_the_search() -> None:
    """Every scheme adds with the same instructions."""
    with pytest.raises(ModelError, match="--target avx2") as caught:
        check_saturation({"a": 1.0})
    assert not isinstance(caught.value, quantizer.REFUSALS)


def test_an_unknown_scheme_is_refused(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"scheme 'dinamic'. Did you mean 'dynamic'"):
        quantize(float_model, task, QuantizeConfig(scheme="dinamic"), tmp_path / "out")


@pytest.mark.server
@pytest.mark.slow
@every_scheme
def test_the_endpoint_answers_as_the_artifact(
    scheme: str, sources: dict[str, Artifact], task: Task, tmp_path: Path
) -> None:
    """On the real Triton."""
    artifact = quantize(source_of(scheme, sources), task, config_of(scheme), tmp_path / "int8")
    texts = task.dev.examples[:6]
    labels, logits = one_by_one(open_classifier(artifact), texts)
    with served(artifact, tmp_path) as server:
        served_labels, served_logits = ask_one_by_one(server.http_url, texts)
    assert served_labels == labels
    assert np.abs(served_logits - logits).max() < 1e-4 * np.abs(logits).max()


def test_a_fused_graph_is_refused(sources: dict[str, Artifact], task: Task, tmp_path: Path) -> None:
    """By the stage alone; a step exports its model again."""
    fused = export(sources["torch"], task, ExportConfig(optimize="fused"), tmp_path / "fused")
    with pytest.raises(ModelError, match=r"fused operators.*again without --optimize fused"):
        quantizer.quantize(fused, task, config_of("dynamic"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["fused"]


@pytest.mark.one_path
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_static_too(
    family: str, task: Task, tmp_path: Path, plain_export: PlainExport
) -> None:
    """DeBERTa multiplies constants, which ONNX Runtime computes once; ALBERT's layers share."""
    _, graph = plain_export(family)
    config = config_of("static", target=target_for(family))
    found = quantize(graph, task, config, tmp_path / "int8").card.findings
    told = found.quantization
    assert told.running_in_integers == told.products > 8
    constants = [why for why in told.float_nodes.values() if "both sides are constants" in why]
    assert bool(constants) is (family == "deberta-v2")


def test_another_machine_s_graph_is_written_and_not_judged_here(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme="static", target="arm64", calibration_texts=32)
    artifact = quantize(float_model, task, config, tmp_path / "int8")
    told = artifact.card.findings.quantization
    assert told.running_in_integers is None and told.saturation is None
    kinds = {
        numpy_helper.to_array(item).dtype
        for item in onnx.load(onnx_file(artifact)).graph.initializer
        if item.name.endswith("_output_0_zero_point")
    }
    assert kinds == {np.dtype(np.int8)}


@pytest.mark.slow
def test_a_trained_model_says_its_score_and_is_not_trained_twice(
    sources: dict[str, Artifact], task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = quantizer.QuantizationContext.score
    monkeypatch.setattr(
        quantizer.QuantizationContext, "score", lambda self, graph: self.score_before - 0.02
    )
    with listed_steps() as steps, pytest.raises(AccuracyError, match="lost 2 points"):
        quantize(sources["torch"], task, config_of("qat", max_drop=1.0), tmp_path / "int8")
    assert steps
    monkeypatch.setattr(quantizer.QuantizationContext, "score", real)
    with no_training():  # only the bound is another
        kept = quantize(sources["torch"], task, config_of("qat"), tmp_path / "int8")
    told = kept.card.findings.scores
    assert 0 <= told.score_before <= 1 and 0 <= told.score <= 1
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]
