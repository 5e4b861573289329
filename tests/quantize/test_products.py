"""Each quantized product beside its float original: healthy ones pass, planted faults are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.faults import PRODUCT_FAULTS, planted
from bertender.core.errors import GateError, ModelError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize import quantizer
from quantize.config import QuantizeConfig
from quantize.context import QuantizationContext, Written
from quantize.product_check import BOUNDS, WRONG, ProductFindings, check_products
from quantize.quantizer import WRITERS
from tests.quantize.contexts import compared, context_of, write
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import ranking_task

LAYERS = 6
SCHEME_SETTINGS = {
    "dynamic": {"scheme": "dynamic"},
    "static": {"scheme": "static", "calibration_texts": 64},
}
PLANTED = [(name, scheme) for name, (_, schemes) in PRODUCT_FAULTS.items() for scheme in schemes]
PLACES = ("attention/self/query", "output/dense")


@pytest.fixture(scope="module", params=SCHEME_SETTINGS)
def quantized(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, QuantizationContext, Path, Written]:
    """Graphs of an encoder of six layers, by scheme."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_classifier("bert", num_hidden_layers=LAYERS)
    source = save_artifact(model, task, folder / "source")
    floats = export(source, task, ExportConfig(), folder / "onnx")
    context = context_of(floats, task, folder, **SCHEME_SETTINGS[request.param])
    written = write(request.param, context, folder / "model.onnx")
    return request.param, context, folder / "model.onnx", written


def ranges_of(written: Written) -> dict[str, tuple[float, float]]:
    return dict(written.ranges)


def test_healthy_products_and_tables_pass(
    quantized: tuple[str, QuantizationContext, Path, Written],
) -> None:
    _, context, graph, written = quantized
    findings = compared(context.graph, graph, context.texts(64, ""), ranges_of(written))
    assert [each.kind for each in findings].count("8-bit") == 6 * LAYERS + 2
    assert [each.kind for each in findings].count("table") == 3
    assert not [each for each in findings if each.failures]
    check_products(findings)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", PRODUCT_FAULTS)
def test_a_fault_of_one_product_is_caught_and_named(
    fault: str,
    place: str,
    quantized: tuple[str, QuantizationContext, Path, Written],
    tmp_path: Path,
) -> None:
    scheme, context, graph, written = quantized
    plant, schemes = PRODUCT_FAULTS[fault]
    if scheme not in schemes:
        pytest.skip(f"{scheme} has no such part")
    product, other = (
        next(each for each in context.inventory.products if f"layer.{layer}/{place}" in each.node)
        for layer in (2, 3)
    )
    broken = planted(graph, plant, product, other, tmp_path / "broken.onnx")
    findings = compared(context.graph, broken, context.texts(64, ""), ranges_of(written))
    failed = {each.node for each in findings if each.failures}
    same_input = {
        each.node for each in context.inventory.products if each.activation == product.activation
    }
    assert product.node in failed
    assert failed <= {other.node, *same_input}, "no other is blamed"
    with pytest.raises(
        ModelError, match=r"differ from the float ones.* is .*, allowed is .*again, with"
    ):
        check_products(findings)


NEXT_STEPS = [
    (["8-bit"], ["--calibrator"], ["--no-embeddings"]),
    (["4-bit"], ["--scheme"], ["--no-embeddings"]),
    (["table"], ["--no-embeddings"], ["--calibrator", "--scheme"]),
    (["table", "8-bit", "table"], ["--no-embeddings", "--calibrator"], []),
]


@pytest.mark.parametrize(("kinds", "named", "unnamed"), NEXT_STEPS)
def test_the_next_step_is_one_that_helps(
    kinds: list[str], named: list[str], unnamed: list[str]
) -> None:
    with pytest.raises(GateError) as caught:
        check_products([ProductFindings("a", kind, {"weights_gain": 1.1}) for kind in kinds])
    counts = {flag: str(caught.value).count(flag) for flag in (*named, *unnamed)}
    assert counts == {**dict.fromkeys(named, 1), **dict.fromkeys(unnamed, 0)}


