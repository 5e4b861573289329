"""Which parts of a classifier learn: all, its head alone, or one more at a time from the top."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ConfigError, ModelError
from bertender.models.families import encoder_layers
from bertender.training.examples import TensorBatch
from bertender.training.steps import LossParts, Objective
from distill.finetuning.config import FinetuneConfig

logger = logging.getLogger(__name__)

PARTS_OF_HEADS = frozenset({"pooler"})
"""Modules of the base model in transformers, of the head in the paper. They narrow [CLS] to what
one task needs: shared, they let the first task that learned keep another from learning."""

Weights = list[nn.Parameter]


@contextmanager
def trained_parts(model: nn.Module, config: FinetuneConfig) -> Iterator[None]:
    """Train all of a classifier, or of several, or, by `config.freeze`, heads first or alone.

    The feature-based use of Devlin et al. 2019 (arXiv 1810.04805, section 5.3), of the last layer
    alone: their weighted sum of layers would be another graph than a plain classifier's, which no
    other program opens.
    """
    held = weights_below_heads(model) if config.freeze else []
    if config.freeze and not held:
        raise ConfigError(
            f"freeze={config.freeze}: of this architecture, no encoder is known apart from its "
            "head. Leave it out."
        )
    for weight in held if config.freeze == "encoder" else []:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in held:
            weight.requires_grad_(True)


def weights_below_heads(model: nn.Module) -> Weights:
    """Return the weights that learn of the encoder of a classifier, or of several."""
    return [
        weight
        for encoder in {each.base_model for each in _models(model) if each.base_model is not each}
        for name, weight in encoder.named_parameters()
        if weight.requires_grad and name.split(".")[0] not in PARTS_OF_HEADS
    ]


def _models(model: nn.Module) -> list[PreTrainedModel]:
    return [each for each in model.modules() if isinstance(each, PreTrainedModel)]


class GradualUnfreezing:
    """Gradual unfreezing (Howard and Ruder 2018, ULMFiT, arXiv 1801.06146, section 3.3).

    Heads learn first, then the last layer with them, and so on down to the first; the embeddings
    come last, with whatever else the encoder has. Each begins after an equal share of the steps:
    in as many epochs as there are parts it is the paper's one part an epoch. A part that does not
    learn yet has no gradient, and no state in the optimizer.
    Departures: the paper's other two techniques, rates that fall from layer to layer and slanted
    triangular ones, are left to the settings of the rate.

    Args:
        objective: the loss.
        model: the classifier, or several that share an encoder.
        steps: of the whole run.

    Raises:
        ConfigError: the architecture is not a row of FAMILIES.
    """

    def __init__(self, objective: Objective, model: nn.Module, steps: int) -> None:
        self.objective = objective
        self.parts = parts_from_the_top(model)
        self.steps = steps
        if (late := len(self.parts) - self.learning(steps - 1)) > 0:
            logger.warning(
                "freeze=gradual: %d steps are too few for %d parts of the encoder, of which the "
                "lowest %d never learn. Give more epochs, or a smaller batch_size or accumulation",
                *(steps, len(self.parts), late),
            )

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        learning = self.learning(step)
        for place, weights in enumerate(self.parts, start=1):
            for weight in weights:
                weight.requires_grad_(place <= learning)
        return self.objective(model, batch, step)

    def learning(self, step: int) -> int:
        """Return how many parts below the heads learn in a step, from 0."""
        return step * (len(self.parts) + 1) // self.steps


def parts_from_the_top(model: nn.Module) -> list[Weights]:
    """Return the weights of each layer of an encoder, the last layer first, and all others."""
    below = weights_below_heads(model)
    try:
        layers = encoder_layers(_models(model)[0])
    except ModelError as error:
        raise ConfigError(f"freeze=gradual: {error} Leave it out.") from None
    part_of: Mapping[nn.Parameter, int] = {
        weight: place  # layers that share weights learn with the last of them
        for place, layer in enumerate(layers)
        for weight in layer.parameters()
    }
    of_layers = [
        [weight for weight in below if part_of.get(weight) == place]
        for place in reversed(range(len(layers)))
    ]
    others = [weight for weight in below if weight not in part_of]
    return [part for part in (*of_layers, others) if part]
