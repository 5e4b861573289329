"""The table of bad clients, from its raw result: good requests without and with them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.bad_clients.measuring import BadClients, GoodTraffic
from bertender.core.processors import processor_name

__all__ = ["MOST_RATIO", "bad_clients_block"]

Status = TypeVar("Status", bound=str)

MOST_RATIO = 2.0
"""Aim."""
TITLES = (
    "Bad clients",
    "What they get",
    "p99 alone, ms",
    "p99 meanwhile, ms",
    "Ratio",
    "Triton grows in a turn, MB",
)
REACHED, MISSED, UNCLEAR = "reached with", "missed with", "not distinguished from it with"


def bad_clients_block(file: str, path: Path) -> str:
    """Return what good requests have of each kind of bad clients, as Markdown."""
    result = BadClients.model_validate_json(path.read_text(encoding="utf-8"))
    turns = result.turns
    lines = [
        _row(TITLES),
        _row(["---", "---", *["---:"] * 4]),
        *(_row(_cells(result, kind)) for kind in result.config.kinds),
        "",
        f"- A p99 of at most {MOST_RATIO:g} times that alone (aim): {_judged(result)}.",
        f"- Good requests alone, {_counted(each.alone.outcomes for each in turns)}; meanwhile, "
        f"{_counted(each.meanwhile.outcomes for each in turns)}.",
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(result: BadClients, kind: str) -> list[str]:
    turns = result.of(kind)
    p99s = (_p99([each.alone for each in turns]), _p99([each.meanwhile for each in turns]))
    grown = statistics.median(each.grown_bytes for each in turns) / 1e6
    responses = _counted(each.responses for each in turns)
    return [kind, responses, *p99s, _ratio(result, kind), f"{grown:.1f}"]


def _p99(parts: Sequence[GoodTraffic]) -> str:
    """Return the geometric mean over turns; none where a turn has none."""
    known = [each.p99_ms for each in parts if each.p99_ms is not None]
    return f"{statistics.geometric_mean(known):.1f}" if len(known) == len(parts) else "none"


def _ratio(result: BadClients, kind: str) -> str:
    ratio = result.ratio(kind)
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "-"


def _judged(result: BadClients) -> str:
    """Return which kinds hold the aim, and which do not."""
    sides = {kind: _side(result, kind) for kind in result.config.kinds}
    parts = []
    for side in (MISSED, UNCLEAR, REACHED):
        kinds = [kind for kind, own in sides.items() if own == side]
        parts += [f"{side} {', '.join(kinds)}"] if kinds else []
    return "; ".join(parts)


def _side(result: BadClients, kind: str) -> str:
    ratio = result.ratio(kind)
    if ratio is None or ratio.low > MOST_RATIO:
        return MISSED
    return REACHED if ratio.high <= MOST_RATIO else UNCLEAR


def _counted(counts: Iterable[Mapping[Status, int]]) -> str:
    """Return the sums of counts."""
    sums = sum((Counter(each) for each in counts), Counter[Status]())
    return ", ".join(f"{name}: {count:,}" for name, count in sums.items())


def _conditions(result: BadClients) -> str:
    here, config, slo_ms = result.environment, result.config, result.limit.slo_p99_ms
    bound = "at least " if result.limit.lower_bound else ""
    bound = bound if config.limit is None else "taken as "
    cores = "Server and clients share the cores"
    if config.measured.pins.server is not None:
        cores = "The server has one core, good and bad clients another"
    way = "over HTTP"
    if config.nginx:
        way = "through nginx with the configuration of deploy/, on the core of clients"
    lag = max(part.lag_share for each in result.turns for part in (each.alone, each.meanwhile))
    return (
        f"{result.name} ({result.precision}), good requests of single texts of {result.task} in an "
        f"open loop, {result.rate:.4g} a second: {config.share:.0%} of the limit, which is {bound}"
        f"{result.limit.rate:.4g} at a p99 of {slo_ms:g} ms. Good and bad ones come {way}; a "
        f"bad one is sent {config.pause_s:g} s after the response to the one before. {cores}. "
        f"{config.rounds} turns of {config.seconds:g} s ({result.rate * config.seconds:.0f} "
        "requests) alone and of as many with bad clients; sums of responses and connections, "
        "geometric means of p99, medians of memory, and for ratios intervals of 95 %, over turns. "
        f"Requests were sent late by {lag:.1%} of the median latency at most "
        f"(medians). Meanwhile {result.load}. {processor_name(here)}; onnxruntime "
        f"{here.versions['onnxruntime']}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
