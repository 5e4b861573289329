"""The findings of an artifact's card as lines for the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from bertender.comparison.cells import number
from bertender.core.findings import (
    ControlFindings,
    Findings,
    LatencyFindings,
    ProductCheck,
    QuantizationFindings,
    SaturationFindings,
    ScoreFindings,
    SensitivityFindings,
    TriedScheme,
    VocabularyFindings,
)
from bertender.core.machine_load import MachineLoad
from bertender.models.runtimes import RUNTIMES

# --- from bertender.report.control
# The gain of a student over its control, as a sentence.


def control_lines(findings: Findings) -> list[str]:
    """Return what distilling gave, of a student that was trained with its control.

    The held-out texts say that; which of the two to deploy, the texts to choose by do.
    """
    control = findings.control
    return [] if control is None else [_sentence(control), *_stuck(control), *_taken(control)]


def _stuck(control: ControlFindings) -> list[str]:
    if control.constant is None:
        return []
    return [
        f"the control {control.constant.words}: it has learned nothing to compare with. Try "
        "another learning_rate, or more epochs"
    ]


def _taken(control: ControlFindings) -> list[str]:
    if control.choice is None or control.choice >= control.control_choice:
        return []
    return [
        f"on the texts to choose by, the control scores {number(control.control_choice)} and the "
        f"student {number(control.choice)}: deploy the control, which `{_flags(control)} --epochs "
        f"{control.epochs}` makes with the same other settings"
    ]


def _sentence(control: ControlFindings) -> str:
    same = f"the same student trained on labels alone for {_length(control)}"
    gain = control.gain
    cheaper = f"labels alone do, `{_flags(control)}` is cheaper"
    points = f"{gain.value:+.1f} points [{gain.low:+.1f}, {gain.high:+.1f}]"
    if gain.low > 0:
        return f"distilling gave {points} over {same}"
    if gain.high < 0:
        return f"distilling lost against {same}: {points}; {cheaper}"
    return f"distilling cannot be distinguished from {same}: {points}; {cheaper}"


def _flags(control: ControlFindings) -> str:
    """Return the flags that train a student on labels alone from the same layers."""
    layers = control.teacher_layers
    return "--method hard" + (f" --teacher-layers {layers}" if layers else "")


def _length(control: ControlFindings) -> str:
    """Return how long the better control was trained, and why so long."""
    epochs, longest = (_epochs(count) for count in (control.epochs, control.runs[-1].epochs))
    if control.epochs < control.runs[-1].epochs:
        return f"{epochs} (as its last phase; {longest} scored no more)"
    if control.epochs < control.equal_epochs:
        return f"{epochs} (the most; equal computation is {_epochs(control.equal_epochs)})"
    return f"{epochs} (equal computation)"


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


# --- from bertender.report.graph
# An exported graph as lines for the terminal.


def graph_lines(findings: Findings) -> list[str]:
    """Return an onnx artifact's findings of its graph; nothing for other artifacts."""
    if not (graph := findings.graph):
        return []
    lines = [f"graph: opset {graph.opset}, {graph.nodes} nodes, optimize {graph.optimize}"]
    if graph.fused:
        counts = ", ".join(f"{count} {name}" for name, count in graph.fused.items())
        lines.append(f"fused of {graph.layers} layers: {counts}")
    if numbers := findings.numbers:
        lines.append(
            f"largest number on {numbers.texts} texts: {numbers.largest:.4g}, at {numbers.place}"
        )
    return lines


# --- from bertender.report.heads
# What was cut of a model, as lines for the terminal: scores, and a map of layers x heads.

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


# --- from bertender.report.quantization
# A quantization's findings in a few lines, from an artifact's card alone.

SHOWN_PARTS = 5
INTEGER = re.compile(r"Integer|Quantize|NBits|QAttention|QGemm|QLinear| [ui][48]$")
"""In the names of ONNX Runtime's operators and of OpenVINO's, which end in their precision."""


