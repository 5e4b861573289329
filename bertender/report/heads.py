"""What was cut of a model, as lines for the terminal: scores, and a map of layers x heads."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.findings import (
    Findings,
    LatencyFindings,
    ScoreFindings,
    VocabularyFindings,
)
from bertender.core.machine_load import MachineLoad
from bertender.report.cells import number

__all__ = ["head_map", "pruning_lines"]

SHADES = " ▁▂▃▄▅▆▇█"
"""From nothing to the most."""


def pruning_lines(findings: Findings) -> list[str]:
    """Return what was cut of an artifact; nothing for others."""
    if not (pruning := findings.pruning):
        return [_vocabulary(findings.vocabulary)] if findings.vocabulary else []
    last = pruning.rounds[-1]
    lines = [
        f"score {last.score:.4g}, {last.score_after_cut:.4g} before recovery, "
        f"{pruning.unpruned:.4g} unpruned{_where(findings.scores)}",
        f"heads by layer: {', '.join(map(str, last.heads))}; "
        f"neurons: {', '.join(map(str, last.neurons))}",
    ]
    if pruning.latency:
        lines.append(_speed(pruning.latency))
    if pruning.vocabulary:
        lines.append(_vocabulary(pruning.vocabulary))
    if scores := pruning.rounds[0].head_importance:
        lines += ["importance of the heads before the first cut, a layer a line:"]
        lines += [f"  {line}" for line in head_map(scores)]
    return lines


def _vocabulary(findings: VocabularyFindings) -> str:
    before, after, whole = findings.before, findings.after, findings.whole_words
    words = "" if whole is None else f"{whole:.1%} of the words of held-out texts stay whole; these"
    return (
        f"vocabulary: {after.entries} of {before.entries} tokens; {words or 'held-out texts'} have "
        f"{after.pieces_per_text:.1f} tokens ({before.pieces_per_text:.1f} before), "
        f"{after.unknown:.2%} unknown ({before.unknown:.2%})"
    )


def _where(scores: ScoreFindings | None) -> str:
    """Return where these scores are from, and the held-out ones, where these are others."""
    if scores is None or scores.chosen_on != "selection":
        return ""
    return (
        f", on texts set apart to choose by; held-out, read once: {number(scores.score)}, "
        f"{number(scores.score_before)} unpruned"
    )


def _speed(latency: LatencyFindings) -> str:
    measured, load = latency.measured, latency.table.load
    return (
        f"{measured.value:.2f}x as fast as unpruned [{measured.low:.2f}, "
        f"{measured.high:.2f}], {latency.predicted:.2f}x foretold, {latency.target:g}x asked "
        f"for; texts in a batch: {load.texts}, tokens: {load.tokens}, "
        f"threads: {load.threads}, in PyTorch on the CPU{_machine(latency.table.machine_load)}"
    )


def _machine(load: MachineLoad | None) -> str:
    """Return what disturbed the times that the pruning went by, where something did."""
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
