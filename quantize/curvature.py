"""Loss by quantizing each part of a model: measured alone, or by curvature."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.comparison.accuracy import predict
from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.core.findings import Curvature
from bertender.core.progress import progress_bar, track
from bertender.models.classifier import load_torch_classifier
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS
from quantize.context import QuantizationContext, Sensitivities
from quantize.integers import INTEGERS, affine
from quantize.sensitivity import Write

# --- from quantize.hessian
# Figures of a Hessian that is never written out: top eigenvalues, and means of the diagonal.
#
# The Hessian times a direction is the gradient of the gradient's product with it: one pass
# through a
# graph of the gradients. Each estimate has the number of such products, and whether it settled.

MOST_STEPS = 32
CHANGE = 0.01
"""An eigenvalue has settled where the last two steps changed it by no more than this share."""
EXHAUSTED = 1e-5
"""Of the largest eigenvalue in size: the remainder of a direction that is fully known."""
FEWEST_PROBES, MOST_PROBES = 8, 32
STANDARD_ERROR = 0.1
"""A mean has settled where its standard error is no more than this share of it."""


@dataclass(frozen=True)
class Estimate:
    """A figure of one weight's Hessian."""

    value: float
    steps: int
    """Products with the Hessian that it took."""
    settled: bool
    """False where it was still moving at the most steps allowed."""


Advance = Callable[[int], object]
"""Receives the number of weights that are done."""

Estimator = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor], torch.Generator, Advance], list[Estimate]
]
"""(gradients of a loss, the weights they are by, generator, advance) -> a figure of each weight's
Hessian"""


def _silent(count: int) -> None:
    """Report no progress."""


def top_eigenvalues(
    gradients: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    generator: torch.Generator,
    advance: Advance = _silent,
) -> list[Estimate]:
    """Estimate the largest eigenvalue of each weight's own Hessian, by Lanczos's iteration.

    The largest, not the largest in size: of a labelled loss the Hessian has negative eigenvalues,
    too, and power iteration would end at one of those, or between both.
    """
    estimates = []
    for gradient, weight in zip(gradients, weights, strict=True):
        estimates.append(_top_eigenvalue(gradient, weight, generator))
        advance(1)
    return estimates


def _top_eigenvalue(
    gradient: torch.Tensor, weight: torch.Tensor, generator: torch.Generator
) -> Estimate:
    """Build the Hessian's tridiagonal form in the directions that it turns a random one into.

    Old directions are not stored and come back by rounding errors: an eigenvalue is then found
    twice, which leaves the largest what it is.
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
        eigenvalues = _tridiagonal_eigenvalues(diagonal, off_diagonal[1:])
        tops.append(float(eigenvalues[-1]))
        off_diagonal.append(float(image.norm()))
        if off_diagonal[-1] <= EXHAUSTED * float(np.abs(eigenvalues).max()) or _has_settled(tops):
            return Estimate(tops[-1], len(tops), settled=True)
        before, direction = direction, image / off_diagonal[-1]
    return Estimate(tops[-1], len(tops), settled=False)


def _tridiagonal_eigenvalues(
    diagonal: Sequence[float], off_diagonal: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the eigenvalues of a symmetric tridiagonal matrix, in ascending order."""
    matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    return np.linalg.eigvalsh(matrix)


def _has_settled(values: Sequence[float]) -> bool:
    return len(values) > 2 and abs(values[-1] - values[-3]) <= CHANGE * abs(values[-1])


def mean_diagonals(
    gradients: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    generator: torch.Generator,
    advance: Advance = _silent,
) -> list[Estimate]:
    """Estimate the mean of each weight's Hessian's diagonal, by Hutchinson's random signs.

    All weights at once: the effect of one weight's signs on another's gradient has a mean of 0.
    Probes continue until all have settled, or to the most allowed.
    """
    probes: list[torch.Tensor] = []
    settled = torch.zeros(len(weights), dtype=torch.bool)
    while len(probes) < MOST_PROBES and not settled.all():
        probes.append(_probe(gradients, weights, generator))
        if len(probes) >= FEWEST_PROBES:
            drawn = torch.stack(probes)  # (probes, weights)
            error = drawn.std(dim=0) / len(probes) ** 0.5
            settled = error <= STANDARD_ERROR * drawn.mean(dim=0).abs()
    means = torch.stack(probes).mean(dim=0)
    advance(len(weights))
    return [
        Estimate(mean, len(probes), is_settled)
        for mean, is_settled in zip(means.tolist(), settled.tolist(), strict=True)
    ]


