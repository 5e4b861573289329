"""The table of systems in the layout of compression studies, as Markdown, from its raw result."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.compression.gains import control_of, gains_of
from benchmarks.compression.reading import compression_reading
from benchmarks.compression.records import CompressionBenchmark, TrainedSystem
from benchmarks.compression.systems import SYSTEMS, Published
from benchmarks.students.measuring import ScoredModel, groups_of
from benchmarks.students.table import retained
from bertender.core.processors import processor_name
from bertender.measure.comparison import ComparisonRow
from bertender.metrics.records import Change
from bertender.report.cells import DASH, markdown_rows, short, speedup_cell

__all__ = ["compression_block"]

GRAPHS = (
    "Smaller",
    "Faster",
    "Points by quantizing",
    "Smaller, quantized",
    "Faster, quantized",
)
HEADINGS = (
    "System",
    "Trained on",
    "Score",
    "Retained",
    "Points over labels alone",
    *GRAPHS,
    "Published: retained",
    "Published: smaller",
    "Published: faster",
)
FLOAT, INT8 = "float32", "int8"


def compression_block(file: str, path: Path) -> str:
    """Return the table, what is not in it and why, and the conditions."""
    result = CompressionBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    groups = groups_of(result.scores.students)
    gains = gains_of(result)
    rows = [
        _teacher(result),
        *(_row(each, groups[each.name], gains.get(each.name), result) for each in result.systems),
    ]
    shown = [place for place, name in enumerate(HEADINGS) if result.speeds or name not in GRAPHS]
    heads, *cells = ([(row[place],) for place in shown] for row in (HEADINGS, *rows))
    lines = markdown_rows(heads, cells, [1 < place < len(HEADINGS) - 3 for place in shown])
    notes = _notes(result)
    words = [*notes, *([""] if notes else []), compression_reading(result), _conditions(result)]
    return "\n".join([*lines, "", *words, "", f"Raw: `{file}`\n"])


def _teacher(result: CompressionBenchmark) -> list[str]:
    score = f"{result.scores.teacher.score.value:.3f}"
    small = _figures(result, _quantized(result.teacher_graphs))
    change = _points_by_quantizing(result, result.teacher_graphs)
    return ["the teacher", DASH, score, *[DASH] * 4, change, *small, *[DASH] * 3]


def _row(
    system: TrainedSystem,
    group: Sequence[ScoredModel],
    gain: Change | None,
    result: CompressionBenchmark,
) -> list[str]:
    row, share = SYSTEMS[system.name], retained(group, result.scores)
    score = f"{statistics.mean([each.score.value for each in group]):.3f}"
    remaining = DASH if share is None else f"{share:.1%}"
    large = _figures(result, system.graphs.get(FLOAT))
    small = _figures(result, _quantized(system.graphs))
    over = DASH if gain is None else points(gain)
    names = ", ".join(filter(None, (f"`{system.name}`", row.paper)))
    first = f"{row.title} ({names})", _trained_on(system)
    change = _points_by_quantizing(result, system.graphs)
    return [*first, score, remaining, over, *large, change, *small, *_published(row.published)]


def _quantized(graphs: Mapping[str, str]) -> str | None:
    """Return the name of the graph that is not of floats; None where there is none."""
    return next((name for precision, name in graphs.items() if precision != FLOAT), None)


def _trained_on(system: TrainedSystem) -> str:
    seconds = f"{statistics.mean(system.processor_s):.0f} s"
    if system.epochs > 1:
        return f"{system.epochs} epochs of {system.labelled_texts:,} texts, {seconds}"
    texts = system.labelled_texts + system.unlabelled_texts
    return f"{texts:,} {'text' if texts == 1 else 'texts'}, {seconds}"


def _points_by_quantizing(result: CompressionBenchmark, graphs: Mapping[str, str]) -> str:
    """Return what the quantized graph of the first seed scores over its float one.

    A comparison has intervals of changes from its first row, so that only the teacher's is shown
    with one.
    """
    rows = {row.name: row for row in _timed_rows(result)}
    large, small = (rows.get(each or "") for each in (graphs.get(FLOAT), _quantized(graphs)))
    if large is None or small is None:
        return DASH
    if graphs == result.teacher_graphs and small.change is not None:
        return points(small.change)
    return f"{100 * (small.score.value - large.score.value):+.1f}"


def _figures(result: CompressionBenchmark, name: str | None) -> list[str]:
    """Return how much smaller and faster than the teacher's float graph a graph is."""
    rows = _timed_rows(result)
    of_graph = [row for row in rows[1:] if row.name == name]
    if not of_graph:
        return [DASH] * 2
    (row,) = of_graph
    return [f"{_smaller(rows[0], row)}x", " ".join(speedup_cell(row.latency.speedup))]


