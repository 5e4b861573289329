"""Mixed precision: the most sensitive parts go back until the score holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertender.core.errors import AccuracyError
from bertender.core.findings import SensitivityFindings
from bertender.core.progress import progress_bar
from quantize.context import QuantizationContext, Sensitivities, Written
from quantize.curvature import WeightError, eight_bit_error, four_bit_error
from quantize.post_training import calibrated_ranges, write_dynamic, write_with_ranges
from quantize.sensitivity import SENSITIVITIES, Write


def _dynamic(context: QuantizationContext) -> Write:
    return write_dynamic


def _static(context: QuantizationContext) -> Write:
    """Calibrate once, for all the graphs that are tried."""
    ranges = calibrated_ranges(context)
    return lambda context, target, left: write_with_ranges(context, target, ranges, left)


@dataclass(frozen=True)
class Level:
    """Level that a part goes back to."""

    name: str
    error: WeightError
    """Squared error of a weight at the lower level."""
    may_take_all: bool
    """A model with all parts back is still a quantized one."""
    tolerance: str
    """The row of the parity gate's tolerances that a model with some parts back must hold."""


FLOAT = Level("float", eight_bit_error, may_take_all=False, tolerance="int8")
EIGHT_BITS = Level("8 bits", four_bit_error, may_take_all=True, tolerance="int4")

BASES = {"dynamic": _dynamic, "static": _static}
"""How the parts that stay quantized are."""


def write_mixed(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`, except what must stay in float for its score."""
    nodes = [*(product.node for product in context.inventory.products), *context.tables]
    return returned(context, target, BASES[context.config.base](context), FLOAT, nodes)


def returned(
    context: QuantizationContext, target: Path, write: Write, level: Level, nodes: Sequence[str]
) -> Written:
    """Return parts to what they were before, the most sensitive first, until both gates hold.

    The score comes first; parity is asked where it holds.

    Args:
        context: its `max_drop` is what may be lost.
        target: the graph to write.
        write: quantizes all but some nodes.
        level: what a part returns to.
        nodes: the parts that may return.

    Raises:
        AccuracyError: the score does not hold with all of them returned.
    """
    search = _Search(context, target, write, level)
    # mostly nothing has to go back: parts are weighed, which takes long, where something has
    if (held := search.tried(())) is not None:
        return _reported(*held, Sensitivities({}), search.drops, level)
    sensitivities = SENSITIVITIES[context.config.sensitivity].measure(
        context, write, nodes, level.error
    )
    ranking = sorted(nodes, key=lambda node: -sensitivities.by_node[node])
    with progress_bar(f"return to {level.name}", len(ranking)) as bar:
        for count in range(1, len(ranking) + level.may_take_all):
            if (held := search.tried(ranking[:count])) is not None:
                return _reported(*held, sensitivities, search.drops, level)
            bar.advance()
    raise AccuracyError(
        f"with one part of {len(ranking)} quantized, the model still lost {min(search.drops):.4g} "
        f"points of {context.task.metric} at best, where max_drop={context.config.max_drop:g} "
        "allows no more, or moved further from the float model than parity allows. "
        "Keep the float model, or try --scheme qat."
    )


@dataclass
class _Search:
    """Graphs that are tried with more and more parts returned."""

    context: QuantizationContext
    target: Path
    write: Write
    level: Level
    drops: list[float] = field(default_factory=list)
    """Points that each of them lost."""

    def tried(self, back: Sequence[str]) -> tuple[Written, Sequence[str]] | None:
        """Write the graph with some parts returned; return None where a gate does not hold."""
        allowed = self.context.config.max_drop
        assert allowed is not None
        written = self.write(self.context, self.target, back)
        score = self.context.score(self.target)
        self.drops.append(self.context.drop(score))
        if self.drops[-1] > allowed or not self.context.agrees(self.target, self.level.tolerance):
            return None
        return replace(written, score=score), back


def _reported(
    written: Written,
    back: Sequence[str],
    sensitivities: Sensitivities,
    tried: list[float],
    level: Level,
) -> Written:
    table = dict(sorted(sensitivities.by_node.items(), key=lambda row: -row[1]))
    reasons = {
        node: f"returned to {level.name}: number {place} of {len(table)} in sensitivity "
        f"({table[node]:.3g}); before it went back the score was {drop:.4g} points lower"
        for place, (node, drop) in enumerate(zip(back, tried, strict=False), start=1)
    }
    sensitivity = SensitivityFindings(
        by_node=table, curvature=sensitivities.curvature, drops=tried, returned=reasons
    )
    in_float = reasons if level is FLOAT else {}
    return replace(
        written,
        float_nodes={**written.float_nodes, **in_float},
        sensitivity=sensitivity,
    )
