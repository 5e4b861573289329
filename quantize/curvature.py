"""How the loss curves along a part's weights: trace and top eigenvalue of its Hessian.

Both times the squared error that quantizing makes in the weights: the second-order change of the
loss (Dong et al. 2020, HAWQ-V2, arXiv 1911.03852, eq. 11; Q-BERT, arXiv 1909.05840, takes the
eigenvalue alone, |mean| + standard deviation over parts of the data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.core.predictor import load_torch_classifier
from bertender.core.progress import track
from quantize.affine import INTEGERS, affine
from quantize.job import Job

__all__ = ["WeightError", "eight_bit_error", "four_bit_error", "top_eigenvalues", "traces"]

PARTS = 4
"""Parts of the texts; a figure for each."""
FOUR_BITS = 8
"""The largest of the integers of 4 bits, in size."""
PROBES = 4
"""Random directions for a trace, and steps of a power iteration."""


WeightError = Callable[[Job, str, torch.Tensor], float]
"""(job, node, its weight) -> the summed squared error that quantizing makes in the weight"""
Curvatures = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor], torch.Generator], list[float]
]
"""(gradients of a loss, the weights they are by, generator) -> a figure of each weight's Hessian"""


def traces(job: Job, write: Any, nodes: Sequence[str], error: WeightError) -> dict[str, float]:
    """Return each node's expected second-order loss: mean curvature times squared error."""
    return _sensitivities(job, nodes, _traces, error)


def top_eigenvalues(
    job: Job, write: Any, nodes: Sequence[str], error: WeightError
) -> dict[str, float]:
    """Return each node's worst second-order loss: largest curvature times squared error."""
    return _sensitivities(job, nodes, _top_eigenvalues, error)


def _sensitivities(
    job: Job, nodes: Sequence[str], figures: Curvatures, error: WeightError
) -> dict[str, float]:
    model = load_torch_classifier(_exported_from(job), attn_implementation="eager").eval()
    weights = _weights(model, job, nodes)
    generator = torch.Generator().manual_seed(job.config.seed)
    found = []
    for part in track(_parts(job), "curvature", PARTS):
        gradients = torch.autograd.grad(_loss(model, part), weights, create_graph=True)
        found.append(figures(gradients, weights, generator))
    of_parts = torch.tensor(found)  # (parts, nodes)
    curvature = of_parts.mean(dim=0).abs() + of_parts.std(dim=0, unbiased=False)
    errors = [
        error(job, node, weight.detach()) for node, weight in zip(nodes, weights, strict=True)
    ]
    return {
        node: float(curve) * lost
        for node, curve, lost in zip(nodes, curvature, errors, strict=True)
    }


def _exported_from(job: Job) -> Artifact:
    """Return the torch artifact that the graph was exported from.

    Raises:
        ModelError: it is gone, or another one lies in its place.
    """
    parent = job.source.card.parent
    place = job.source.path / parent.path if parent else job.source.path
    try:
        artifact = Artifact.load(place)
    except BertenderError as error:
        raise _no_parent(job, str(error)) from None
    if parent is None or artifact.digest != parent.digest or artifact.card.kind != "torch":
        raise _no_parent(job, f"{place} is another artifact")
    return artifact


def _no_parent(job: Job, reason: str) -> ModelError:
    return ModelError(
        f"curvature needs the torch artifact that {job.source.path} was exported from "
        f"({reason.rstrip('.')}). Put it back there, or give --sensitivity "
        "leave-one-out, which needs the graph alone."
    )


def _parts(job: Job) -> Iterator[dict[str, torch.Tensor]]:
    """Yield some training texts as a batch for each part."""
    texts = job.texts(job.config.sensitivity_texts, "")
    size = -(-len(texts.examples) // PARTS)
    for start in range(0, len(texts.examples), size):
        arrays = texts.encode(texts.examples[start : start + size]).arrays
        yield {name: torch.from_numpy(array) for name, array in arrays.items()}


def _loss(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the cross-entropy with the model's own answers, which need no labels."""
    logits = model(**batch).logits
    return functional.cross_entropy(logits, logits.detach().softmax(dim=-1))


def _weights(model: PreTrainedModel, job: Job, nodes: Sequence[str]) -> list[torch.nn.Parameter]:
    """Return the weights that nodes of the graph were exported from."""
    known = {name for name, _ in model.named_modules()}
    modules = {each.node: f"{each.module(known)}.weight" for each in job.inventory.products}
    names = {**modules, **job.inventory.tables}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for node in nodes:
        if names[node] not in parameters:
            raise ModelError(
                f"the model has no weight {names[node]!r}, which node {node!r} would be exported "
                "from. Give --sensitivity leave-one-out, which needs the graph alone."
            )
    return [parameters[names[node]] for node in nodes]


def _traces(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> list[float]:
    """Estimate each Hessian's mean diagonal by Hutchinson's random signs.

    All weights at once: what one weight's signs say of another's gradient has a mean of 0.
    """
    sums = torch.zeros(len(weights))
    for _ in range(PROBES):
        signs = [
            torch.randint(0, 2, weight.shape, generator=generator).float() * 2 - 1
            for weight in weights
        ]
        images = torch.autograd.grad(gradients, weights, signs, retain_graph=True)
        sums += torch.stack(
            [(sign * image).mean() for sign, image in zip(signs, images, strict=True)]
        )
    return (sums / PROBES).tolist()


def _top_eigenvalues(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> list[float]:
    """Estimate each Hessian's largest eigenvalue by power iteration."""
    return [
        _top_eigenvalue(gradient, weight, generator)
        for gradient, weight in zip(gradients, weights, strict=True)
    ]


def _top_eigenvalue(
    gradient: torch.Tensor, weight: torch.Tensor, generator: torch.Generator
) -> float:
    direction = torch.randn(weight.shape, generator=generator)
    eigenvalue = 0.0
    for _ in range(PROBES):
        direction = direction / direction.norm().clamp(min=torch.finfo(torch.float32).tiny)
        (image,) = torch.autograd.grad(gradient, weight, direction, retain_graph=True)
        eigenvalue = float((direction * image).sum())
        direction = image
    return eigenvalue


def eight_bit_error(job: Job, node: str, weight: torch.Tensor) -> float:
    """Return the summed squared error of a weight (outputs, inputs) or table (entries, width)."""
    if node in job.inventory.tables:
        low, high = map(float, weight.aminmax())
        values = weight.double().numpy()
        return float(((affine(low, high, INTEGERS["uint8"]).rounded(values) - values) ** 2).sum())
    return _rounding_error(weight, INTEGERS[job.target.weights].highest)


def four_bit_error(job: Job, node: str, weight: torch.Tensor) -> float:
    """Return the summed squared error of a weight (outputs, inputs) in groups of 4 bits."""
    size = job.config.block_size
    padded = functional.pad(weight, (0, -weight.shape[1] % size))
    return _rounding_error(padded.reshape(-1, size), FOUR_BITS)


def _rounding_error(rows: torch.Tensor, highest: int) -> float:
    """Return the summed squared error of rows that each have a symmetric scale."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / highest
    return float(((rows / scale).round() * scale - rows).square().sum())
