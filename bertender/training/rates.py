"""Learning rates of their own for parts of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bertender.training.heads import output_layer

Rates = Mapping[str, Callable[[float], float]]
"""How the names of a part's parameters begin -> a function of the share of the steps that have
passed, 0 to 1, to the factor of the learning rate. What is in no part learns at the rate itself."""
NO_RATES: Rates = {}


def learn_numbers(optimizer: torch.optim.Optimizer, model: nn.Module, spread: float) -> None:
    """Let the layer that gives numbers learn in their unit.

    AdamW moves each weight by about the learning rate, whatever the loss. A layer whose output is
    `spread` times as large learns alike where it moves by `spread` times that, and its weights
    decay by as much as before.
    """
    layer = output_layer(model, 1)
    own = [] if layer is None else [*layer.parameters()]
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        others = [each for each in group["params"] if all(each is not one for one in own)]
        mine = [each for each in group["params"] if any(each is one for one in own)]
        scaled = {"lr": group["lr"] * spread, "weight_decay": group["weight_decay"] / spread}
        groups += [{**group, "params": others}, {**group, "params": mine, **scaled}]
    optimizer.param_groups[:] = [group for group in groups if group["params"]]


def split_by_rate(optimizer: torch.optim.Optimizer, model: nn.Module, rates: Rates) -> None:
    """Give the parameters of each part groups of their own, named by `part`, before any step."""
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
    """Multiply the schedule of each group by its part's factor, in a run of some steps."""

    def product(
        schedule: Callable[[int], float], factor: Callable[[float], float]
    ) -> Callable[[int], float]:
        return lambda step: schedule(step) * factor(step / steps)

    for place, group in enumerate(optimizer.param_groups):
        if group["part"]:
            schedule = product(scheduler.lr_lambdas[place], rates[group["part"]])
            scheduler.lr_lambdas[place] = schedule
            group["lr"] = group["initial_lr"] * schedule(0)
