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
from quantize.affine import INTEGERS
from quantize.calibration import Batches
from quantize.job import Job

__all__ = ["top_eigenvalues", "traces"]

PARTS = 4
"""Parts of the texts; a figure for each."""
PROBES = 4
"""Random directions for a trace, and steps of a power iteration."""


Curvature = Callable[[torch.Tensor, torch.Tensor, torch.Generator], float]
"""(loss, weight, generator) -> a figure of the Hessian of the loss by the weight"""


def traces(job: Job, write: Any, nodes: Sequence[str]) -> dict[str, float]:
    """Return each node's expected second-order loss: mean curvature times squared error."""
    return _sensitivities(job, nodes, _trace)


def top_eigenvalues(job: Job, write: Any, nodes: Sequence[str]) -> dict[str, float]:
    """Return each node's worst second-order loss: largest curvature times squared error."""
    return _sensitivities(job, nodes, _top_eigenvalue)


def _sensitivities(job: Job, nodes: Sequence[str], figure: Curvature) -> dict[str, float]:
    model = load_torch_classifier(_trained(job), attn_implementation="eager").eval()
    parts = [*_parts(job)]
    found = {}
    for node in track(nodes, "curvature", len(nodes)):
        weight = _weight(model, job, node)
        generator = torch.Generator().manual_seed(job.config.seed)
        figures = torch.tensor([figure(_loss(model, part), weight, generator) for part in parts])
        curvature = figures.mean().abs() + figures.std(unbiased=False)
        found[node] = float(curvature * _squared_error(weight.detach(), job.target.weights))
    return found


def _trained(job: Job) -> Artifact:
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
        f"curvature needs the torch artifact that {job.source.path} was exported from: {reason}. "
        "Put it back there, or give --sensitivity leave-one-out, which needs the graph alone."
    )


def _parts(job: Job) -> Iterator[dict[str, torch.Tensor]]:
    """Yield some training texts as a batch for each part."""
    texts = job.texts(job.config.sensitivity_texts, "")
    size = -(-len(texts.examples) // PARTS)
    for start in range(0, len(texts.examples), size):
        part = Batches(texts.encode, texts.examples[start : start + size])
        arrays = part.encode(part.examples).arrays
        yield {name: torch.from_numpy(array) for name, array in arrays.items()}


def _loss(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the cross-entropy with the model's own answers, which need no labels."""
    logits = model(**batch).logits
    return functional.cross_entropy(logits, logits.detach().softmax(dim=-1))


def _weight(model: PreTrainedModel, job: Job, node: str) -> torch.nn.Parameter:
    """Return the weight that a node of the graph was exported from."""
    modules = {product.node: f"{product.module}.weight" for product in job.inventory.products}
    return model.get_parameter({**modules, **job.inventory.tables}[node])


def _trace(loss: torch.Tensor, weight: torch.Tensor, generator: torch.Generator) -> float:
    """Estimate the Hessian's mean diagonal by Hutchinson's random signs."""
    product = _hessian_product(loss, weight)
    signs = [
        torch.randint(0, 2, weight.shape, generator=generator).float() * 2 - 1
        for _ in range(PROBES)
    ]
    return sum(float((sign * product(sign)).mean()) for sign in signs) / PROBES


def _top_eigenvalue(loss: torch.Tensor, weight: torch.Tensor, generator: torch.Generator) -> float:
    """Estimate the Hessian's largest eigenvalue by power iteration."""
    product = _hessian_product(loss, weight)
    direction = torch.randn(weight.shape, generator=generator)
    eigenvalue = 0.0
    for _ in range(PROBES):
        direction = direction / direction.norm().clamp(min=torch.finfo(torch.float32).tiny)
        image = product(direction)
        eigenvalue = float((direction * image).sum())
        direction = image
    return eigenvalue


def _hessian_product(
    loss: torch.Tensor, weight: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)

    def product(direction: torch.Tensor) -> torch.Tensor:
        (image,) = torch.autograd.grad(gradient, weight, direction, retain_graph=True)
        return image.detach()

    return product


def _squared_error(weight: torch.Tensor, integers: str) -> float:
    """Return the summed squared error that 8-bit rows (outputs, inputs) of a weight have."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / INTEGERS[integers].highest
    return float(((weight / scale).round() * scale - weight).square().sum())
