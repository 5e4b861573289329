"""Findings of an artifact's card and of the parity gate, as lines for the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from bertender.comparison.table import DASH, captioned_table, number
from bertender.core.card import TaskRecord
from bertender.core.findings import (
    ControlFindings,
    Findings,
    LatencyFindings,
    ScoreFindings,
    SensitivityFindings,
    VocabularyFindings,
)
from bertender.models.runtimes import RUNTIMES

if TYPE_CHECKING:  # imported in every command, and the gate takes a while to import
    from bertender.gate.judge import Parity

SHADES = " ▁▂▃▄▅▆▇█"
"""Blocks from lowest to highest."""
SHOWN_PARTS = 5
INTEGER = re.compile(r"Integer|Quantize|NBits|QAttention|QGemm|QLinear| [ui][48]$")
"""Parts of operator names of ONNX Runtime and OpenVINO (which end in their precision)."""


def control_lines(findings: Findings) -> list[str]:
    """Return the gain by distilling, for a student that was trained with its control.

    Held-out texts give the gain; the validation texts decide which of the two to deploy.
    """
    if (control := findings.control) is None:
        return []
    layers, of_file = control.teacher_layers, findings.teacher_file is not None
    flags = "--method hard" + (f" --teacher-layers {layers}" if layers else "")
    lines = [_gain(control, "" if of_file else flags)]
    if control.constant is not None:
        lines.append(
            f"the control {control.constant.words}: it has learned nothing to compare with. Try "
            "another learning_rate, or more epochs"
        )
    if control.choice < control.control_choice:
        makes = f"`{flags} --epochs {control.epochs}` makes with the same other settings"
        if of_file:
            makes = "`bertender finetune` makes of the file's hard labels"
        lines.append(
            f"on the validation texts, the control scores {number(control.control_choice)} and "
            f"the student {number(control.choice)}: deploy the control, which {makes}"
        )
    return lines


def _gain(control: ControlFindings, flags: str) -> str:
    """Return the gain as a line; `flags` make the control, empty if the teacher is a file."""
    epochs, longest, equal = (
        f"{count} epoch{'' if count == 1 else 's'}"
        for count in (control.epochs, control.runs[-1].epochs, control.equal_epochs)
    )
    length = f"{epochs} (equal computation)"
    if control.epochs < control.runs[-1].epochs:
        length = f"{epochs} (as its last phase; {longest} scored no more)"
    elif control.epochs < control.equal_epochs:
        length = f"{epochs} (the most; equal computation is {equal})"
    labels = "labels" if flags else "the file's hard labels"
    same = f"the same student trained on {labels} alone for {length}"
    gain, cheaper = control.gain, f"; labels alone do, `{flags}` is cheaper" if flags else ""
    points = f"{gain.value:+.1f} points [{gain.low:+.1f}, {gain.high:+.1f}]"
    if gain.low > 0:
        return f"distilling gave {points} over {same}"
    if gain.high < 0:
        return f"distilling lost against {same}: {points}{cheaper}"
    return f"distilling cannot be distinguished from {same}: {points}{cheaper}"


def teacher_lines(findings: Findings) -> list[str]:
    """Return the file that a student learned from, and their agreement; empty for others."""
    if (file := findings.teacher_file) is None:
        return []
    gold = f", {file.gold} texts with gold labels" if file.gold else ""
    lines = [
        f"learned from {file.path} ({file.sha256[:12]}): {file.rows} rows of {file.form}{gold}"
    ]
    if file.calibration_error is not None:
        teacher = file.teacher_calibration_error
        theirs = "" if teacher is None else f"; the teacher's {number(teacher)}"
        lines.append(
            f"expected calibration error of held-out probabilities: "
            f"{number(file.calibration_error)}{theirs}"
        )
    if file.held_out:
        lines.append(
            f"agrees with it on {file.held_out} held-out texts: {number(file.agreement)}; the "
            f"teacher scores {number(file.score)} there"
        )
    return lines


def language_lines(findings: Findings) -> list[str]:
    """Return the languages that an encoder was trained on, and their shares; empty for others."""
    return [
        f"{each.name}: {each.share:.1%} of the tokens, read as {each.sampled:.1%}"
        for each in findings.languages or ()
    ]


def graph_lines(findings: Findings) -> list[str]:
    """Return an onnx artifact's findings on its graph; empty for others."""
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


