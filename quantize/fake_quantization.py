"""A PyTorch model that computes with the errors of its 8-bit form, so that it learns to bear them.

Zafrir et al. 2019 (Q8BERT, arXiv 1910.06188), section 2: weights and the activations of every
linear layer, and embedding tables, are rounded in the forward pass; the gradient passes as if they
were not (straight-through). Ranges of activations are moving averages, those of weights their
largest value now. Departures, for ONNX Runtime's kernels: activations are unsigned with a zero
point, weights have a scale for each output, biases stay in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from bertender.training.examples import TensorBatch, model_inputs
from quantize.affine import INTEGERS, Integers
from quantize.calibrators import Range

__all__ = [
    "LEAST_SCALE",
    "FakeQuantized",
    "RoundedWeight",
    "RowRounding",
    "WeightRounding",
    "round_rows",
    "rounded",
    "straight_through",
]

DECAY = 0.9999
"""Of the moving averages (the paper's)."""
ORIGINAL = "parametrizations.weight.original"
"""Name that PyTorch gives to the weight that a parametrization rounds."""
RowRounding = Callable[[nn.Embedding, torch.Tensor, torch.Tensor], torch.Tensor]
"""(table, numbers of rows, these rows) -> what quantizing leaves of them; the gradient is that of
the rows."""
LEAST_SCALE = float(torch.finfo(torch.float32).tiny)


def rounded(
    values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | float, integers: Integers
) -> torch.Tensor:
    """Return what quantizing leaves of some values; the gradient is that of the values."""
    steps = (values / scale).round() + zero_point
    left = (steps.clamp(integers.lowest, integers.highest) - zero_point) * scale
    return straight_through(values, left)


def straight_through(values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """Return what quantizing leaves of some values, exactly; the gradient is that of the values."""
    return left.detach() + (values - values.detach())


def _rounded_range(
    values: torch.Tensor, low: torch.Tensor, high: torch.Tensor, integers: Integers
) -> torch.Tensor:
    """Round values to the integers that span a range, which is widened to hold 0."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    if integers.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scale = ((high - low) / (integers.highest - integers.lowest)).clamp(min=LEAST_SCALE)
    zero_point = 0.0 if integers.symmetric else (integers.lowest - low / scale).round()
    return rounded(values, scale, zero_point, integers)


class WeightRounding(nn.Module):
    """Rounds a linear layer's weight (outputs, inputs) in the forward pass, if a subclass does."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return what rounding leaves of it; the gradient is that of the weight."""
        return weight

    def exported(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight that the trained model's float graph has."""
        return weight


class RoundedWeight(WeightRounding):
    """8 bits, with a scale for each output."""

    def __init__(self, integers: Integers) -> None:
        super().__init__()
        self.integers = integers

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        largest = weight.detach().abs().amax(dim=1, keepdim=True)
        scale = (largest / self.integers.highest).clamp(min=LEAST_SCALE)
        return rounded(weight, scale, 0.0, self.integers)


def round_rows(table: nn.Embedding, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Round what is looked up in an embedding table to 8 bits, by the range of the whole table."""
    return _rounded_range(rows, *table.weight.detach().aminmax(), INTEGERS["uint8"])


class _Text:
    """Mask of the batch's text, the positions at which activations are recorded."""

    mask: torch.Tensor | None = None

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values (tokens, ...) of real tokens."""
        mask = self.mask  # a pooled (batch, hidden) has no tokens
        if mask is not None and values.ndim > mask.ndim and values.shape[:2] == mask.shape:
            return values[mask]
        return values


class _RoundedActivation(nn.Module):
    """Fake quantization of a linear layer's input, with a range that follows training batches."""

    differs_in_training: ClassVar[bool] = True

    low: torch.Tensor
    high: torch.Tensor
    seen: torch.Tensor

    def __init__(self, integers: Integers, text: _Text) -> None:
        super().__init__()
        self.integers = integers
        self.text = text
        for name in ("low", "high"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))
        self.widening = False
        """Take the whole range of the batches instead of averages; nothing is rounded."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training or self.widening:
            self._watch(self.text.of(values.detach()))
        if self.widening:
            return values
        return _rounded_range(values, self.low, self.high, self.integers)

    def _watch(self, values: torch.Tensor) -> None:
        for mine, now, wider in zip(
            (self.low, self.high), values.aminmax(), (torch.minimum, torch.maximum), strict=True
        ):
            later = wider(mine, now) if self.widening else mine * DECAY + now * (1 - DECAY)
            mine.copy_(torch.where(self.seen, later, now))
        self.seen.fill_(True)


class FakeQuantized(nn.Module):
    """A classifier whose linear layers and embedding tables compute with the errors of few bits.

    Args:
        model: it is trained in place.
        weights: path of each linear layer to quantize -> what rounds its weight.
        tables: path of each embedding to quantize -> what rounds its rows.
        activations: a row of INTEGERS.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        weights: Mapping[str, WeightRounding],
        tables: Mapping[str, RowRounding],
        activations: str,
    ) -> None:
        super().__init__()
        self.student = model
        self.text = _Text()
        self.weights = dict(weights)
        self.tables = dict(tables)
        self.activations = nn.ModuleList(
            _RoundedActivation(INTEGERS[activations], self.text) for _ in self.weights
        )
        for (path, rounding), activation in zip(
            self.weights.items(), self.activations, strict=True
        ):
            layer = model.get_submodule(path)
            parametrize.register_parametrization(layer, "weight", rounding)
            layer.register_forward_pre_hook(_entering(activation))
        self._rounding_rows = [
            model.get_submodule(path).register_forward_hook(_looking_up(rounding))
            for path, rounding in self.tables.items()
        ]

    def forward(self, batch: TensorBatch) -> torch.Tensor:
        """Return the logits (batch, labels)."""
        self.text.mask = batch["attention_mask"].bool()
        try:
            logits: torch.Tensor = self.student(**model_inputs(self.student, batch)).logits
        finally:
            self.text.mask = None
        return logits

    @contextmanager
    def widening(self) -> Iterator[None]:
        """Within, the model computes in float, and ranges grow to hold all that is seen."""
        for activation in self._activations():
            activation.widening = True
        try:
            yield
        finally:
            for activation in self._activations():
                activation.widening = False

    def ranges(self) -> Mapping[str, Range]:
        """Return the range of each linear layer's input, by the layer's path."""
        return {
            path: (float(activation.low), float(activation.high))
            for path, activation in zip(self.weights, self._activations(), strict=True)
        }

    def originals(self) -> dict[str, torch.Tensor]:
        """Return the weight of each linear layer before rounding, by the layer's path."""
        state = self.student.state_dict()
        return {path: state[f"{path}.{ORIGINAL}"] for path in self.weights}

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """Return the model's weights to export, by the names that they had at first."""
        trained = {
            name.replace(ORIGINAL, "weight"): tensor
            for name, tensor in self.student.state_dict().items()
        }
        originals = self.originals()
        exported = {
            f"{path}.weight": each.exported(originals[path]) for path, each in self.weights.items()
        }
        return {**trained, **exported}

    def fuse(self) -> None:
        """Put the rounded weights in place of the weights, so that inference does not round them.

        The model cannot be trained any more, and `originals` are gone.
        """
        for (path, rounding), hook in zip(self.tables.items(), self._rounding_rows, strict=True):
            table = self.student.get_submodule(path)
            assert isinstance(table, nn.Embedding)
            with torch.no_grad():
                numbers = torch.arange(len(table.weight), device=table.weight.device)
                table.weight.copy_(rounding(table, numbers, table.weight))
            hook.remove()
        for path in self.weights:
            layer = self.student.get_submodule(path)
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)

    def _activations(self) -> list[Any]:
        return list(self.activations)


def _entering(activation: nn.Module) -> Any:
    def hook(layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        values, *others = arguments
        return (activation(values), *others)

    return hook


def _looking_up(rounding: RowRounding) -> Any:
    return lambda table, inputs, rows: rounding(table, inputs[0], rows)
