"""Checks of a quantized graph other than parity: kernels, sums, products, the rest, the score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertender.core.errors import AccuracyError
from bertender.core.findings import Findings, QuantizationFindings, ScoreFindings, TriedScheme
from bertender.measure.constant import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.models.onnx_session import LEFT_OUT, SESSION_CONFIG
from quantize.attention_check import check_attentions, compare_attentions
from quantize.context import QuantizationContext, Written
from quantize.kernels import KERNELS, check_kernels, operators
from quantize.part_findings import check_products, summary_of
from quantize.plain_attention import in_plain_form
from quantize.products import judge_products
from quantize.rest import check_rest, compare_rest
from quantize.saturation import probe
from quantize.targets import runs_here
from quantize.twins import find_twins, sample_rows

__all__ = ["PROBED_TEXTS", "proven"]

PROBED_TEXTS = 64
"""Training texts on whose activations each product is checked."""


def proven(
    context: QuantizationContext,
    graph: Path,
    written: Written,
    target: str,
    tried: Sequence[TriedScheme] = (),
) -> Findings:
    """Return the findings of a graph for its artifact; raise what is wrong with it.

    Kernels and saturation are checked only where this machine computes as the target does.

    Args:
        context: the quantization.
        graph: as the scheme wrote it.
        written: the scheme's report on it.
        target: the row of TARGETS that will serve it.
        tried: schemes that were refused or skipped before.
    """
    runtime = context.config.runtime
    here, kernels = runs_here(target, runtime), operators(graph, runtime)
    count = len(written.quantized)
    running = check_kernels(kernels, count, runtime) if here else None
    quantization = QuantizationFindings(
        target=target,
        runtime=runtime,
        products=count,
        running_in_integers=running,
        float_nodes=written.float_nodes,
        operators=kernels,
        products_of_4_bits=written.products_of_4_bits,
        weight_bits=written.weight_bits,
        tables_of_4_bits=written.tables_of_4_bits,
        fused_attentions=written.fused_attentions,
        ranges=written.ranges,
        sensitivity=written.sensitivity,
        tried=tried,
        **_parts(context, graph, written, here),
    )
    scores = _scores(context, graph, written.score)
    if scores and written.training:
        _check_learned(context, scores)
    return Findings(
        training=written.training,
        scores=scores,
        quantization=quantization,
        left_out_optimizers=LEFT_OUT,
        session_config=SESSION_CONFIG,
    )


def _check_learned(context: QuantizationContext, scores: ScoreFindings) -> None:
    """Raise ConstantError where a model that was trained has learned nothing but one label."""
    config = context.config
    settings = ("scheme", *SETTINGS_OF_RUN)
    advice = f"{another_rate(config)}, more epochs, or a scheme that does not train"
    check_varied(scores, context.task, config, settings, advice)


def _parts(
    context: QuantizationContext, graph: Path, written: Written, here: bool
) -> dict[str, Any]:
    """Return how each part computes, alone; raise GateError where one computes something else.

    Where this CPU's sums are wrong, it is a ModelError: no other scheme adds otherwise. A fused
    attention that computes something else is one, too.
    """
    floats = written.float_graph or context.graph
    plain = in_plain_form(floats, graph, context.folder)
    twins = find_twins(floats, plain)
    samples = sample_rows(plain, twins, context.texts(PROBED_TEXTS, "check products"))
    saturation = probe(twins, samples, KERNELS[context.config.runtime].run) if here else None
    findings = judge_products(twins, samples, written.ranges)
    check_products(findings)
    rest = compare_rest(floats, plain, context.texts(PROBED_TEXTS, "check the rest"))
    check_rest(rest)
    texts = context.texts(PROBED_TEXTS, "check attention")
    check_attentions(compare_attentions(plain, graph, texts))
    return {
        "saturation": saturation,
        "product_check": summary_of(findings),
        "largest_difference_between_products": max(each.difference for each in rest),
    }


def _scores(context: QuantizationContext, graph: Path, known: float | None) -> ScoreFindings | None:
    """Return the scores before and after, where something was trained or a drop is bounded.

    Raises:
        AccuracyError: the score fell by more than `max_drop`.
    """
    allowed = context.config.max_drop
    if allowed is None and context.source.card.kind == "onnx":
        return None
    after = context.score(graph) if known is None else known
    if allowed is not None and context.drop(after) > allowed:
        raise AccuracyError(
            f"the quantized model lost {context.drop(after):.4g} points of {context.task.metric} "
            f"on {len(context.task.choices)} texts of {context.task.chosen_on} "
            f"({context.score_before:.4f} to {after:.4f}), and max_drop={allowed:g} allows no "
            "more. Schemes that lose less: mixed returns parts to float until it holds, qat "
            "trains; a trained model may need more epochs."
        )
    return context.held_out_scores(graph, after)
