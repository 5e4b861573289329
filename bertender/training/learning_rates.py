"""Parts of a model that learn at a rate of their own: groups of the optimizer, with a factor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["Rates", "pace", "split_by_rate"]

Rates = Mapping[str, Callable[[float], float]]
"""How the names of a part's parameters begin -> a function of the share of the steps that have
passed, 0 to 1, to the factor of the learning rate. What is in no part learns at the rate itself."""


def split_by_rate(optimizer: torch.optim.Optimizer, model: torch.nn.Module, rates: Rates) -> None:
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
    for place, group in enumerate(optimizer.param_groups):
        if group["part"]:
            factor, schedule = rates[group["part"]], scheduler.lr_lambdas[place]
            scheduler.lr_lambdas[place] = _product(schedule, factor, steps)
            group["lr"] = group["initial_lr"] * scheduler.lr_lambdas[place](0)


def _product(
    schedule: Callable[[int], float], factor: Callable[[float], float], steps: int
) -> Callable[[int], float]:
    return lambda step: schedule(step) * factor(step / steps)
