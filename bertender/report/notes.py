"""Notes of a comparison's table: what was measured, its conditions, and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertender.core.environment import Environment
from bertender.core.processors import has_int8_acceleration
from bertender.measure.comparison import Comparison, Conditions, Lengths, LengthsRead
from bertender.measure.constant import is_below_chance
from bertender.measure.load import BUSY_SHARE
from bertender.models.runtimes import RUNTIMES
from bertender.report.cells import DASH, Cell, short, speedup_cell
from bertender.report.pareto import pareto_front
from bertender.tasks.task import ChosenOn

__all__ = [
    "CHOICES",
    "NOISY",
    "comparison_lines",
    "conditions_lines",
    "in_one_sentence",
    "is_noisy",
    "marked",
]

NOISY = "~"
"""Stands before every figure that was timed on a busy machine."""
CHOICES: Mapping[tuple[ChosenOn, ...], str] = {
    (): "no row records which texts its settings were chosen on",
    ("selection",): "settings were chosen on texts set apart, that no row learned from",
    ("dev",): "settings were chosen on the same texts (select=0), which flatters what was chosen",
    ("dev", "selection"): "settings were chosen on the same texts for some rows (select=0), which "
    "flatters them, and for others on texts set apart, that none of these learned from",
}
FEWEST_FOR_A_FRONT = 3
"""Rows; two can be compared by eye."""
VERSIONS_SHOWN = ("bertender", "torch", "transformers", "onnxruntime", "numpy")


def is_noisy(comparison: Comparison) -> bool:
    """Return whether other work disturbed what was timed."""
    load = comparison.circumstances.load
    return load is not None and load.noisy


def marked(cell: Cell, noisy: bool) -> Cell:
    """Return a cell with the mark of noisy figures before its value, where it has one."""
    return (f"{NOISY}{cell[0]}", *cell[1:]) if noisy and cell != (DASH,) else cell


def in_one_sentence(comparison: Comparison, name: str) -> str:
    """Return the gain of a row over the first one, for someone who reads no table."""
    first, *others = comparison.rows
    row = next(each for each in others if each.name == name)
    pairs = [
        (each.size.artifact_size_bytes / 1e6, each.latency.single.p50_ms, each.score.value)
        for each in (row, first)
    ]
    (mb, ms, right), (first_mb, first_ms, first_right) = pairs
    score = f"{row.score.metric} {right:.2f} instead of {first_right:.2f}"
    if row.score.metric == "accuracy":
        score = f"{right:.0%} right instead of {first_right:.0%}".replace("%", " %")
    time = f"{_two_digits(ms)} ms a text instead of {_two_digits(first_ms)}"
    noisy = " (timed on a busy machine)" if is_noisy(comparison) else ""
    return (
        f"{row.name} in place of {first.name}: {_two_digits(mb)} MB instead of "
        f"{_two_digits(first_mb)}, {time}{noisy}, {score}"
    )


def _two_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return all that a reader needs to judge the table: what was measured first, then how."""
    lines = conditions_lines(comparison.circumstances)
    if any(row.speedup_over_onnx_float32 for row in comparison.rows):
        lines.append(
            "`Over ONNX` is the speedup over the same model in ONNX Runtime float32, so that the "
            "change of runtime is not in it"
        )
    lines += [
        f"`{row.name}` {row.constant.words}" for row in comparison.rows if row.constant is not None
    ]
    lines += [
        f"`{row.name}` scores less than a guess: its labels look swapped (--label-map)"
        for row in comparison.rows
        if is_below_chance(row.score, len(comparison.circumstances.labels))
    ]
    lines += _cut(comparison)
    lines += _front(comparison)
    if again := comparison.noise_floor:
        value, interval = marked(speedup_cell(again.speedup), is_noisy(comparison))
        lines.append(f"noise floor, the same model ({again.name}) twice: {value} {interval}")
    if constant := comparison.constant:
        lines.append(
            f"`{constant.name}` reads no text: it is the most frequent label of the texts to learn "
            "from, or to choose by where there are none"
        )
    return lines


def _cut(comparison: Comparison) -> list[str]:
    """Return a line about the texts that rows have truncated, one for rows that did alike."""
    alike: dict[LengthsRead, list[str]] = {}
    for row in comparison.rows:
        if row.lengths and row.lengths.held_out.longer:
            alike.setdefault(row.lengths, []).append(f"`{row.name}`")
    return [
        f"{', '.join(names)}: {read.held_out.in_words('held-out', read.max_length)}"
        for read, names in alike.items()
    ]


