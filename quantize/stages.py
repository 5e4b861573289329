"""QUANTIZE: a graph with products of 8 or 4 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertender.comparison.runtimes import check_installed
from bertender.core.artifact import Artifact, check_writable
from bertender.core.config import on_demand
from bertender.recipes.stage import GRAPH_TO_QUANTIZE, Inputs, Product, Stage, Want
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.integers import target_of
from quantize.quantize_config import QuantizeConfig
from quantize.schemes import AUTO_SCHEME, SCHEMES


def _quantize(inputs: Inputs, config: QuantizeConfig, out: Path) -> Artifact:
    """Quantize the source; schemes that train are handed the way to a graph.

    A scheme that starts from a graph takes a torch artifact too, which is exported before.
    """
    from quantize.quantizer import quantize

    source = inputs.sources[0]
    trains = config.scheme != AUTO_SCHEME and SCHEMES[config.scheme].source == "torch"
    if source.card.kind == "torch" and not trains:
        check_writable(out, source)
        source = inputs.provided["export.cached"](source, inputs.task)

    def write(trained: Artifact, directory: Path) -> None:
        inputs.provided["export.write"](trained, inputs.task, directory)

    return quantize(source, inputs.task, config, out, write_onnx=write)


def _wants(config: QuantizeConfig, position: int) -> Want:
    """Return what a scheme starts from; one that trains also exports, with default settings."""
    from quantize.attention import check_attention

    attention = (check_attention,) if config.fused_attention else ()
    if config.scheme == AUTO_SCHEME:
        return replace(GRAPH_TO_QUANTIZE, class_checks=attention)
    scheme = SCHEMES[config.scheme]
    exported = STAGES["export"].wants(STAGES["export"].config(), position)
    want = exported if scheme.source == "torch" else GRAPH_TO_QUANTIZE
    return replace(want, class_checks=(scheme.check, *attention, *want.class_checks))


def _makes(config: QuantizeConfig) -> Product:
    """Return what is written; a scheme that is chosen on the way has 8 bits."""
    precision = "int8" if config.scheme == AUTO_SCHEME else SCHEMES[config.scheme].precision(config)
    return Product("quantize", "onnx", precision=precision)


def _check(config: QuantizeConfig, task: Task) -> None:
    target_of(config.target)
    check_installed(config.runtime)


QUANTIZE = Stage(
    name="quantize",
    config=QuantizeConfig,
    function=_quantize,
    uses=("export.write", "export.cached"),
    provides={
        "failures": on_demand("quantize.verification:failures_if_quantized"),
        "write": on_demand("quantize.quantizer:write_graph"),
    },
    source="artifact",
    wants=_wants,
    makes=_makes,
    check=_check,
)
