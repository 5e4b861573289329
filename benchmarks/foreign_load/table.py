"""The table of two load generators on one server, from its raw result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.foreign_load.measuring import FOREIGN, GENERATORS, OWN, SIZES, ForeignLoad
from bertender.core.processors import processor_name
from serve.tuning.rounds import mean_over_rounds, ratio_over_rounds

__all__ = ["foreign_load_block"]


def foreign_load_block(file: str, path: Path) -> str:
    """Return what each generator reports, and the ratio of both, as Markdown."""
    result = ForeignLoad.model_validate_json(path.read_text(encoding="utf-8"))
    titles = (
        "Texts a request",
        "Generator",
        "Requests/s",
        "p50 ms",
        "p99 ms",
        "Other than 200",
    )
    rows = [_cells(result, size, name) for size in SIZES for name in GENERATORS]
    return "\n".join(
        [
            _row(titles),
            _row(["---:", "---", *["---:"] * 4]),
            *map(_row, rows),
            "",
            *(_ratio(result, size) for size in SIZES),
            "",
            _conditions(result),
            "",
            f"Raw: `{file}`",
            "",
        ]
    )


def _cells(result: ForeignLoad, size: int, generator: str) -> list[str]:
    runs = result.of(generator, size)
    speed = mean_over_rounds([each.requests_per_second for each in runs])
    p50, p99 = (
        mean_over_rounds([getattr(each, name) for each in runs]) for name in ("p50_ms", "p99_ms")
    )
    errors = sum(each.errors for each in runs)
    latencies = f"{p50.value:.2f}", f"{p99.value:.2f}"
    return [str(size), generator, f"{speed.value:.4g}", *latencies, str(errors)]


def _ratio(result: ForeignLoad, size: int) -> str:
    own, foreign = (result.of(name, size) for name in (OWN, FOREIGN))
    speed = ratio_over_rounds(
        [each.requests_per_second for each in foreign], [each.requests_per_second for each in own]
    )
    latency = ratio_over_rounds([each.p50_ms for each in foreign], [each.p50_ms for each in own])
    return (
        f"- {size} a request: {OWN} reports {speed.value:.2f} [{speed.low:.2f}, {speed.high:.2f}] "
        f"times the requests/s of {FOREIGN}, and {latency.value:.2f} [{latency.low:.2f}, "
        f"{latency.high:.2f}] times its p50."
    )


def _conditions(result: ForeignLoad) -> str:
    here, config = result.environment, result.config
    cores = "server and generator share the cores"
    if config.pins.server is not None:
        cores = "the server has one core, the generators another"
    return (
        f"{result.name}, one request of each size over HTTP, the same bytes from both; "
        f"{config.clients} clients that each wait for their response, {config.rounds} turns of "
        f"{config.duration_s:g} s; {cores}; means and, for ratios, intervals of 95 % over turns. "
        f"{FOREIGN} rounds latencies to 0.1 ms, and lists no request without a response. "
        f"Meanwhile {result.load}. {processor_name(here)}; onnxruntime "
        f"{here.versions['onnxruntime']}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
