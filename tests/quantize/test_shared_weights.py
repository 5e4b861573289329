"""A weight that is rounded for one product is so in the other product that reads it.

Of more than 7 bits, ONNX Runtime opens such products on CPUs with 8-bit dot products alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import GateError
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export, write_onnx
from quantize.config import SCHEMES
from quantize.graph import take_inventory
from quantize.product_check import check_products
from quantize.quantizer import quantize
from tests.quantize.contexts import HERE, compared, config_of, context_of, write
from tests.quick import quick
from tests.toy_models import save_artifact, tiny_classifier


@pytest.fixture(scope="module", params=quick(("none", "layer_norm"), "layer_norm"))
def source(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """A DeBERTa whose keys of positions are those of contents, as in DeBERTa-v3."""
    model = tiny_classifier("deberta-v2", share_att_key=True, norm_rel_ebd=request.param)
    return save_artifact(model, task, tmp_path_factory.mktemp("shared") / "source")


@pytest.fixture(scope="module")
def exported(source: Artifact, task: Task) -> Artifact:
    return export(source, task, ExportConfig(), source.path.parent / "onnx")


@pytest.mark.parametrize("scheme", quick(SCHEMES, "dynamic"))
def test_every_scheme_passes_its_own_gates(
    scheme: str, source: Artifact, exported: Artifact, task: Task, tmp_path: Path
) -> None:
    made_of = exported if SCHEMES[scheme].source == "onnx" else source

    def write(trained: Artifact, directory: Path) -> None:
        write_onnx(trained, task, ExportConfig(), directory)

    config = config_of(scheme, target=HERE)
    quantized = quantize(made_of, task, config, tmp_path / "quantized", write_onnx=write)
    assert quantized.card.findings.quantization.products


def test_another_rounding_of_positions_is_found(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    """Here the keys of positions read the shared weight by a scale that is a fifth too large."""
    context = context_of(exported, task, tmp_path, HERE)
    graph = tmp_path / "model.onnx"
    write("dynamic", context, graph)
    texts = context.texts(16, "")
    check_products(compared(onnx_file(exported), graph, texts))
    model = onnx.load(graph)
    products = {each.node: each.weight for each in take_inventory(onnx_file(exported)).of_constants}
    assert len(products) == 8, "keys and queries of positions in four layers"
    weight = next(iter(products.values()))
    rounded = next(node for node in model.graph.node if weight in node.output)
    assert rounded.op_type == "DequantizeLinear"
    scale = next(item for item in model.graph.initializer if item.name == rounded.input[1])
    larger = numpy_helper.from_array(
        (1.2 * numpy_helper.to_array(scale)).astype(np.float32), "larger"
    )
    model.graph.initializer.append(larger)
    rounded.input[1] = "larger"
    onnx.save(model, graph)
    with pytest.raises(GateError, match=r"weights_gain is 1\.[12]"):
        check_products(compared(onnx_file(exported), graph, texts))
