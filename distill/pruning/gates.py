"""Gates on the heads and neurons of a model, through hooks: 1 lets one pass, 0 closes it.

Heads are gated where their contexts enter the output projection, neurons where their activations
enter the second layer of the feed-forward part, so that no model code is copied and every row of
FAMILIES has them. (transformers had head masks of its own, and dropped them.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import encoder_layers, family_of

__all__ = ["gated"]


@contextmanager
def gated(
    model: PreTrainedModel,
    heads: Sequence[torch.Tensor] = (),
    neurons: Sequence[torch.Tensor] = (),
) -> Iterator[None]:
    """Multiply what heads and neurons give by gates, inside the block.

    Args:
        model: a row of FAMILIES.
        heads: a tensor each layer, (heads,) or one for each example, (batch, heads).
        neurons: a tensor each layer, (neurons,) or (batch, neurons).
    """
    family = family_of(model)
    hooks = []
    for path, gates in ((family.projections.output, heads), (family.feed_forward.output, neurons)):
        for layer, gate in zip(encoder_layers(model), gates, strict=False):
            hooks.append(layer.get_submodule(path).register_forward_pre_hook(_times(gate)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _times(gate: torch.Tensor) -> Callable[..., Any]:
    """Return a hook that multiplies states (batch, seq, gates * width) by gates."""

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states, *others = inputs
        by_gate = states.unflatten(-1, (gate.shape[-1], -1))  # (batch, seq, gates, width)
        each = gate[..., None] if gate.ndim == 1 else gate[:, None, :, None]
        return ((by_gate * each).flatten(-2), *others)

    return hook
