"""Weights of 2 to 4 bits: which products have them, what is learned, and the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import load_torch_classifier, onnx_file, open_classifier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.config import QuantizeConfig
from quantize.graph import FOUR_BIT_LOOKUP
from tests.quantize.contexts import HERE, QAT_QUICK, context_of, write
from tests.toy_models import save_artifact, tiny_classifier

EQUAL: dict[str, Any] = {"calibration_texts": 32, "weight_groups": 4, **QAT_QUICK}
BITS = (2, 3, 4)


def made(task: Task, folder: Path, family: str = "bert", **settings: Any) -> Artifact:
    source = save_artifact(tiny_classifier(family), task, folder / "source")
    config = QuantizeConfig(scheme="q-bert", **{"target": "vnni", **EQUAL, **settings})
    return STAGES["quantize"].make([source], task, config, folder / "small")


@pytest.fixture(scope="module")
def usual(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Of 3 bits; its source is next to it."""
    return made(task, tmp_path_factory.mktemp("usual"), weight_bits=3)


@pytest.fixture(scope="module", params=BITS)
def in_two_groups(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """Of so many bits; its source is next to it."""
    folder = tmp_path_factory.mktemp("groups")
    return made(task, folder, weight_bits=request.param, weight_groups=2)


def source_of(artifact: Artifact) -> Artifact:
    return Artifact.load(artifact.path.parent / "source")


@pytest.mark.one_path
def test_products_of_layers_have_few_bits_and_others_eight(in_two_groups: Artifact) -> None:
    """The others are the pooler and the classifier."""
    bits = in_two_groups.card.config["weight_bits"]
    found = in_two_groups.card.findings.quantization
    assert in_two_groups.card.precision == f"int{bits}"
    assert set(found.weight_bits.values()) == {bits}
    assert all("/encoder/layer" in node for node in found.weight_bits)
    assert found.products == found.running_in_integers == len(found.weight_bits) + 2


@pytest.mark.one_path
def test_the_file_stores_so_many_bits(in_two_groups: Artifact) -> None:
    stored = onnx.load(onnx_file(in_two_groups)).graph.initializer
    packed = sum(np.prod(item.dims) for item in stored if item.name.endswith("_bytes"))
    layers = load_torch_classifier(source_of(in_two_groups)).bert.encoder
    values = sum(each.numel() for each in layers.parameters() if each.ndim == 2)
    assert packed == in_two_groups.card.config["weight_bits"] * values / 8


@pytest.mark.one_path
def test_scales_are_shared_in_groups(in_two_groups: Artifact) -> None:
    graph = onnx.load(onnx_file(in_two_groups)).graph
    stored = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    scales = [value for name, value in stored.items() if name.endswith("_scale") and value.ndim]
    few = [value for value in scales if len(np.unique(value)) == 2]
    assert len(few) >= 24, "six products of each of four layers"


@pytest.mark.one_path
@pytest.mark.parametrize("bits", BITS)
def test_the_graph_computes_as_the_model_that_was_trained(
    bits: int, task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    (tmp_path / "draft").mkdir()
    context = context_of(source, task, tmp_path, scheme="q-bert", weight_bits=bits, **EQUAL)
    written = write("q-bert", context, tmp_path / "draft" / "model.onnx")
    assert written.reference is not None
    texts = task.dev.examples
    wanted = written.reference.logits(texts)
    found = context.opened(tmp_path / "draft" / "model.onnx").logits(texts)
    assert np.abs(found - wanted).mean() < 0.003 * np.abs(wanted).max()


def test_tables_of_4_bits_compute_as_the_model_that_was_trained(task: Task, tmp_path: Path) -> None:
    settings = {"table_bits": 4, "block_size": 16, **EQUAL}
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    (tmp_path / "draft").mkdir()
    context = context_of(source, task, tmp_path, scheme="q-bert", **settings)
    target = tmp_path / "draft" / "model.onnx"
    written = write("q-bert", context, target)
    assert written.reference is not None and written.tables_of_4_bits == 1
    lookups = [node for node in onnx.load(target).graph.node if node.op_type == FOUR_BIT_LOOKUP]
    assert [node.input[0] for node in lookups] == ["bert.embeddings.word_embeddings.weight_4_bits"]
    wanted = written.reference.logits(task.dev.examples)
    found = context.opened(target).logits(task.dev.examples)
    assert np.abs(found - wanted).mean() < 0.003 * np.abs(wanted).max()


def test_a_table_of_an_odd_width_is_refused_before_the_training(task: Task, tmp_path: Path) -> None:
    odd = tiny_classifier("bert", hidden_size=9, num_attention_heads=3)
    source = save_artifact(odd, task, tmp_path / "source")
    context = context_of(source, task, tmp_path, scheme="q-bert", table_bits=4, **EQUAL)
    with pytest.raises(ModelError, match="has no embedding table that can have 4 bits"):
        write("q-bert", context, tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("family", ["albert", "distilbert"])
def test_tables_of_4_bits_of_other_families(family: str, task: Task, tmp_path: Path) -> None:
    found = made(task, tmp_path, family, table_bits=4, block_size=16).card.findings.quantization
    assert found.tables_of_4_bits == 1


def test_tables_of_4_bits_pass_the_gates(usual: Artifact, task: Task, tmp_path: Path) -> None:
    small = made(task, tmp_path, table_bits=4, block_size=16)
    found = small.card.findings.quantization
    assert (found.tables_of_4_bits, found.running_in_integers) == (1, found.products)
    assert _bytes(small) < _bytes(usual)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"table_bits": 2}, "table_bits=2: such tables have no look-up"),
        ({"table_bits": 4, "no_embeddings": True}, "leaves in float the tables"),
        ({"table_bits": 4, "runtime": "openvino"}, "has no look-up in tables of 4 bits"),
        ({"block_size": 16}, "Give --table-bits 4 too"),
    ],
)
def test_tables_of_no_such_bits_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        QuantizeConfig.parse({"scheme": "q-bert", **settings})