def test_every_figure_of_every_kind_is_bounded() -> None:
    assert set(BOUNDS) == set(WRONG) == {"8-bit", "4-bit", "table", "4-bit table"}
    for bounds in BOUNDS.values():
        for name, (low, high) in bounds.items():
            assert low < high, name


def test_four_bits_have_bounds_of_their_own(
    quantized: tuple[str, QuantizationContext, Path, Written], tmp_path: Path
) -> None:
    _, context, _, _ = quantized
    write("four-bit", context, tmp_path / "model.onnx")
    findings = compared(context.graph, tmp_path / "model.onnx", context.texts(64, ""))
    assert [each.kind for each in findings].count("4-bit") == 6 * LAYERS
    assert not [each for each in findings if each.failures]


@pytest.fixture(scope="module", params=SCHEME_SETTINGS)
def cancelling(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[QuantizationContext, Path]:
    """Graphs with one output, a score of passages, in whose product the inputs cancel: whatever
    pooled states have most of adds nothing to a score."""
    folder, task = tmp_path_factory.mktemp(request.param), ranking_task()
    model = tiny_classifier("bert", 1)
    batch = open_classifier(save_artifact(model, task, folder / "encoder")).encode(
        task.train.examples[:32]
    )
    with torch.no_grad():
        inputs = {name: torch.as_tensor(array) for name, array in batch.arrays.items()}
        pooled = model.bert(**inputs).pooler_output
        most = torch.linalg.svd(pooled, full_matrices=False).Vh[:8]
        model.classifier.weight -= model.classifier.weight @ most.T @ most
    source = save_artifact(model, task, folder / "source")
    floats = export(source, task, ExportConfig(), folder / "onnx")
    context = context_of(floats, task, folder, **SCHEME_SETTINGS[request.param])
    write(request.param, context, folder / "model.onnx")
    return context, folder / "model.onnx"


def test_a_product_whose_inputs_cancel_is_judged_by_its_weights(
    cancelling: tuple[QuantizationContext, Path], tmp_path: Path
) -> None:
    context, graph = cancelling
    texts, scorer = context.texts(64, ""), context.inventory.products[-1]
    assert scorer.outputs == 1
    assert not [each for each in compared(context.graph, graph, texts) if each.failures]
    plant, _ = PRODUCT_FAULTS["weight scale x1.1"]
    broken = planted(graph, plant, scorer, scorer, tmp_path / "broken.onnx")
    failed = [each for each in compared(context.graph, broken, texts) if each.failures]
    assert [each.node for each in failed] == [scorer.node]
    assert failed[0].figures["weights_gain"] == pytest.approx(1.1, abs=0.01)


def test_the_worst_few_are_recorded(
    quantized: tuple[str, QuantizationContext, Path, Written],
) -> None:
    _, context, graph, _ = quantized
    findings = compared(context.graph, graph, context.texts(64, ""))
    summary = check_products(findings)
    assert summary.checked == len(findings)
    worst = [min(v for k, v in row.figures.items() if "snr" in k) for row in summary.worst.values()]
    assert worst == sorted(worst) and len(worst) == 5


def test_a_wrong_scale_refuses_the_artifact(
    quantized: tuple[str, QuantizationContext, Path, Written],
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One product of 38, a tenth too large: the outputs alone do not show it."""
    scheme, context, _, _ = quantized
    sound = WRITERS[scheme].write

    def write(context: QuantizationContext, target: Path) -> Written:
        written = sound(context, target)
        product, other = context.inventory.products[:2]
        planted(target, PRODUCT_FAULTS["weight scale x1.1"][0], product, other, target)
        return written

    monkeypatch.setattr(WRITERS[scheme], "write", write)
    config = QuantizeConfig(target="vnni", **SCHEME_SETTINGS[scheme])
    node = context.inventory.products[0].node
    with pytest.raises(ModelError, match=f"{node}: weights_gain is 1.1, allowed is 0.96 to 1.04"):
        quantizer.quantize(context.source, task, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