def _timed_rows(result: CompressionBenchmark) -> Sequence[ComparisonRow]:
    return result.speeds.rows if result.speeds else ()


def _smaller(first: ComparisonRow, row: ComparisonRow) -> str:
    return short(first.size.model_size_bytes / row.size.model_size_bytes)


def _published(published: Published) -> list[str]:
    return [
        DASH if published.retained is None else f"{published.retained:g}% of {published.of}",
        DASH if published.smaller is None else f"{published.smaller:g}x",
        DASH if published.faster is None else f"{published.faster:g}x",
    ]


def _notes(result: CompressionBenchmark) -> list[str]:
    refused = [
        (f"{each.name} in {INT8 if FLOAT in each.graphs else FLOAT}", each.refused)
        for each in result.systems
        if each.refused
    ]
    missing = (*result.absent.items(), *refused)
    return [f"- {name}: {_first_reason(reason)}" for name, reason in missing]


def _first_reason(message: str) -> str:
    """Return what a message says, and the first of the reasons that it lists."""
    first, *others = message.splitlines()
    listed = [line.removeprefix("  - ") for line in others if line.startswith("  - ")]
    return " ".join([first, *listed[:1]])


def _conditions(result: CompressionBenchmark) -> str:
    scores = result.scores
    seeds = max((len(each.processor_s) for each in result.systems), default=0)
    whole = [each for each in result.systems if SYSTEMS[each.name].share == 1]
    seconds = [value for each in whole for value in each.processor_s] or [0.0]
    return (
        f"Teacher: {scores.teacher.name}, {scores.teacher.size.millions or 0:.0f}M parameters, "
        f"which learned from {result.labelled_texts:,} labelled texts of {scores.task}; "
        f"{scores.teacher.score.n} held-out texts score. Each training was "
        f"to have {result.budget_s:.0f} s of processor time, the teacher's outputs included, and "
        f"took {min(seconds):.0f} to {max(seconds):.0f} s; texts without labels: "
        f"{result.unlabelled}.{_started(result)} The control is the row of labels alone that is "
        f"best on the texts to choose by: {control_of(result) or 'none'}. Learning rate "
        f"{result.learning_rate:g}, or the method's own where that is higher; {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}{_timing(result)}. "
        "Gains are in points, with intervals over texts, and seeds where there are several. "
        "What the papers state is of other teachers, texts and machines, and of longer trainings. "
        f"{_machine(result)}."
    )


def _timing(result: CompressionBenchmark) -> str:
    if result.speeds is None:
        return ""
    here = result.speeds.circumstances
    return (
        ", of which the first is exported, quantized (dynamic) "
        "and timed, and what it gains by that is in points. Smaller: bytes of the teacher's "
        "float32 graph over its own. Faster: one text "
        "at natural length, the teacher's float32 graph over its own, all in ONNX Runtime "
        f"{here.environment.versions['onnxruntime']}, {here.threads} threads, with intervals of "
        "95 %"
    )


def _machine(result: CompressionBenchmark) -> str:
    here = result.scores.environment
    if result.speeds is None and here.gpu is not None:
        return f"Scored on a machine with {here.gpu}"
    return processor_name(result.speeds.circumstances.environment if result.speeds else here)


def _started(result: CompressionBenchmark) -> str:
    """Return which encoders students start from, in a sentence; nothing where there are none."""
    trained = {each.name for each in result.systems}
    encoders = result.encoders.items()
    starts = [f"`{name}` from {encoder}" for name, encoder in encoders if name in trained]
    if not starts:
        return ""
    return f" Outside of this time, encoders were pre-trained: {', '.join(starts)}."