def quantization_lines(findings: Findings) -> list[str]:
    """Return the lines; none where nothing was quantized."""
    if not (quantization := findings.quantization):
        return []
    return [
        _products(quantization),
        *_weight_bits(quantization.weight_bits),
        *_fused_attentions(quantization.fused_attentions),
        *_saturation(quantization.saturation),
        *_product_check(quantization.product_check),
        *map(_tried, quantization.tried),
        *_scores(findings.scores),
        *_sensitivity(quantization.sensitivity),
    ]


def _products(quantization: QuantizationFindings) -> str:
    """Return what was quantized, and what of it runs in integers."""
    stays = f"{len(quantization.float_nodes)} nodes stay in float"
    if quantization.running_in_integers is None:
        return (
            f"for {quantization.target}: {quantization.products} products quantized; {stays}. What "
            "runs there was not checked, as this machine is none: quantize there, or verify there"
        )
    operators = ", ".join(f"{count} {name}" for name, count in _integer(quantization).items())
    return (
        f"for {quantization.target}, {RUNTIMES[quantization.runtime].title}: "
        f"{quantization.running_in_integers} of {quantization.products} quantized "
        f"products run in integers ({operators}); {stays}"
    )


def _weight_bits(bits: Mapping[str, int] | None) -> list[str]:
    """Return how many products have which bits in the file, where some have fewer than 8."""
    if not bits:
        return []
    counts = sorted(Counter(bits.values()).items())
    shown = ", ".join(f"{count} of {width} bits" for width, count in counts)
    return [f"weights of products in the file: {shown}, the others of 8; they are multiplied in 8"]


def _fused_attentions(count: int | None) -> list[str]:
    return [] if count is None else [f"attentions that are one operator: {count}"]


def _integer(quantization: QuantizationFindings) -> dict[str, int]:
    """Return the counted operators that multiply by integers or turn floats into them."""
    return {name: count for name, count in quantization.operators.items() if INTEGER.search(name)}


def _saturation(saturation: SaturationFindings | None) -> list[str]:
    if saturation is None or saturation.largest_deviation is None:
        return []
    return [
        f"sums of {saturation.products} products, each on its own inputs, are off from "
        f"exact ones by {saturation.largest_deviation:.2g} of the largest at most"
    ]


def _product_check(check: ProductCheck | None) -> list[str]:
    """Return the product that is the least like its float twin; earlier cards have none."""
    if check is None or not check.worst:
        return []
    node, likeness = next(iter(check.worst.items()))
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in likeness.figures.items()
    )
    return [
        f"{check.checked} products and tables compared with their float twins; least like it: "
        f"{node} ({figures})"
    ]


def _tried(tried: TriedScheme) -> str:
    if tried.refused is None:
        return f"scheme {tried.scheme} was skipped: {tried.skipped}"
    return f"scheme {tried.scheme} was refused: {tried.refused}"


def _scores(scores: ScoreFindings | None) -> list[str]:
    if scores is None:
        return []
    before, after = number(scores.score_before), number(scores.score)
    return [f"score {before} before, {after} now{_chosen(scores)}"]


def _chosen(scores: ScoreFindings) -> str:
    """Return the scores by which a drop was judged, where they are not the held-out ones."""
    if scores.chosen_on != "selection" or not (choice := scores.choice):
        return ""
    return (
        f" (held-out, read once; judged by {choice.n} texts set apart: "
        f"{choice.before:.4g} before, {choice.after:.4g} now)"
    )


def _sensitivity(sensitivity: SensitivityFindings | None) -> list[str]:
    """Return the most sensitive parts, and what became of them."""
    if sensitivity is None or not sensitivity.by_node:
        return []
    back = sensitivity.returned
    rows = [
        f"  {value:10.3g}  {node}{'  (went back)' if node in back else ''}"
        for node, value in list(sensitivity.by_node.items())[: max(SHOWN_PARTS, len(back))]
    ]
    return ["most sensitive parts:", *rows]
