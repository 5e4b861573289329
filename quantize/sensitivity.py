"""SENSITIVITIES: which parts of a model suffer most from being quantized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bertender.core.config import Table, on_demand

if TYPE_CHECKING:
    from quantize.context import QuantizationContext, Sensitivities, Written
    from quantize.curvature import WeightError

Write: TypeAlias = "Callable[[QuantizationContext, Path, Sequence[str]], Written]"
"""(context, graph to write, nodes to leave as they were)"""


@dataclass(frozen=True)
class Sensitivity:
    """A row of SENSITIVITIES."""

    summary: str
    measure: Callable[[QuantizationContext, Write, Sequence[str], WeightError], Sensitivities]
    """(context, how to quantize, nodes, what a weight loses) -> sensitivities; larger is worse"""


SENSITIVITIES = Table(
    "sensitivity",
    {
        "leave-one-out": Sensitivity(
            "what leaving one part in float wins of the loss",
            on_demand("quantize.curvature:leave_one_out"),
        ),
        "hessian-trace": Sensitivity(
            "the loss's mean curvature by a part's weights",
            on_demand("quantize.curvature:by_trace"),
        ),
        "hessian-eigenvalue": Sensitivity(
            "the loss's largest curvature by them", on_demand("quantize.curvature:by_eigenvalue")
        ),
    },
)
