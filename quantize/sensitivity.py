"""Sensitivity of a model's parts to quantization, and scheme `mixed`, which leaves the worst in
float.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840) give more bits to layers with a more sensitive loss.
There the bits are set once, only by sensitivity; here parts return one at a time, the most
sensitive first, until the score on the validation texts has lost no more than `max_drop`.

The curvature of the loss along a part's weights is the trace or the top eigenvalue of its Hessian.
Multiplied by the squared error of the quantized weights, it is the second-order change of the loss
(Dong et al. 2020, HAWQ-V2, arXiv 1911.03852, eq. 11; Q-BERT uses the eigenvalue alone, |mean| +
standard deviation over parts of the data). As there, the loss is that of training examples with
their labels: with its own outputs, a confident model has no curvature. Departure: the eigenvalue is
found by Lanczos iteration, which takes fewer steps than the power iteration of these papers and
ends at the largest eigenvalue even if negative ones are larger in size.

The Hessian is never built: its product with a direction is the gradient of the gradient's product
with it, one pass through a graph of the gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import eigvalsh_tridiagonal
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.comparison.accuracy import predict
from bertender.core.artifact import Artifact, lineage
from bertender.core.errors import AccuracyError, ModelError
from bertender.core.findings import Curvature, SensitivityFindings
from bertender.core.progress import progress_bar, track
from bertender.models.classifier import load_torch_classifier, model_inputs
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import TensorBatch, token_dataset
from bertender.training.heads import head_of
from quantize.context import QuantizationContext, Writer, Written
from quantize.integers import INTEGERS, affine
from quantize.post_training import calibrated_ranges, write_dynamic, write_with_ranges

logger = logging.getLogger(__name__)

PARTS = 4
"""Parts of the texts, each with its own figure."""
MOST_STEPS = 32
CHANGE = 0.01
"""An eigenvalue has converged if the last two steps changed it by no more than this share."""
EXHAUSTED = 1e-5
"""Remainder of a direction that counts as 0, as a share of the largest absolute eigenvalue."""
FEWEST_PROBES, MOST_PROBES = 8, 32
STANDARD_ERROR = 0.1
"""A mean has converged if its standard error is no more than this share of it."""
LARGEST_OF_FOUR_BITS = 8
"""The largest absolute 4-bit integer."""

WriteExcept = Callable[[Path, Sequence[str]], Written]
"""(graph to write, nodes that stay at the higher level)"""
WeightError = Callable[[str, torch.Tensor], float]
"""(node, its weight) -> summed squared error of the quantized weight"""


class Mixed(Writer):
    """8 bits, except parts that must be in float for the score."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        nodes = [*(product.node for product in context.inventory.products), *context.tables]
        if context.config.base == "dynamic":
            write_except = partial(write_dynamic, context)
            return write_within_drop(context, target, write_except, FLOAT, nodes)
        ranges = calibrated_ranges(context)  # once, for all graphs to try

        def write(graph: Path, left: Sequence[str]) -> Written:
            return write_with_ranges(context, graph, ranges, left)

        return write_within_drop(context, target, write, FLOAT, nodes)


@dataclass(frozen=True)
class Level:
    """The level to which a part returns."""

    name: str
    bits: int
    """Bits of parts that have not returned."""
    may_take_all: bool
    """Whether a model is still quantized if all parts have returned."""
    tolerance: str
    """Row of TOLERANCES for a model with some returned parts."""


FLOAT = Level("float", bits=8, may_take_all=False, tolerance="int8")
EIGHT_BITS = Level("8 bits", bits=4, may_take_all=True, tolerance="int4")


def write_within_drop(
    context: QuantizationContext,
    target: Path,
    write: WriteExcept,
    level: Level,
    nodes: Sequence[str],
) -> Written:
    """Return parts to a higher level, the most sensitive first, until both gates pass.

    The score is checked first, then parity.

    Args:
        context: context, whose `max_drop` bounds the loss in score.
        target: path of the graph.
        write: quantizes all nodes except some.
        level: level to which parts return.
        nodes: parts that may return.

    Raises:
        AccuracyError: the score has fallen too far even with all of them returned.
    """
    allowed = context.config.max_drop
    assert allowed is not None
    drops: list[float] = []
    ranking: list[str] = []
    found = SensitivityFindings(by_node={}, drops=(), returned={})
    most = max(len(nodes) + level.may_take_all, 1)  # a graph with only LSTMs may have no such part
    with progress_bar(f"return to {level.name}", most) as bar:
        for count in range(most):
            if count == 1:  # usually no part has to return, and measuring sensitivity takes long
                found = measure(
                    context, write, nodes, partial(rounding_error, context, bits=level.bits)
                )
                ranking = [*found.by_node]
            written = write(target, ranking[:count])
            score = context.score(target)
            drops.append(context.drop(score))
            if drops[-1] <= allowed and context.agrees(target, level.tolerance):
                break
            bar.advance()
        else:
            raise AccuracyError(
                f"with one part of {len(nodes)} quantized, the model still lost {min(drops):.4g} "
                f"points of {context.task.metric} at best (max_drop={allowed:g}), or moved further "
                "from the float model than parity allows. Keep the float model, or try --scheme "
                "qat."
            )
    returned = {
        node: f"returned to {level.name}: number {place} of {len(ranking)} in sensitivity "
        f"({found.by_node[node]:.3g}); before it went back the score was {drop:.4g} points lower"
        for place, (node, drop) in enumerate(zip(ranking, drops[:-1], strict=False), start=1)
    }
    return replace(
        written,
        score=score,
        float_nodes={**written.float_nodes, **(returned if level is FLOAT else {})},
        sensitivity=found.model_copy(update={"drops": tuple(drops), "returned": returned}),
    )


