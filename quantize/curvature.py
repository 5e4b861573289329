"""Curvature of the loss along a part's weights: trace and top eigenvalue of its Hessian.

Both times the squared error that quantizing makes in the weights: the second-order change of the
loss (Dong et al. 2020, HAWQ-V2, arXiv 1911.03852, eq. 11; Q-BERT, arXiv 1909.05840, takes the
eigenvalue alone, |mean| + standard deviation over parts of the data). The loss is that of training
examples with their labels, as there: by its own outputs a confident model has no curvature.
Departure: the eigenvalue is found by Lanczos's iteration, which takes fewer steps than the power
iteration of these papers and ends at the largest eigenvalue where negative ones are larger in size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.core.findings import Curvature
from bertender.core.progress import progress_bar
from bertender.models.opening import load_torch_classifier
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS
from quantize.affine import INTEGERS, affine
from quantize.context import QuantizationContext, Sensitivities
from quantize.hessian import Estimate, Estimator, mean_diagonals, top_eigenvalues

__all__ = ["WeightError", "by_eigenvalue", "by_trace", "eight_bit_error", "four_bit_error"]

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
