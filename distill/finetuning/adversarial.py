"""Adversarial fine-tuning: labels are learned under perturbations of the word embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ConfigError
from bertender.training.examples import TensorBatch
from bertender.training.steps import LossParts, Objective, RepeatedObjective

STEP = 1 / 3
"""Step size of a perturbation along its gradient, as a share of the radius."""


class FreeLB(RepeatedObjective):
    """Free large-batch adversarial training (Zhu et al. 2019, arXiv 1909.11764, algorithm 1).

    The gradient of a batch is the mean over K perturbations delta of its word embeddings. N is the
    number of embedding values in a row, and g the gradient of the loss:

        delta_0 ~ U(-epsilon, epsilon) / sqrt(N)
        delta_t = projection to the ball of epsilon (delta_(t-1) + alpha g / |g|)

    Norms are over a whole row. One dropout mask is used in all K steps (section 3.3).
    Departure: alpha is not a setting, but STEP * epsilon.

    Args:
        objective: the loss of a batch; it must run the model once.
        steps: K.
        radius: epsilon.
    """

    def __init__(self, objective: Objective, steps: int, radius: float) -> None:
        self.objective = objective
        self.steps = steps
        self.radius = radius

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        return self.objective(model, batch, step)

    def turns(self, model: nn.Module, batch: TensorBatch, step: int) -> Iterator[LossParts]:
        noise = Perturbation(batch["input_ids"], batch["attention_mask"], self.radius)
        for turn in range(self.steps):
            if turn:
                noise.ascend()
                restore(noise.state)
            with noise.added_to(word_embeddings(model)):
                losses = self.objective(model, batch, step)
            yield {name: loss / self.steps for name, loss in losses.items()}


class Perturbation:
    """Perturbations of the word embeddings of token rows.

    Args:
        input_ids: of the rows, (rows, seq).
        attention_mask: (rows, seq); padding is not perturbed.
        radius: greatest norm of a row.
    """

    def __init__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, radius: float
    ) -> None:
        self.input_ids = input_ids
        self.mask = attention_mask.float()[..., None]  # (rows, seq, 1)
        self.radius = radius
        self.values: torch.Tensor | None = None
        """(rows, seq, width); None before the first forward pass."""
        self.state: list[torch.Tensor] = []
        """State of the random numbers after the first draw, so that dropout repeats."""

    @contextmanager
    def added_to(self, words: nn.Module) -> Iterator[None]:
        """Add the perturbation wherever `words` embeds the rows in this block."""
        added = False

        def add(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> Any:
            nonlocal added
            ids = inputs[0] if inputs else None
            if not isinstance(ids, torch.Tensor) or ids.ndim != self.input_ids.ndim:
                return output
            transposed = not same(ids, self.input_ids)  # XLNet has (seq, rows)
            if transposed and not same(ids.T, self.input_ids):
                return output
            own = output.transpose(0, 1) if transposed else output
            if self.values is None:
                self.values = self._drawn(own)
                self.state = random_state()
            added = True
            own = own + (self.values * self.mask).to(own.dtype)
            return own.transpose(0, 1) if transposed else own

        with words.register_forward_hook(add):
            yield
        if not added:
            raise ConfigError(
                "adversarial=freelb: this model does not look up the embedding of each token of a "
                "batch, so that there is nothing to perturb. Leave it out."
            )

    def ascend(self) -> None:
        """Move each row along its gradient, and back into the ball."""
        assert self.values is not None
        gradient = self.values.grad
        if gradient is None:
            return  # no text of the batch has a label
        moved = self.values.detach() + STEP * self.radius * gradient / norms(gradient)
        self.values = (moved * (self.radius / norms(moved)).clamp(max=1)).requires_grad_()

    def _drawn(self, output: torch.Tensor) -> torch.Tensor:
        count = self.mask.sum(1, keepdim=True) * output.shape[-1]  # (rows, 1, 1)
        drawn = torch.empty_like(output, dtype=torch.float32).uniform_(-self.radius, self.radius)
        return (drawn.detach() * self.mask / count.clamp(min=1).sqrt()).requires_grad_()


def norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row of (rows, seq, width), as (rows, 1, 1), above 0."""
    found: torch.Tensor = rows.flatten(1).norm(dim=1)[:, None, None]
    return found.clamp(min=torch.finfo(rows.dtype).tiny)


def same(ids: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether token ids are the same."""
    return ids.shape == others.shape and torch.equal(ids, others)


def word_embeddings(model: nn.Module) -> nn.Module:
    """Return the word embedding table of a model, or of several models that share it.

    Raises:
        ConfigError: the model has none.
    """
    first = next((each for each in model.modules() if isinstance(each, PreTrainedModel)), None)
    try:
        words = None if first is None else first.get_input_embeddings()
    except NotImplementedError:
        words = None
    if not isinstance(words, nn.Module):
        raise ConfigError(
            "adversarial=freelb: this model has no table of word embeddings to perturb. Leave it "
            "out."
        )
    return words


def random_state() -> list[torch.Tensor]:
    """Return the state of the random number generators that dropout uses."""
    own = [torch.get_rng_state()]
    return [*own, torch.cuda.get_rng_state()] if torch.cuda.is_available() else own


def restore(state: list[torch.Tensor]) -> None:
    """Restore a state of `random_state`."""
    torch.set_rng_state(state[0])
    for own in state[1:]:
        torch.cuda.set_rng_state(own)