def measure(
    context: QuantizationContext, write: WriteExcept, nodes: Sequence[str], error: WeightError
) -> SensitivityFindings:
    """Return the sensitivity of nodes by the config's row of SENSITIVITIES, the worst first."""
    if estimator := ESTIMATORS.get(context.config.sensitivity):
        return by_curvature(context, nodes, estimator, error)
    return leave_one_out(context, write, nodes)


def _ranked(
    by_node: Mapping[str, float], curvature: dict[str, Curvature] | None = None
) -> SensitivityFindings:
    ranked = dict(sorted(by_node.items(), key=lambda row: -row[1]))
    return SensitivityFindings(by_node=ranked, curvature=curvature, drops=(), returned={})


def leave_one_out(
    context: QuantizationContext, write: WriteExcept, nodes: Sequence[str]
) -> SensitivityFindings:
    """Return how much nearer the outputs are if only one node stays in float.

    The distance is the KL divergence from the float model's predictions on training texts.
    """
    texts = context.texts(context.config.sensitivity_texts, "").examples
    wanted, divergence = predict(context.classifier, texts), context.task.problem.divergence

    def loss(*left: str) -> float:
        graph = context.folder / "left-out.onnx"
        write(graph, left)
        return divergence(wanted, predict(context.opened(graph), texts))

    everything = loss()
    tracked = track(nodes, "leave one out", len(nodes))
    return _ranked({node: everything - loss(node) for node in tracked})


def by_curvature(
    context: QuantizationContext, nodes: Sequence[str], estimator: Estimator, error: WeightError
) -> SensitivityFindings:
    """Return each node's second-order loss: the curvature along its weight times its error."""
    source = _exported_from(context)
    model = load_torch_classifier(source, attn_implementation="eager").eval()
    weights, head = _weights(model, context, nodes), head_of(context.task.problem)
    generator = torch.Generator().manual_seed(context.config.seed)
    parts = []
    with progress_bar("curvature", PARTS * len(nodes)) as bar:
        for batch in _parts(context):
            logits = head.logits(model(**model_inputs(model, batch)), batch)
            loss = head.hard_loss(logits, batch)
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            parts.append(estimator(gradients, weights, generator))
            bar.advance(len(nodes))
    curvatures, by_node = {}, {}
    for node, weight, estimates in zip(nodes, weights, zip(*parts, strict=True), strict=True):
        values = torch.tensor([each.value for each in estimates])
        curvatures[node] = found = Curvature(
            mean=float(values.mean().abs()),
            deviation=float(values.std(unbiased=False)),
            steps=[each.steps for each in estimates],
            settled=all(each.settled for each in estimates),
        )
        by_node[node] = (found.mean + found.deviation) * error(node, weight.detach())
    if moving := [node for node, each in curvatures.items() if not each.settled]:
        logger.warning(
            "the curvature of %d of %d parts was still moving after %d steps (%s ...): the order "
            "of parts that are close may be chance. More --sensitivity-texts make it steadier.",
            len(moving),
            len(curvatures),
            max(max(each.steps) for each in curvatures.values()),
            moving[0],
        )
    return _ranked(by_node, curvatures)


def _exported_from(context: QuantizationContext) -> Artifact:
    """Return the torch artifact that the graph was exported from, or a torch source itself.

    Raises:
        ModelError: it is missing or was replaced.
    """
    reason = "it records none"
    for each in lineage(context.source):
        if isinstance(each, str):
            reason = each.rstrip(".")
        elif each.card.kind == "torch":
            return each
    raise ModelError(
        f"curvature needs the torch artifact that {context.source.place} was exported from "
        f"({reason}). Put it back there, or give --sensitivity "
        "leave-one-out, which needs the graph alone."
    )


