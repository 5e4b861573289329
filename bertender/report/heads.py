"""What a pruning left, as lines for the terminal: scores, and a map of layers x heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertender.measure.load import MachineLoad

__all__ = ["head_map", "pruning_lines"]

SHADES = " ▁▂▃▄▅▆▇█"
"""From nothing to the most."""


def pruning_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return what a pruned artifact's metrics say; nothing for other artifacts."""
    if not (rounds := metrics.get("rounds")):
        return []
    last = rounds[-1]
    lines = [
        f"score {last['score']:.4g}, {last['score_after_cut']:.4g} before recovery, "
        f"{metrics['unpruned']:.4g} unpruned{_where(metrics)}",
        f"heads by layer: {', '.join(map(str, last['heads']))}; "
        f"neurons: {', '.join(map(str, last['neurons']))}",
    ]
    if speed := metrics.get("latency"):
        lines.append(_speed(speed))
    if readings := metrics.get("vocabulary"):
        before, after = readings["before"], readings["after"]
        lines.append(
            f"vocabulary: {after['entries']} of {before['entries']} pieces; held-out texts have "
            f"{after['pieces_per_text']:.1f} pieces ({before['pieces_per_text']:.1f} before), "
            f"{after['unknown']:.2%} unknown ({before['unknown']:.2%})"
        )
    if scores := rounds[0]["head_importance"]:
        lines += ["importance of the heads before the first cut, a layer a line:"]
        lines += [f"  {line}" for line in head_map(scores)]
    return lines


def _where(metrics: Mapping[str, Any]) -> str:
    """Return where these scores are from, and the held-out ones, where these are others."""
    if metrics.get("chosen_on") != "selection":
        return ""
    return (
        f", on texts set apart to choose by; held-out, read once: {metrics['score']:.4g}, "
        f"{metrics['score_before']:.4g} unpruned"
    )


def _speed(speed: Mapping[str, Any]) -> str:
    measured, load = speed["measured"], speed["table"]["load"]
    return (
        f"{measured['value']:.2f}x as fast as unpruned [{measured['low']:.2f}, "
        f"{measured['high']:.2f}], {speed['predicted']:.2f}x foretold, {speed['target']:g}x asked "
        f"for; texts in a batch: {load['texts']}, tokens: {load['tokens']}, "
        f"threads: {load['threads']}, in PyTorch on the CPU{_machine(speed['table'])}"
    )


def _machine(table: Mapping[str, Any]) -> str:
    """Return what disturbed the times that the pruning went by, where something did."""
    values = table.get("machine_load")
    load = MachineLoad.model_validate(values) if values else None
    return f"; NOISY: {load} while the parts were timed" if load and load.noisy else ""


def head_map(scores: Sequence[Sequence[float]]) -> list[str]:
    """Return a line for each layer with a block for each head, as high as its score.

    Args:
        scores: at least 0, a row each layer, from the lowest.
    """
    most = max((score for layer in scores for score in layer), default=0.0) or 1.0
    return [
        f"{number:>2} {''.join(_shade(score / most) for score in layer)}"
        for number, layer in enumerate(scores)
    ]


def _shade(share: float) -> str:
    return SHADES[round(share * (len(SHADES) - 1))]
