"""Candidates of `bertender compress`, and the chosen model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import cells
from benchmarks.harness import Out, Row, Run, recorded, save_runs
from bertender.core.machine import Environment, MachineLoad

WHY = {
    "half of the budget": "half of the budget was gone",
    "others fill": "others were trained",
    "another one of its start": "another has as many weights",
}


def run(
    folder: Annotated[Path, typer.Argument(help="folder of `bertender compress --out`")],
    command: Annotated[str, typer.Option(help="the command that wrote it")] = "",
    out: Out = None,
) -> None:
    """Record the report and the table of a compression."""
    report, comparison = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("report.json", "table.json")
    )
    del report["probes"]
    runs = [
        _recorded(command, report.pop("candidates"), report, "report"),
        _recorded(command, comparison.pop("rows"), comparison.pop("circumstances"), "table"),
    ]
    save_runs(runs, out)


def _recorded(command: str, rows: Sequence[Row], about: Row, part: str) -> Run:
    """Return the record of a file: it was measured on the machine that it names."""
    environment, load = Environment(**about.pop("environment")), MachineLoad(**about.pop("load"))
    made = recorded("compress", rows, load, **about, part=part)
    return made.model_copy(update={"environment": environment, "command": command})


def table(runs: Sequence[Run]) -> cells.Table:
    """Candidates: size and time against the limits, scores, and why others were left out."""
    report = part_of(runs, "report")
    shown = _nearest(report.rows)
    rows = []
    for row in shown:
        measured = row["measured"] or row["predicted"]
        about = "" if row["measured"] else "~"
        choice = row["choice"] or (row["rounds"][-1]["score"] if row["rounds"] else None)
        chosen_by = cells.DASH if choice is None else f"{choice:.2f}"
        mb, ms = (f"{about}{cells.two(measured[cost])}" for cost in ("model_mb", "single_ms"))
        why = [cells.score(row["score"]), _why(row)]
        rows.append([title(row["candidate"]), mb, ms, chosen_by, *why])
    limits, others = report.about["config"], len(report.rows) - len(shown)
    note = (
        f"Limits: {limits['max_mb']:g} MB, {limits['max_ms']:g} ms, {report.about['metric']} "
        f"{limits['min_score']:g}; ~ is predicted; {others} further candidates "
        f"were predicted, {report.about['minutes']:.0f} minutes in all. {cells.machine(report)}."
    )
    return cells.Table(["Candidate", "MB", "ms", "To choose by", "Held out", "Why not"], rows, note)


STEPS = {
    "teacher": "teacher, in PyTorch",
    "student": "student, in PyTorch",
    "onnx": "its ONNX graph",
    "int8": "its 8 bits, tables in 4",
}


def chain_table(runs: Sequence[Run]) -> cells.Table:
    """From the teacher to the chosen model: size, score, and the share of the teacher's score."""
    result = part_of(runs, "table")
    first = result.rows[0]
    rows = []
    for row in result.rows:
        size, share, speedup = cells.megabytes(row), cells.DASH, cells.DASH
        if row is not first:
            whole, part = (each["size"]["artifact_size_bytes"] for each in (first, row))
            size += f", {cells.two(whole / part)}x smaller"
            points = (row["change"][name] for name in ("value", "low", "high"))
            value, low, high = (100 + each / first["score"]["value"] for each in points)
            share = f"{value:.1f} % [{low:.1f}, {high:.1f}]"
            speedup = cells.times(row["latency"]["speedup"])
        title = STEPS.get(row["name"], str(row["name"]))
        rows.append([title, size, cells.score(row["score"]), share, cells.single_ms(row), speedup])
    headings = ["Model", "MB", "Score", "Of the teacher's", "One text, ms", "Times as fast"]
    return cells.Table(headings, rows, cells.compared_note(result))


def _nearest(rows: Sequence[Row]) -> list[Row]:
    """Return the candidates that were trained, and of each other reason the nearest one."""
    trained = [row for row in rows if row["rounds"]]
    given = {_why(row) for row in trained}
    fitting = [row for row in rows if row["fits"] and _why(row) not in given]
    # of equal reasons the last remains, which fits the limits most closely
    fitting.sort(key=lambda row: row["predicted"]["model_mb"] * row["predicted"]["single_ms"])
    nearest = {_why(row): row for row in fitting}
    return [*trained, *reversed(nearest.values())]


def part_of(runs: Sequence[Run], part: str) -> Run:
    """Return the report of a compression, or its table."""
    (found,) = (run for run in runs if run.about["part"] == part)
    return found


def title(candidate: Row) -> str:
    """Return a candidate in words."""
    parts = [part for part in ("heads", "ffn") if candidate[part]]
    cuts = [f"{100 * candidate[part]:.0f} % of {part}" for part in parts]
    words = f"{candidate['start']['name']}, {candidate['layers']} layers"
    scheme = {"four-bit-embeddings": "4-bit table"}.get(candidate["scheme"], candidate["scheme"])
    less = f", less {' and '.join(cuts)}" if cuts else ""
    return f"{words.replace('1 layers', '1 layer')}{less}, {scheme}"


def _why(row: Row) -> str:
    if row["left_out"] is None:
        return "chosen"
    words: str = row["left_out"]
    return next((short for start, short in WHY.items() if words.startswith(start)), words)