def _parts(context: QuantizationContext) -> Iterator[TensorBatch]:
    """Yield some training examples, one batch per part."""
    tokenizer = load_tokenizer(context.source.path, context.config.max_length)
    split = context.drawn(context.config.sensitivity_texts)
    examples = token_dataset(split, tokenizer, context.task.problem_type)
    size = -(-len(examples) // PARTS)
    for start in range(0, len(examples), size):
        rows = range(len(examples))[start : start + size]
        yield examples.collate([examples[row] for row in rows])


def _weights(
    model: PreTrainedModel, context: QuantizationContext, nodes: Sequence[str]
) -> list[torch.nn.Parameter]:
    """Return the weights of nodes of the graph, in the exported model."""
    known = {name for name, _ in model.named_modules()}
    modules = {each.node: f"{each.module(known)}.weight" for each in context.inventory.products}
    names = {**modules, **context.inventory.tables}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for node in nodes:
        if names[node] not in parameters:
            raise ModelError(
                f"the model has no weight {names[node]!r}, which node {node!r} would be exported "
                "from. Give --sensitivity leave-one-out, which needs the graph alone."
            )
    return [parameters[names[node]] for node in nodes]


def rounding_error(
    context: QuantizationContext, node: str, weight: torch.Tensor, *, bits: int
) -> float:
    """Return the summed squared error of a weight (outputs, inputs) or table (entries, width).

    8-bit products have a scale for each output, 4-bit ones for each group of inputs; a table has
    one scale. It is an estimate if channels are smoothed or rounding is compensated: only the order
    of parts depends on it.
    """
    if bits == 8 and node in context.inventory.tables:
        low, high = map(float, weight.aminmax())
        values = weight.double().numpy()
        return float(((affine(low, high, INTEGERS["uint8"]).rounded(values) - values) ** 2).sum())
    rows, highest = weight, INTEGERS[context.target.weights].highest
    if bits == 4:
        size, highest = context.config.block_size, LARGEST_OF_FOUR_BITS
        rows = functional.pad(weight, (0, -weight.shape[1] % size)).reshape(-1, size)
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / highest
    return float(((rows / scale).round() * scale - rows).square().sum())


@dataclass(frozen=True)
class Estimate:
    """A figure of one weight's Hessian."""

    value: float
    steps: int
    """Number of products with the Hessian."""
    settled: bool
    """Whether it converged within the most steps."""


Estimator = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor], torch.Generator], list[Estimate]
]
"""(gradients of a loss, their weights, generator) -> a figure of each weight's Hessian"""


def top_eigenvalues(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> list[Estimate]:
    """Estimate the largest eigenvalue of each weight's own Hessian, by Lanczos iteration.

    This is the largest, not the largest in size: the Hessian of a labelled loss also has negative
    eigenvalues, where power iteration might end.
    """
    pairs = zip(gradients, weights, strict=True)
    return [_top_eigenvalue(gradient, weight, generator) for gradient, weight in pairs]


def _top_eigenvalue(
    gradient: torch.Tensor, weight: torch.Tensor, generator: torch.Generator
) -> Estimate:
    """Build the Hessian's tridiagonal form in the Krylov space of a random direction.

    Old directions are not stored, so rounding errors bring them back: an eigenvalue is then found
    twice, which does not change the largest.
    """
    direction = torch.randn(weight.shape, generator=generator)
    direction, before = direction / direction.norm(), torch.zeros_like(direction)
    diagonal: list[float] = []
    off_diagonal: list[float] = [0.0]
    tops: list[float] = []
    while len(tops) < MOST_STEPS:
        (image,) = torch.autograd.grad(gradient, weight, direction, retain_graph=True)
        image = image - off_diagonal[-1] * before
        diagonal.append(float((image * direction).sum()))
        image = image - diagonal[-1] * direction
        eigenvalues = eigvalsh_tridiagonal(diagonal, off_diagonal[1:])
        tops.append(float(eigenvalues[-1]))
        off_diagonal.append(float(image.norm()))
        has_settled = len(tops) > 2 and abs(tops[-1] - tops[-3]) <= CHANGE * abs(tops[-1])
        if has_settled or off_diagonal[-1] <= EXHAUSTED * float(np.abs(eigenvalues).max()):
            return Estimate(tops[-1], len(tops), settled=True)
        before, direction = direction, image / off_diagonal[-1]
    return Estimate(tops[-1], len(tops), settled=False)


def mean_diagonals(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> list[Estimate]:
    """Estimate the mean diagonal of each weight's Hessian, by Hutchinson's random signs.

    It probes all weights at once: the effect of one weight's signs on another's gradient has a mean
    of 0. Probes continue until all have converged, or to the maximum.
    """
    probes: list[torch.Tensor] = []
    settled = torch.zeros(len(weights), dtype=torch.bool)
    while len(probes) < MOST_PROBES and not settled.all():
        signs = [torch.randint(0, 2, each.shape, generator=generator) * 2.0 - 1 for each in weights]
        images = torch.autograd.grad(gradients, weights, signs, retain_graph=True)
        pairs = zip(signs, images, strict=True)
        probes.append(torch.stack([(sign * image).mean() for sign, image in pairs]))
        if len(probes) >= FEWEST_PROBES:
            drawn = torch.stack(probes)  # (probes, weights)
            error = drawn.std(dim=0) / len(probes) ** 0.5
            settled = error <= STANDARD_ERROR * drawn.mean(dim=0).abs()
    means = torch.stack(probes).mean(dim=0)
    return [
        Estimate(mean, len(probes), is_settled)
        for mean, is_settled in zip(means.tolist(), settled.tolist(), strict=True)
    ]


ESTIMATORS: Mapping[str, Estimator] = {
    "hessian-trace": mean_diagonals,
    "hessian-eigenvalue": top_eigenvalues,
}
