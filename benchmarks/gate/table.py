"""The tables of the gate's benchmark, as Markdown: sound candidates refused, faults caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from scipy.stats import binomtest

from benchmarks.common.points import points
from benchmarks.gate.faults import FAULTS
from benchmarks.gate.records import GateBenchmark, Judged
from benchmarks.gate.subject import VARIANTS
from bertender.measure.tolerances import TOLERANCES
from bertender.metrics.resampling import CONFIDENCE
from bertender.report.cells import DASH, Cell, markdown_rows

__all__ = ["bounds_block", "gate_block"]

MOVED = (
    "How far a text's logits move, as a share of the spread of the float model's logits over the "
    "texts; a shift of all texts alike, where that is less, as a share of the logits' size"
)

BOUNDED = (
    (
        "median",
        f"{MOVED}, of the median text: the lower end of its 95 % interval, at most",
        "max_median",
    ),
    (
        "95th percentile",
        "The same of the 95th percentile of texts: the lower end of its interval, at most",
        "max_p95",
    ),
    (
        "edge texts",
        "The same of single words, of over-long texts and of the first tokens of one, alone and in "
        "batches: the median of the worst arrangement, at most",
        "max_edge",
    ),
    (
        "correlation",
        "How the logits of both models go together over the texts: the upper end of its 95 % "
        "interval, at least",
        "min_correlation",
    ),
    (
        "agreement",
        "Equal predictions, near-ties left out: texts whose two largest logits could swap if each "
        "moved by the next row. The 95 % interval of what was seen must reach the share",
        "min_agreement",
    ),
    ("near-tie", "Half the distance of the two largest logits, in spreads, at most", "tie_spreads"),
    (
        "score",
        "Points that the score may change by, at least: its paired 95 % interval must reach this",
        "min_score_change",
    ),
)
"""Check, what it asks, and the field of Tolerance."""

JUDGED: Mapping[str, Callable[[Iterable[float]], float]] = {
    "median_difference_low": max,
    "p95_difference_low": max,
    "common_shift": max,
    "correlation": min,
}
"""Figures in the columns of sound candidates, and which of several is shown."""
SOUND_HEADINGS: tuple[Cell, ...] = (
    ("Variant",),
    ("Candidates",),
    ("Refused",),
    ("By",),
    ("Median, at most",),
    ("95th percentile, at most",),
    ("Shift of all texts, at most",),
    ("Correlation, at least",),
    ("Change of the score of those refused, points",),
)
FAULT_HEADINGS: tuple[Cell, ...] = (
    ("Fault",),
    ("Planted",),
    ("Caught",),
    ("By",),
    ("Refused by the logits",),
    ("Change of the score where it passed, points",),
)


WORDS: tuple[Cell, ...] = (("Variant",), ("Fault",), ("By",))
ALWAYS = (*WORDS, SOUND_HEADINGS[-1], FAULT_HEADINGS[-1])


def gate_block(files: Mapping[str, Path]) -> str:
    """Return both tables of all files together, and the files."""
    rows = [
        row
        for path in files.values()
        for row in GateBenchmark.model_validate_json(path.read_text(encoding="utf-8")).candidates
    ]
    sound = [row for row in rows if row.fault is None]
    faulty = [row for row in rows if row.fault is not None]
    models = sorted({row.teacher for row in rows})
    raw = ", ".join(f"`{file}`" for file in files)
    return "\n".join(
        [
            f"**{_counted(sound, 'sound candidates', 'refused')}**",
            "",
            *_table(SOUND_HEADINGS, _seen(_sound_cells(name, sound) for name in VARIANTS)),
            "",
            f"**{_counted(faulty, 'planted faults', 'caught')}**",
            "",
            *_table(FAULT_HEADINGS, _seen(_fault_cells(name, faulty) for name in FAULTS)),
            "",
            f"Models: {', '.join(models)}. Raw: {raw}",
            "",
        ]
    )


def bounds_block(files: Mapping[str, Path]) -> str:
    """Return what the gate asks of models of 8 and 4 bits; it reads no file."""
    eight, four = TOLERANCES["int8"], TOLERANCES["int4"]
    rows: list[list[Cell]] = [
        [(name,), (asks,), (f"{getattr(eight, bound):g}, {getattr(four, bound):g}",)]
        for name, asks, bound in BOUNDED
    ]
    headings: list[Cell] = [("Check",), ("What it asks",), ("Allowed for 8 bits, for fewer",)]
    return "\n".join([*markdown_rows(headings, rows, [False, False, False]), ""])


def _counted(rows: Sequence[Judged], what: str, done: str) -> str:
    refused = sum(bool(row.refused_by) for row in rows)
    if not rows:
        return f"0 {what}"
    low, high = binomtest(refused, len(rows)).proportion_ci(CONFIDENCE, method="wilson")
    share = f"{100 * refused / len(rows):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{len(rows)} {what}, {refused} {done} ({share})"


def _table(headings: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return a table without the columns of what older results have not recorded."""
    places = [
        place
        for place, heading in enumerate(headings)
        if heading in ALWAYS or any(row[place] != (DASH,) for row in rows)
    ]
    numbers = [headings[place] not in WORDS for place in places]
    shown = [[row[place] for place in places] for row in rows]
    return markdown_rows([headings[place] for place in places], shown, numbers)


def _seen(rows: Iterable[list[Cell]]) -> list[list[Cell]]:
    """Return the rows of which there are candidates."""
    return [row for row in rows if row[1] != ("0",)]


def _sound_cells(name: str, rows: Sequence[Judged]) -> list[Cell]:
    own = [row for row in rows if row.variant == name]
    refused = [row for row in own if row.refused_by]
    return [
        (f"`{name}`",),
        *_counts(own, refused),
        *_reasons(refused),
        *(_worst(own, figure) for figure in JUDGED),
        _changes(refused),
    ]


def _fault_cells(name: str, rows: Sequence[Judged]) -> list[Cell]:
    own = [row for row in rows if row.fault == name]
    caught = [row for row in own if row.refused_by]
    passed = [row for row in own if not row.refused_by]
    by_logits = [row for row in own if row.refused_by_logits is not None]
    alone = str(sum(bool(row.refused_by_logits) for row in by_logits)) if by_logits else DASH
    return [(name,), *_counts(own, caught), *_reasons(caught), (alone,), _changes(passed)]


def _counts(rows: Sequence[Judged], some: Sequence[Judged]) -> tuple[Cell, Cell]:
    return (str(len(rows)),), (str(len(some)),)


def _reasons(rows: Iterable[Judged]) -> tuple[Cell]:
    """Return the checks that refused, the most frequent first."""
    names = [row.refused_by[0].rstrip(",") for row in rows]  # earlier files have a comma
    listed = sorted(set(names), key=lambda name: (-names.count(name), name))
    return ((", ".join(f"{name} ({names.count(name)})" for name in listed) or DASH,),)


def _worst(rows: Iterable[Judged], figure: str) -> Cell:
    """Return the worst of a figure; a dash where none was recorded."""
    values = [getattr(row.figures, figure) for row in rows if row.figures]
    measured = [value for value in values if value is not None]
    return (f"{JUDGED[figure](measured):.2g}" if measured else DASH,)


def _changes(rows: Sequence[Judged]) -> Cell:
    changes = [(row.teacher, row.variant, row.change) for row in rows if row.change]
    return (
        "; ".join(f"{teacher} {variant} {points(each)}" for teacher, variant, each in changes)
        or DASH,
    )
