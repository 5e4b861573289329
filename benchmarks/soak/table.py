"""The table of a soak, from its raw result: memory, latencies and goodput against their aims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.words import verdict
from benchmarks.soak.records import SoakBenchmark
from bertender.core.processors import processor_name

__all__ = ["LEAST_GOODPUT", "MOST_GROWTH", "MOST_REJECTION_MS", "soak_block"]

MOST_GROWTH, LEAST_GOODPUT, MOST_REJECTION_MS = 0.05, 0.9, 50
"""Aims."""
FIRST = "2026-11-23-sst2-soak-first-cpu.json"
"""Before a batch was limited to the time that a request may wait."""


def soak_block(file: str, path: Path) -> str:
    """Return what grew, what came late and what came through, as Markdown."""
    result = SoakBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    lines = [
        "| Process | Memory after the first segment, MB | at the end, MB |",
        "| --- | ---: | ---: |",
        *(_row(cells) for cells in _memory(result)),
        "",
        f"- Memory: {result.growth:+.1%} from the second fifth of the soak to the last (aim: under "
        f"{MOST_GROWTH:.0%}): {verdict(result.growth < MOST_GROWTH)}.",
        f"- At {result.rate:.4g} requests/s for {result.memory[-1].at_s / 60:.1f} minutes: "
        f"{_latencies(result)}; {_counted(result)}.",
        f"- Goodput at {result.overload.rate:.4g} requests/s: {result.overload.goodput:.4g} "
        f"responses/s within {result.config.measured.slo_p99_ms:g} ms, {result.goodput_share:.1%} "
        f"of the limit (aim: at least {LEAST_GOODPUT:.0%}): "
        f"{verdict(result.goodput_share >= LEAST_GOODPUT)}.",
        *_rejections(result),
        *_memory_of_overload(result),
        *_defaults(result),
        *_first_try(result, path.with_name(FIRST)),
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _rejections(result: SoakBenchmark) -> list[str]:
    """Return how long rejections took then, where there were any."""
    p50_ms, p99_ms = result.overload.rejected_p50_ms, result.overload.rejected_p99_ms
    if p50_ms is None or p99_ms is None:
        return []
    return [
        f"- Rejections then took {p50_ms:.1f} ms in the median and {p99_ms:.1f} ms at p99 (aim: "
        f"under {MOST_REJECTION_MS} ms): {verdict(p99_ms < MOST_REJECTION_MS)}. One comes at once "
        f"where the queue is full, and else after {result.config.queue_timeout_ms:g} ms in it."
    ]


def _memory_of_overload(result: SoakBenchmark) -> list[str]:
    growth = result.overload_growth
    if growth is None:
        return []
    return [
        f"- Memory after the overload: {growth:+.1%} over that before it (aim: under "
        f"{MOST_GROWTH:.0%}): {verdict(growth < MOST_GROWTH)}."
    ]


def _defaults(result: SoakBenchmark) -> list[str]:
    """Return what a server of the default settings made of the same requests."""
    overload = result.default_overload
    if overload is None:
        return []
    served = overload.outcomes.get("ok", 0) / overload.duration_s
    median = "none" if overload.p50_ms is None else f"{overload.p50_ms:.0f} ms"
    return [
        f"- With default settings, whose queue is bounded by texts and hardly by time, "
        f"{served:.4g} responses/s came ({served / result.limit.rate:.1%} of the limit), with a "
        f"p50 of {median}, and so {overload.goodput:.4g} of them within "
        f"{result.config.measured.slo_p99_ms:g} ms."
    ]


def _first_try(result: SoakBenchmark, path: Path) -> list[str]:
    """Return what the first soak gave, where it is published and of the same kind."""
    if not path.is_file():
        return []
    first = SoakBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    if _kind(first) != _kind(result):
        return []
    return [
        f"- The first soak had a goodput of {first.goodput_share:.1%} of its limit, with "
        f"`--queue-timeout-ms {first.config.queue_timeout_ms:g}` and batches of whatever waited: "
        f"`benchmarks/results/{FIRST}`."
    ]


def _kind(result: SoakBenchmark) -> tuple[str, str, float]:
    measured = result.config.measured
    return result.digest, result.environment.cpu_model, measured.slo_p99_ms


def _memory(result: SoakBenchmark) -> list[list[str]]:
    first, last = result.memory[0], result.memory[-1]
    rows = [
        [role, f"{first.bytes_of[role] / 1e6:.1f}", f"{size / 1e6:.1f}"]
        for role, size in last.bytes_of.items()
    ]
    return [*rows, ["all", f"{first.total / 1e6:.1f}", f"{last.total / 1e6:.1f}"]]


def _latencies(result: SoakBenchmark) -> str:
    """Return the latencies of the median segment, and the p99 of the worst."""
    p50s = sorted(each.p50_ms for each in result.segments if each.p50_ms is not None)
    p99s = [each.p99_ms for each in result.segments]
    worst = "no p99 in the worst, where over 1 % have no response"
    if None not in p99s:
        worst = f"p99 {max(filter(None, p99s)):.1f} ms in the worst"
    median = f"{p50s[len(p50s) // 2]:.1f} ms" if p50s else "none"
    return f"p50 {median} in the median segment, {worst}"


def _counted(result: SoakBenchmark) -> str:
    counts = sum((Counter(each.outcomes) for each in result.segments), Counter[str]())
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _conditions(result: SoakBenchmark) -> str:
    here, config = result.environment, result.config
    bound = "at least " if result.limit.lower_bound else ""
    bound = bound if config.limit is None else "taken as "
    cores = "" if config.measured.pins.server is None else "; server and generator have a core each"
    return (
        f"{result.name} ({result.precision}), single texts of {result.task} over gRPC in an open "
        f"loop{cores}. The limit is {bound}{result.limit.rate:.4g} requests/s at a p99 of "
        f"{config.measured.slo_p99_ms:g} ms, `--queue-timeout-ms {config.queue_timeout_ms:g}`. "
        f"Meanwhile {result.load}. {processor_name(here)}; onnxruntime "
        f"{here.versions['onnxruntime']}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