def bundle_lines(findings: Findings) -> list[str]:
    """Return the program that opens a bundle, and notes; empty for others."""
    if not (bundle := findings.bundle):
        return []
    return [f"opens as {bundle.opens_as}", f"checked by {bundle.checked_by}", *bundle.notes]


def calibration_lines(task: TaskRecord, findings: Findings, *, is_own: bool) -> list[str]:
    """Return a calibration and its effect on held-out texts; empty for others.

    Args:
        task: task on the card.
        findings: findings on the card.
        is_own: whether it was fitted for this artifact, not for its parent.
    """
    if (own := task.calibration) is None:
        return []
    value = f", {own.temperature:.3g}" if own.method == "temperature" else ""
    lines = [f"calibrated by {own.method}{value}, on {own.texts} validation texts"]
    if not is_own:
        lines.append("fitted for the model that it was made from; to fit it: bertender calibrate")
    if found := findings.calibration:
        measures = (("ECE", "ece"), ("Brier score", "brier"), ("negative log-likelihood", "nll"))
        for title, name in measures:
            change = found.changes[name]
            before, after = getattr(found.before, name), getattr(found.after, name)
            lines.append(
                f"{title} {before:.4f} before, {after:.4f} now on {found.texts} held-out texts: "
                f"{change.words} ({change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}])"
            )
    return lines


def pruning_lines(findings: Findings) -> list[str]:
    """Return what was cut from an artifact; empty for others."""
    if not (pruning := findings.pruning):
        return [_vocabulary(findings.vocabulary)] if findings.vocabulary else []
    last, scores = pruning.rounds[-1], findings.scores
    held_out = ""
    if scores is not None and scores.chosen_on == "selection":
        held_out = (
            f", on validation texts; held-out, read once: {number(scores.score)}, "
            f"{number(scores.score_before)} unpruned"
        )
    lines = [
        f"score {last.score:.4g}, {last.score_after_cut:.4g} before recovery, "
        f"{pruning.unpruned:.4g} unpruned{held_out}",
        f"heads by layer: {', '.join(map(str, last.heads))}; "
        f"neurons: {', '.join(map(str, last.neurons))}",
    ]
    if pruning.latency:
        lines.append(_speed(pruning.latency))
    if pruning.vocabulary:
        lines.append(_vocabulary(pruning.vocabulary))
    if importance := pruning.rounds[0].head_importance:
        lines += ["importance of the heads before the first cut, a layer a line:"]
        lines += [f"  {line}" for line in head_map(importance)]
    return lines


def _vocabulary(findings: VocabularyFindings) -> str:
    before, after = findings.before, findings.after
    return (
        f"vocabulary: {after.entries} of {before.entries} tokens; {findings.whole_words:.1%} of "
        "the words of held-out texts stay whole; these have "
        f"{after.pieces_per_text:.1f} tokens ({before.pieces_per_text:.1f} before), "
        f"{after.unknown:.2%} unknown ({before.unknown:.2%})"
    )


def _speed(latency: LatencyFindings) -> str:
    measured, load, machine = latency.measured, latency.table.load, latency.table.machine_load
    noise = f"; NOISY: {machine} while the parts were timed" if machine.noisy else ""
    return (
        f"{measured.value:.2f}x as fast as unpruned [{measured.low:.2f}, "
        f"{measured.high:.2f}], {latency.predicted:.2f}x foretold, {latency.target:g}x asked "
        f"for; texts in a batch: {load.texts}, tokens: {load.tokens}, "
        f"threads: {load.threads}, in PyTorch on the CPU{noise}"
    )