def _front(comparison: Comparison) -> list[str]:
    """Return a line that names the Pareto front of the rows; none of fewer than three rows."""
    rows = comparison.rows
    if len(rows) < FEWEST_FOR_A_FRONT:
        return []
    costs = {
        place: (row.size.artifact_size_bytes, row.latency.single.p50_ms, -row.score.value)
        for place, row in enumerate(rows)
    }
    names = ", ".join(f"`{rows[place].name}`" for place in pareto_front(costs))
    (time,) = marked(("p50",), is_noisy(comparison))
    return [
        f"Pareto front of disk, {time} and score, by point estimates: {names}; each of the other "
        "rows is dominated by one of these"
    ]


def _flags(environment: Environment) -> str:
    denied = [f"{flag} denied by the kernel" for flag in environment.denied_flags]
    return ", ".join(filter(None, (" ".join(environment.cpu_flags), *denied))) or "no vector flags"


def conditions_lines(conditions: Conditions) -> list[str]:
    """Return what a reader needs to judge the table: what was measured first, then how."""
    environment, config = conditions.environment, conditions.config
    versions = environment.versions
    int8 = "with" if has_int8_acceleration(environment) else "without"
    return [
        f"{conditions.task}: {conditions.metric}, n = {conditions.n}; "
        "brackets are 95 % intervals; change and speedup are against the first row",
        f"{environment.cpu_model}, {int8} int8 dot products "
        f"({_flags(environment)}); {environment.cores} cores, "
        f"{conditions.threads} threads for {_engines(config.runtime)} alike",
        *_choices(conditions.chosen_on),
        f"{_devices(environment, config.runtime)}; parity is with the model that a row was made "
        "from, in the runtime that it was checked in",
        f"{_lengths(conditions.lengths)}; single texts at their natural length, batches padded "
        "to their longest; tokenisation included",
        f"{_rounds(config.processes, config.rounds)}, rows interleaved, {config.single_texts} "
        f"single texts and a batch of {conditions.batch_texts} a round; seed {config.seed}; "
        f"{conditions.measured_at}",
        _load(conditions),
        ", ".join(f"{name} {versions.get(name, DASH)}" for name in _versions(config.runtime))
        + f", Python {environment.python}",
    ]


def _engines(runtimes: Sequence[str]) -> str:
    *others, last = ["PyTorch", *(RUNTIMES[name].title for name in runtimes)]
    return f"{', '.join(others)} and {last}"


def _devices(environment: Environment, runtimes: Sequence[str]) -> str:
    titles = [RUNTIMES[name].title for name in runtimes if RUNTIMES[name].needs_gpu]
    if not titles:
        return "every row ran on the CPU"
    return f"rows of {' and '.join(titles)} ran on {environment.gpu}, the others on the CPU"


def _versions(runtimes: Sequence[str]) -> list[str]:
    """Return the packages whose versions are shown, each once."""
    return [*dict.fromkeys((*VERSIONS_SHOWN, *(RUNTIMES[name].package for name in runtimes)))]


def _choices(chosen_on: Sequence[ChosenOn] | None) -> list[str]:
    """Return what was chosen and what scored; nothing for files that do not record it."""
    return [] if chosen_on is None else [f"scored on the held-out texts; {CHOICES[*chosen_on]}"]


def _rounds(processes: int, rounds: int) -> str:
    each = f"{rounds} rounds"
    return each if processes == 1 else f"{processes} fresh processes of {each} each"


def _load(conditions: Conditions) -> str:
    load = conditions.load
    if load is None:
        return f"other work while it was timed: {DASH} (load not recorded)"
    if not load.noisy:
        return f"while it was timed, {load}"
    return (
        f"{NOISY} marks NOISY figures, not to be relied on: while they were timed, {load}; allowed "
        f"are {BUSY_SHARE:.0%}"
    )


def _lengths(lengths: Lengths) -> str:
    words = f"texts of {short(lengths.mean_words)} words on average, {lengths.max_words} at most"
    if lengths.mean_tokens is None:
        return words
    return f"{words} ({short(lengths.mean_tokens)} and {lengths.max_tokens} tokens)"