def _probe(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """Return one noisy mean of each weight's diagonal: (weights,)."""
    signs = [
        torch.randint(0, 2, weight.shape, generator=generator).float() * 2 - 1 for weight in weights
    ]
    images = torch.autograd.grad(gradients, weights, signs, retain_graph=True)
    return torch.stack([(sign * image).mean() for sign, image in zip(signs, images, strict=True)])


# --- from quantize.curvature
# Curvature of the loss along a part's weights: trace and top eigenvalue of its Hessian.
#
# Both times the squared error that quantizing makes in the weights: the second-order change of
# the
# loss (Dong et al. 2020, HAWQ-V2, arXiv 1911.03852, eq. 11; Q-BERT, arXiv 1909.05840, takes the
# eigenvalue alone, |mean| + standard deviation over parts of the data). The loss is that of
# training
# examples with their labels, as there: by its own outputs a confident model has no curvature.
# Departure: the eigenvalue is found by Lanczos's iteration, which takes fewer steps than the
# power
# iteration of these papers and ends at the largest eigenvalue where negative ones are larger in
# size.

logger = logging.getLogger(__name__)

PARTS = 4
"""Parts of the texts; a figure for each."""
FOUR_BITS = 8
"""The largest of the integers of 4 bits, in size."""

WeightError = Callable[[QuantizationContext, str, torch.Tensor], float]
"""(context, node, its weight) -> the summed squared error that quantizing makes in the weight"""


def by_trace(
    context: QuantizationContext, write: Any, nodes: Sequence[str], error: WeightError
) -> Sensitivities:
    """Return each node's expected second-order loss: mean curvature times squared error."""
    return _sensitivities(context, nodes, mean_diagonals, error)


def by_eigenvalue(
    context: QuantizationContext, write: Any, nodes: Sequence[str], error: WeightError
) -> Sensitivities:
    """Return each node's worst second-order loss: largest curvature times squared error."""
    return _sensitivities(context, nodes, top_eigenvalues, error)


def _sensitivities(
    context: QuantizationContext, nodes: Sequence[str], estimator: Estimator, error: WeightError
) -> Sensitivities:
    model = load_torch_classifier(_exported_from(context), attn_implementation="eager").eval()
    weights, head = _weights(model, context, nodes), HEADS[context.task.problem_type]
    generator = torch.Generator().manual_seed(context.config.seed)
    parts = []
    with progress_bar("curvature", PARTS * len(nodes)) as bar:
        for batch, labels in _parts(context):
            loss = head.hard_loss(head.logits(model(**batch)), {"labels": labels})
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            parts.append(estimator(gradients, weights, generator, bar.advance))
    curvatures = dict(zip(nodes, map(_over_parts, zip(*parts, strict=True)), strict=True))
    _warn_of_unsettled(curvatures)
    by_node = {
        node: (curvatures[node].mean + curvatures[node].deviation)
        * error(context, node, weight.detach())
        for node, weight in zip(nodes, weights, strict=True)
    }
    return Sensitivities(by_node, curvatures)


def _over_parts(estimates: Sequence[Estimate]) -> Curvature:
    """Return a weight's curvature: Q-BERT's |mean| and deviation."""
    values = torch.tensor([each.value for each in estimates])
    return Curvature(
        mean=float(values.mean().abs()),
        deviation=float(values.std(unbiased=False)),
        steps=[each.steps for each in estimates],
        settled=all(each.settled for each in estimates),
    )


def _warn_of_unsettled(curvatures: Mapping[str, Curvature]) -> None:
    moving = [node for node, each in curvatures.items() if not each.settled]
    if moving:
        logger.warning(
            "the curvature of %d of %d parts was still moving after %d steps (%s ...): the order "
            "of parts that are close may be chance. More --sensitivity-texts make it steadier.",
            len(moving),
            len(curvatures),
            max(max(each.steps) for each in curvatures.values()),
            moving[0],
        )


def _exported_from(context: QuantizationContext) -> Artifact:
    """Return the torch artifact that the graph was exported from; the source, where that is one.

    Raises:
        ModelError: it is missing, or another one is in its place.
    """
    if context.source.card.kind == "torch":
        return context.source
    parent = context.source.card.parent
    place = context.source.path / parent.path if parent else context.source.path
    try:
        artifact = Artifact.load(place)
    except BertenderError as error:
        raise _no_parent(context, str(error)) from None
    if parent is None or artifact.digest != parent.digest or artifact.card.kind != "torch":
        raise _no_parent(context, f"{place} is another artifact")
    return artifact


def _no_parent(context: QuantizationContext, reason: str) -> ModelError:
    return ModelError(
        f"curvature needs the torch artifact that {context.source.path} was exported from "
        f"({reason.rstrip('.')}). Put it back there, or give --sensitivity "
        "leave-one-out, which needs the graph alone."
    )


def _parts(context: QuantizationContext) -> Iterator[tuple[TensorBatch, torch.Tensor]]:
    """Yield some training examples, a batch and its labels for each part."""
    count = context.config.sensitivity_texts
    texts, labels = context.texts(count, ""), context.drawn(count).label_ids
    size = -(-len(texts.examples) // PARTS)
    for start in range(0, len(texts.examples), size):
        batch = texts.encode(texts.examples[start : start + size])
        aligned = context.task.problem.align(labels[start : start + size], batch)
        arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
        yield arrays, torch.from_numpy(aligned)


def _weights(
    model: PreTrainedModel, context: QuantizationContext, nodes: Sequence[str]
) -> list[torch.nn.Parameter]:
    """Return the weights that nodes of the graph were exported from."""
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


def eight_bit_error(context: QuantizationContext, node: str, weight: torch.Tensor) -> float:
    """Return the summed squared error of a weight (outputs, inputs) or table (entries, width)."""
    if node in context.inventory.tables:
        low, high = map(float, weight.aminmax())
        values = weight.double().numpy()
        return float(((affine(low, high, INTEGERS["uint8"]).rounded(values) - values) ** 2).sum())
    return _rounding_error(weight, INTEGERS[context.target.weights].highest)


def four_bit_error(context: QuantizationContext, node: str, weight: torch.Tensor) -> float:
    """Return the summed squared error of a weight (outputs, inputs) in groups of 4 bits."""
    size = context.config.block_size
    padded = functional.pad(weight, (0, -weight.shape[1] % size))
    return _rounding_error(padded.reshape(-1, size), FOUR_BITS)


def _rounding_error(rows: torch.Tensor, highest: int) -> float:
    """Return the summed squared error of rows that each have a symmetric scale."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / highest
    return float(((rows / scale).round() * scale - rows).square().sum())


# --- from quantize.leave_one_out
# The simplest sensitivity: how much nearer the outputs come when a part is left in float.


def leave_one_out(
    context: QuantizationContext, write: Write, nodes: Sequence[str], error: WeightError
) -> Sensitivities:
    """Return how much nearer the outputs come when one node alone is left in float.

    The distance is the KL divergence from the float model's predictions of training texts.
    """
    texts = context.texts(context.config.sensitivity_texts, "").examples
    wanted, divergence = predict(context.classifier, texts), context.task.problem.divergence

    def loss(*left: str) -> float:
        graph = context.folder / "left-out.onnx"
        write(context, graph, left)
        return divergence(wanted, predict(context.opened(graph), texts))

    everything = loss()
    return Sensitivities(
        {node: everything - loss(node) for node in track(nodes, "leave one out", len(nodes))}
    )