def head_map(scores: Sequence[Sequence[float]]) -> list[str]:
    """Return a line for each layer, with a block for each head as high as its score.

    Args:
        scores: scores of at least 0, one row per layer, from the lowest.
    """
    most = max((score for layer in scores for score in layer), default=0.0) or 1.0
    highest = len(SHADES) - 1
    return [
        f"{place:>2} {''.join(SHADES[round(score / most * highest)] for score in layer)}"
        for place, layer in enumerate(scores)
    ]


def quantization_lines(findings: Findings) -> list[str]:
    """Return what was quantized, and the results of its checks; empty if nothing was."""
    if not (found := findings.quantization):
        return []
    in_float = f"{len(found.float_nodes)} nodes stay in float"
    if found.running_in_integers is None:
        lines = [
            f"for {found.target}: {found.products} products quantized; {in_float}. What runs there "
            "was not checked, as this machine is none: quantize there, or verify there"
        ]
    else:
        counts = {name: count for name, count in found.operators.items() if INTEGER.search(name)}
        operators = ", ".join(f"{count} {name}" for name, count in counts.items())
        lines = [
            f"for {found.target}, {RUNTIMES[found.runtime].title}: {found.running_in_integers} of "
            f"{found.products} quantized products run in integers ({operators}); {in_float}"
        ]
    if found.weight_bits:
        widths = sorted(Counter(found.weight_bits.values()).items())
        shown = ", ".join(f"{count} of {width} bits" for width, count in widths)
        lines.append(
            f"weights of products in the file: {shown}, the others of 8; they are multiplied in 8"
        )
    if found.smoothing_db:
        lines.append(
            f"activations whose outlier channels are scaled: {len(found.smoothing_db)}, by which "
            f"their products have at least {min(found.smoothing_db.values()):.0f} dB less noise"
        )
    if found.fused_attentions is not None:
        lines.append(f"attentions that are one operator: {found.fused_attentions}")
    if (sums := found.saturation) and sums.largest_deviation is not None:
        lines.append(
            f"sums of {sums.products} products, each on its own inputs, are off from exact ones by "
            f"{sums.largest_deviation:.2g} of the largest at most"
        )
    if (check := found.product_check).worst:
        node, likeness = next(iter(check.worst.items()))
        figures = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}" for name, value in likeness.figures.items()
        )
        lines.append(
            f"{check.checked} products and tables compared with their float originals; least "
            f"like it: {node} ({figures})"
        )
    lines += [
        f"scheme {tried.scheme} was skipped: {tried.skipped}"
        if tried.refused is None
        else f"scheme {tried.scheme} was refused: {tried.refused}"
        for tried in found.tried
    ]
    return [*lines, *_scores(findings.scores), *_sensitivity(found.sensitivity)]


def _scores(scores: ScoreFindings | None) -> Iterator[str]:
    """Yield the scores, and those used to judge a drop if these differ."""
    if scores is None:
        return
    judged = ""
    if scores.chosen_on == "selection" and (choice := scores.choice):
        judged = (
            f" (held-out, read once; judged by {choice.n} validation texts: "
            f"{choice.before:.4g} before, {choice.after:.4g} now)"
        )
    yield f"score {number(scores.score_before)} before, {number(scores.score)} now{judged}"


def _sensitivity(sensitivity: SensitivityFindings | None) -> Iterator[str]:
    """Yield the most sensitive parts, and their treatment."""
    if sensitivity is None or not sensitivity.by_node:
        return
    back = sensitivity.returned
    yield "most sensitive parts:"
    for node, value in list(sensitivity.by_node.items())[: max(SHOWN_PARTS, len(back))]:
        yield f"  {value:10.3g}  {node}{'  (went back)' if node in back else ''}"