def test_bits_are_allotted_by_the_trace_by_default() -> None:
    def sensitivity(**settings: Any) -> str:
        return QuantizeConfig.parse({"weight_bits": 2, **settings}).sensitivity

    more = {"scheme": "q-bert", "sensitive_bits": 4}
    assert sensitivity(**more) == "hessian-trace"
    assert sensitivity(**more, sensitivity="hessian-eigenvalue") == "hessian-eigenvalue"
    assert sensitivity(scheme="q-bert") == "leave-one-out"
    config = QuantizeConfig.parse(more)
    assert not config.is_explicit("sensitivity")
    assert config.changed({"sensitive_bits": None}).sensitivity == "leave-one-out"
    with pytest.raises(ConfigError, match="Leave --sensitivity out"):
        sensitivity(**more, sensitivity="leave-one-out")


def test_bits_follow_the_curvature(task: Task, tmp_path: Path) -> None:
    settings = {"sensitivity": "hessian-trace", "sensitivity_texts": 16, "sensitive_share": 0.25}
    artifact = made(task, tmp_path, weight_bits=2, sensitive_bits=4, **settings)
    found = artifact.card.findings.quantization
    ranking = list(found.sensitivity.by_node)
    assert [found.sensitivity.by_node[node] for node in ranking] == sorted(
        found.sensitivity.by_node.values(), reverse=True
    )
    assert {node for node, bits in found.weight_bits.items() if bits == 4} == {
        *ranking[: round(0.25 * len(ranking))]
    }
    assert found.sensitivity.curvature.keys() == found.weight_bits.keys()


@pytest.mark.slow
def test_training_lowers_the_loss(task: Task, tmp_path: Path) -> None:
    losses = made(task, tmp_path, epochs=4, learning_rate=1e-3).card.findings.training.losses
    assert losses[-1]["hard"] < 0.9 * losses[0]["hard"]


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("family", ["albert", "distilbert", "mobilebert", "modernbert"])
def test_other_families(family: str, task: Task, tmp_path: Path) -> None:
    """Among them one whose layers share their weights, and products between tables and layers."""
    artifact = made(task, tmp_path, family)
    assert open_classifier(artifact).logits(task.dev.examples).shape == (len(task.dev), 2)
    found = artifact.card.findings.quantization
    assert set(found.weight_bits.values()) == {3}
    assert all("layer" in node for node in found.weight_bits)
    assert len(found.weight_bits) < found.products


@pytest.mark.slow
def test_the_least_share_is_one_weight(task: Task, tmp_path: Path) -> None:
    settings = {"sensitivity": "hessian-trace", "sensitivity_texts": 8, "sensitive_share": 0.001}
    artifact = made(task, tmp_path, weight_bits=2, sensitive_bits=3, **settings)
    bits = [*artifact.card.findings.quantization.weight_bits.values()]
    assert bits.count(3) == 1 and bits.count(2) == len(bits) - 1


@pytest.mark.slow
def test_openvino_multiplies_in_integers(task: Task, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = made(task, tmp_path, runtime="openvino", target=HERE).card.findings.quantization
    assert found.runtime == "openvino" and found.running_in_integers == found.products


def test_an_lstm_is_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has an LSTM.*--scheme dynamic"):
        made(task, tmp_path, "bertender-bilstm")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_model_without_layers_is_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no layers, whose weights.*--scheme dynamic"):
        made(task, tmp_path, "bertender-static")


def test_the_source_is_left_as_it_was(usual: Artifact) -> None:
    source = source_of(usual)
    assert usual.card.parent.digest == source.digest
    names = {name for name, _ in load_torch_classifier(source).named_parameters()}
    assert not any("parametrizations" in name for name in names)


def _bytes(artifact: Artifact) -> int:
    return onnx_file(artifact).stat().st_size
