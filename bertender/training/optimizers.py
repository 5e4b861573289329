"""Optimizers besides the Trainer's AdamW, and separate learning rates for parts of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bertender.training.config import TrainingConfig
from bertender.training.heads.numbers import output_layer

logger = logging.getLogger(__name__)


class Lamb(Optimizer):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2), for batches of thousands of rows.

    The update of AdamW, r + lambda x, is scaled for each weight x by the trust ratio
    |x| / |r + lambda x|, so that each moves by the same share of its size.
    Weights of one dimension, biases and layer norms, have a ratio of 1, as in the published code.

    Args:
        groups: parameters, or groups of them.
        lr: learning rate.
        betas: decays of the means of the gradient and of its square.
        eps: added to the root of the latter.
        weight_decay: lambda.
    """

    def __init__(
        self,
        groups: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    update = self._update(weight, group)
                    ratio = trust_ratio(weight, update) if weight.ndim > 1 else 1.0
                    weight.sub_(group["lr"] * ratio * update)
        return loss

    def _update(self, weight: torch.Tensor, group: Mapping[str, Any]) -> torch.Tensor:
        assert weight.grad is not None
        state, (first, second) = self.state[weight], group["betas"]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        state["mean"].lerp_(weight.grad, 1 - first)
        state["square"].lerp_(weight.grad.square(), 1 - second)
        mean = state["mean"] / (1 - first ** state["step"])
        square = state["square"] / (1 - second ** state["step"])
        moved: torch.Tensor = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
        return moved


def trust_ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return the norm of a weight over that of its update; 1 if one of them is 0."""
    size, change = weight.norm(), update.norm()
    return torch.where((size > 0) & (change > 0), size / change, torch.ones_like(size))


OPTIMIZERS: Mapping[str, type[Lamb]] = {"lamb": Lamb}
"""Optimizers by the names of `TrainingConfig.optimizer`; AdamW is the Trainer's own."""


def warn_of_default_rate(config: TrainingConfig) -> None:
    """Log a warning if LAMB trains at the default learning rate, which is for AdamW.

    Weights of a transformer are mostly around some hundredths, and so are the trust ratios: a
    matrix would hardly change.
    """
    if config.optimizer in OPTIMIZERS and not config.is_explicit("learning_rate"):
        logger.warning(
            "optimizer %s moves a weight by learning_rate times its size, and the default of %g "
            "is for adamw: little may be learned. Give a learning_rate 10 to 50 times as high",
            config.optimizer,
            config.learning_rate,
        )


Rates = Mapping[str, Callable[[float], float]]
"""Prefix of a part's parameter names -> factor of the learning rate, as a function of the share of
steps done, 0 to 1. Other parameters have the normal rate."""
NO_RATES: Rates = {}


def learn_numbers(optimizer: torch.optim.Optimizer, model: nn.Module, spread: float) -> None:
    """Let the layer that outputs numbers learn in their unit.

    AdamW changes each weight by about the learning rate, whatever the loss. A layer whose output is
    `spread` times as large learns equally fast if its weights change by `spread` times that; their
    decay is kept. Matrices are left to LAMB, which scales their steps by their norm.
    """
    layer, is_lamb = output_layer(model, 1), isinstance(optimizer, Lamb)
    weights = [] if layer is None else [*layer.parameters()]
    own = [each for each in weights if not (is_lamb and each.ndim > 1)]
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        others = [each for each in group["params"] if all(each is not one for one in own)]
        mine = [each for each in group["params"] if any(each is one for one in own)]
        scaled = {"lr": group["lr"] * spread, "weight_decay": group["weight_decay"] / spread}
        groups += [{**group, "params": others}, {**group, "params": mine, **scaled}]
    optimizer.param_groups[:] = [group for group in groups if group["params"]]


def split_by_rate(optimizer: torch.optim.Optimizer, model: nn.Module, rates: Rates) -> None:
    """Give the parameters of each part their own groups, named by `part`, before any step."""
    part_of = {
        parameter: part
        for name, parameter in model.named_parameters()
        for part in rates
        if name.startswith(part)
    }
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        for part in ("", *rates):
            members = [each for each in group["params"] if part_of.get(each, "") == part]
            groups.append({**group, "params": members, "part": part})
    optimizer.param_groups[:] = [group for group in groups if group["params"]]


def pace(scheduler: LambdaLR, optimizer: torch.optim.Optimizer, rates: Rates, steps: int) -> None:
    """Multiply the schedule of each group by its part's factor, in a run of `steps` steps."""

    def product(
        schedule: Callable[[int], float], factor: Callable[[float], float]
    ) -> Callable[[int], float]:
        return lambda step: schedule(step) * factor(step / steps)

    for place, group in enumerate(optimizer.param_groups):
        if group["part"]:
            schedule = product(scheduler.lr_lambdas[place], rates[group["part"]])
            scheduler.lr_lambdas[place] = schedule
            group["lr"] = group["initial_lr"] * schedule(0)