def parity_table(parity: Parity) -> Table:
    """Return a table of the parity gate: each arrangement of the texts, and the verdict."""
    table = captioned_table(parity_lines(parity))
    table.add_column("Arrangement")
    for heading in ("Predictions", "Max difference", "Agreement"):
        table.add_column(heading, justify="right")
    for case in parity.cases:
        rows = str(case.rows) if case.rows else DASH
        cells = (case.name, rows, number(case.max_abs_difference), number(case.agreement))
        table.add_row(*map(Text, cells))
    return table


def parity_lines(parity: Parity) -> list[str]:
    """Return the verdict, the judged figures with their bounds, and every failure."""
    verdict = "passed" if parity.passed else f"FAILED, {parity.failure_count}"
    where = f" in {RUNTIMES[parity.runtime].title}" if parity.runtime else ""
    return [
        f"parity of {parity.candidate} with {parity.reference}: {verdict}",
        f"{parity.texts} texts, {parity.rows} predictions{where}; "
        f"{parity.scale_name} {number(parity.logit_scale)}, "
        f"spread over texts {number(parity.logit_spread)}",
        *_logits(parity),
        *_agreement(parity),
        *_compared(parity),
        *(f"failed: {failure}" for failure in parity.failures),
    ]


def _logits(parity: Parity) -> Iterator[str]:
    """Yield the bounded figures for single logits, or for their distribution over texts."""
    bounds = parity.tolerance
    if None not in (bounds.max_abs, bounds.mean_abs, bounds.min_cosine):
        scale = parity.logit_scale
        most, mean = (
            number(None if scale is None else (share or 0.0) * scale)
            for share in (bounds.max_abs, bounds.mean_abs)
        )
        yield (
            f"difference {number(parity.max_abs_difference)} at most (allowed {most}), "
            f"{number(parity.mean_abs_difference)} on average in the worst arrangement "
            f"(allowed {mean}); "
            f"cosine {number(parity.min_cosine)} at least (allowed {bounds.min_cosine:g})"
        )
    if None not in (bounds.max_median, bounds.max_p95, bounds.max_edge):
        yield (
            f"difference in spreads: median text {number(parity.median_difference)}, "
            f"{number(parity.median_difference_low)} at best (allowed {bounds.max_median:g}), "
            f"95th percentile {number(parity.p95_difference)}, "
            f"{number(parity.p95_difference_low)} at best (allowed {bounds.max_p95:g}), "
            f"edge texts {number(parity.edge_difference)} (allowed {bounds.max_edge:g})"
        )
    if parity.common_shift is not None and bounds.min_correlation is not None:
        yield (
            f"all texts together moved by {number(parity.common_shift)} of the "
            f"{parity.output}s' size, {number(parity.logit_size)}; correlation over texts "
            f"{number(parity.correlation)}, {number(parity.correlation_high)} at best "
            f"(allowed {bounds.min_correlation:g})"
        )


def _agreement(parity: Parity) -> Iterator[str]:
    """Yield the share of equal decisions; nothing for numbers, which have no decisions."""
    if parity.output == "logit":
        yield (
            f"agreement {number(parity.agreement)} of all predictions; without near-ties "
            f"{number(parity.decided_agreement)} in the worst arrangement, "
            f"{number(parity.decided_agreement_high)} at best "
            f"(allowed {parity.tolerance.min_agreement:g}); near-ties: {number(parity.near_ties)}, "
            f"turned {number(parity.near_ties_turned)}"
        )


def _compared(parity: Parity) -> Iterator[str]:
    """Yield what else was compared."""
    if parity.score_change is not None:
        least = parity.tolerance.min_score_change
        allowed = "" if least is None else f" (allowed {least:g})"
        yield (
            f"score {parity.score_change:+.2f} points in the worst arrangement, "
            f"{number(parity.score_change_high)} at best{allowed}"
        )
    yield "tokens compared" if parity.inputs_compared else "tokens not comparable"
    if parity.graphs_compared is not None:
        state = "compared" if parity.graphs_compared else "not compared: the float one is missing"
        yield f"products of both graphs {state}"
