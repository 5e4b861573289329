"""The table of profiles, from its raw result: a row for each graph, runtime and input."""

from __future__ import annotations

from pathlib import Path

from benchmarks.profiles.measuring import Profile, ProfileBenchmark
from bertender.core.processors import processor_name
from bertender.measure.load import busiest
from bertender.models.runtimes import RUNTIMES
from bertender.report.cells import markdown_rows

__all__ = ["profile_block"]

SHOWN_SHARE = 0.9
"""Of the time, that the operators of a row have which are shown."""
HEADINGS = ("Graph", "Runtime", "Input", "All, ms", "Over the first", "Operators, ms")


def profile_block(file: str, path: Path) -> str:
    """Return the table, its conditions and its file, as Markdown."""
    result = ProfileBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    cells = [_cells(each, result) for each in result.profiles]
    heads, *rows = ([(cell,) for cell in row] for row in (HEADINGS, *cells))
    table = "\n".join(markdown_rows(heads, rows, [False, False, False, True, True, False]))
    return f"{table}\n\n{_conditions(result)}\n\nRaw: `{file}`\n"


def _cells(profile: Profile, result: ProfileBenchmark) -> tuple[str, ...]:
    operators = profile.times.operators_ms
    first = next(each for each in result.profiles if each.texts == profile.texts)
    return (
        f"{profile.name}, {profile.precision}",
        RUNTIMES[profile.runtime].title,
        f"{profile.texts} x {profile.times.tokens} tokens",
        f"{_total_ms(profile):.2f}",
        f"{_total_ms(first) / _total_ms(profile):.2f}x",
        ", ".join(_largest(operators)),
    )


def _total_ms(profile: Profile) -> float:
    return sum(profile.times.operators_ms.values())


def _largest(operators: dict[str, float]) -> list[str]:
    """Return the operators that take most of the time, the slowest first, and the rest."""
    shown: list[str] = []
    left = total = sum(operators.values())
    for name, ms in sorted(operators.items(), key=lambda pair: -pair[1]):
        if left <= (1 - SHOWN_SHARE) * total:
            break
        shown.append(f"{name} {ms:.2f}")
        left -= ms
    return [*shown, f"others {left:.2f}"] if left > 0 else shown


def _conditions(result: ProfileBenchmark) -> str:
    here = result.environment
    load = busiest([each.times.load for each in result.profiles if each.times.load])
    packages = dict.fromkeys(RUNTIMES[each.runtime].package for each in result.profiles)
    versions = ", ".join(f"{name} {here.versions[name]}" for name in packages)
    return (
        f"Means over inferences, by each runtime's own measure, which makes it a little slower; "
        f"threads: {result.threads}. Texts of {result.task}. Operators have the runtime's names, "
        "after its fusions; what a runtime has put into another operator is in that one's time. "
        "Over the first: how many times as fast as the first row of the same input, in operators "
        "alone: tokenisation and calls are not in it. "
        f"Busiest: {load}. {processor_name(here)}; {versions}."
    )
