"""The checks of a quantized graph against the float graph that it was made of, for `verify`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bertender.core.artifact import Artifact, lineage
from bertender.models.classifier import onnx_file, problem_of
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from quantize.attention import in_plain_form
from quantize.context import Batches
from quantize.graph import TOLERATED, TensorDifference
from quantize.graph_check import compare_attentions, compare_rest
from quantize.product_check import NO_RANGES, compare_products
from quantize.quantizer import PROBED_TEXTS


def float_twin(reference: Artifact, candidate: Artifact) -> Artifact | None:
    """Return the float graph that a candidate was quantized from, where it is there.

    It is the reference itself, or an export of it among the candidate's ancestors.
    """
    if candidate.card.kind != "onnx" or candidate.card.stage != "quantize":
        return None
    made_of = [each for each in lineage(candidate) if isinstance(each, Artifact)]
    digests = {each.digest for each in made_of}
    floats = [
        each for each in made_of if each.card.kind == "onnx" and each.card.precision == "float32"
    ]
    return floats[0] if floats and reference.digest in digests else None


def failures_if_quantized(
    reference: Artifact, candidate: Artifact, task: Task
) -> tuple[str, ...] | None:
    """Return what is wrong in a quantized graph next to its float twin.

    None without such a twin: the artifact is not quantized, or was made from another
    graph than the reference's.
    """
    floats = float_twin(reference, candidate)
    return None if floats is None else graph_failures(floats, candidate, task)


def graph_failures(floats: Artifact, candidate: Artifact, task: Task) -> tuple[str, ...]:
    """Return every product, table or tensor between them that is not what the float graph has.

    Args:
        floats: the `float_twin` of the candidate.
        candidate: a quantized graph.
        task: the graphs run on its training texts.
    """
    problem = problem_of(floats)
    encode = problem.encoder(load_tokenizer(floats.path))
    texts = Batches(encode, task.calibration.examples[:PROBED_TEXTS], "check products", problem)
    quantization = candidate.card.findings.quantization
    float_graph, graph = onnx_file(floats), onnx_file(candidate)
    with TemporaryDirectory() as folder:
        plain = in_plain_form(float_graph, graph, Path(folder))
        products = compare_products(
            float_graph, plain, texts, quantization.ranges if quantization else NO_RANGES
        )
        rest = compare_rest(float_graph, plain, texts)
        attentions = compare_attentions(plain, graph, texts)
    return (
        *(f"product {each.node}: {', '.join(each.failures)}" for each in products if each.failures),
        *(f"before {_off(each)}" for each in rest if not each.is_tolerated),
        *(f"fused attention {_off(each)}" for each in attentions if not each.is_tolerated),
    )


def _off(beyond: TensorDifference) -> str:
    return f"{beyond.tensor}: off by {beyond.difference:.2g}, allowed at most {TOLERATED:g}"
