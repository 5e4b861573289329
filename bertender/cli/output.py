"""Output of the commands: results as one line of JSON, or as text for a person."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bertender.cli.findings import (
    bundle_lines,
    calibration_lines,
    control_lines,
    graph_lines,
    language_lines,
    pruning_lines,
    quantization_lines,
    teacher_lines,
)
from bertender.comparison.records import measure_size
from bertender.comparison.table import DASH, number
from bertender.core.artifact import Artifact, read_timing
from bertender.core.card import LeftOutRows
from bertender.core.config import Record
from bertender.core.findings import Findings
from bertender.core.progress import SafeConsole
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem

WIDEST = 1000


console = SafeConsole()
messages = SafeConsole(stderr=True)
"""Console for progress messages: standard output is for results."""


def announce(text: str) -> None:
    """Announce the next step."""
    messages.print(text, highlight=False, markup=False)


def print_json(value: Any) -> None:
    """Print a result as one line of ASCII JSON, the last thing on standard output."""
    print(json.dumps(_plain(value), default=str, allow_nan=False), flush=True)


def with_left_out(result: Record, left_out: LeftOutRows | None) -> dict[str, Any]:
    """Return a result as it is saved, and the rows that were left out, if any."""
    return {
        **result.model_dump(mode="json"),
        **({} if left_out is None else {"left_out": left_out}),
    }


def print_result(result: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as JSON, or else the lines that describe it."""
    if as_json:
        print_json(result)
        return
    for line in lines:
        print_words(line)


def print_words(words: str, style: str = "") -> None:
    """Print text literally: without markup, and without breaking lines."""
    console.print(Text(words, style=style), soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table at full width: a narrow terminal wraps lines, but no cell is cut."""
    needed = Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    (console if console.width >= needed else SafeConsole(width=needed)).print(table)


def artifact_summary(artifact: Artifact) -> dict[str, Any]:
    """Return the JSON of a stage for its artifact."""
    card, timing = artifact.card, read_timing(artifact)
    return {
        "artifact": str(artifact.path),
        "digest": artifact.digest,
        "stage": card.stage,
        "kind": card.kind,
        "precision": card.precision,
        "max_length": card.max_length,
        "size": measure_size(artifact, card.findings.parameters),
        "findings": card.findings,
        "left_out": card.task.left_out,
        "timing": timing and timing.summary(),
    }


def print_artifact(artifact: Artifact) -> None:
    """Describe the artifact of a stage in a few lines."""
    card, timing = artifact.card, read_timing(artifact)
    size = measure_size(artifact, card.findings.parameters)
    parameters = DASH if size.millions is None else f"{size.millions:.1f}M"
    reads = f", reads {card.max_length} tokens of a text" if card.max_length else ""
    print_words(
        f"{artifact.path}: {card.kind}, {card.precision}, {parameters} parameters, "
        f"{size.artifact_size_bytes / 1e6:.1f} MB{reads}"
    )
    own = artifact.has_own_calibration
    for line in (
        *_measured(card.findings, PROBLEMS.get(card.task.problem_type)),
        *calibration_lines(card.task, card.findings, is_own=own),
    ):
        print_words(f"  {line}")
    if timing is not None:
        print_words(
            f"  trained on {timing.samples_per_s:.0f} texts/s; the teacher took "
            f"{timing.teacher_share:.0%} of {timing.wall_s:.0f} s"
        )


def _measured(findings: Findings, problem: Problem[Any] | None) -> Iterator[str]:
    """Yield the findings as lines; an encoder has no problem type."""
    yield from _trained(findings)
    if findings.lengths:
        yield from findings.lengths.lines()
    yield from language_lines(findings)
    yield from teacher_lines(findings)
    yield from control_lines(findings)
    if (parity := findings.parity) is not None:
        agreement = "" if parity.agreement is None else f"agreement {parity.agreement:.4f} "
        most, output = parity.max_abs_difference, problem.output if problem else "logit"
        yield (
            f"parity with {parity.reference}: {agreement}over {parity.texts} texts, largest "
            f"{output} difference {DASH if most is None else f'{most:.2g}'}"
        )
    yield from graph_lines(findings)
    yield from bundle_lines(findings)
    yield from pruning_lines(findings)
    yield from quantization_lines(findings)


def _trained(findings: Findings) -> Iterator[str]:
    """Yield the scores of a training, and of other tasks learned in it."""

    def last(epochs: Sequence[Mapping[str, float]]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in epochs[-1].items())

    training, scores = findings.training, findings.scores
    apart = scores is not None and scores.chosen_on == "selection"
    if training and training.epochs:
        # for general encoders, texts of the corpus
        where = "validation" if apart else "held-out"
        when = "the last epoch"
        if training.kept_epoch is not None:
            when = f"epoch {training.kept_epoch} of {len(training.epochs)}, the best"
        yield f"{where} after {when}: {last(training.epochs[: training.kept_epoch])}"
    if scores and apart and not (findings.pruning or findings.quantization):
        yield f"held-out, read once: {number(None if scores.undefined else scores.score)}"
    if scores and scores.undefined is not None:
        yield f"the metric has no value on the held-out texts: {scores.undefined}"
    if scores and scores.constant:
        yield f"on the held-out texts, it {scores.constant.words}"
    if training and training.unlabelled_texts is not None:
        filters = training.unlabelled_left_out or {}
        left_out = ", ".join(f"{count} by {name}" for name, count in filters.items())
        filtered = f"; left out: {left_out}" if left_out else ""
        yield f"unlabelled texts: {training.unlabelled_texts} learned from{filtered}"
    for task, other in training.together.items() if training else ():
        yield f"task {task}, in {other.artifact} next to it: {last(other.epochs)}"


def print_entry(title: str, lines: Iterable[str], style: str = "bold") -> None:
    """Print a title and, indented below it, lines wrapped to the terminal's width."""
    print_words(title, style)
    for line in lines:
        # a path must not be cut, to stay usable
        width = max(console.width - 4, 20)
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False):
            print_words(f"    {part}")


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table."""
    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_listing(rows: list[dict[str, Any]]) -> None:
    """Print rows with a name and its description."""
    for row in rows:
        (_, name), (_, summary), *others = row.items()
        lines = [summary]
        for key, value in others:
            words = ", ".join(value) if isinstance(value, list) else str(value)
            lines.append(f"{key}: {words or 'nothing'}")
        print_entry(name, lines)


def _plain(value: Any) -> Any:
    """Return the value in plain types, with null for figures that are not numbers, which JSON
    lacks."""
    if isinstance(value, Record):
        value = value.model_dump(mode="json")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
