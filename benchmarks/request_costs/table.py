"""The table of what a request costs, from its raw result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.request_costs.measuring import (
    COSTED,
    PAUSES_MS,
    SINGLE_TEXTS,
    RequestCosts,
)
from benchmarks.serving.watched_server import SERVER, STUB
from bertender.core.processors import processor_name
from bertender.measure.load import busiest
from serve.tuning.rounds import mean_over_rounds

__all__ = ["request_costs_block"]

SATURATING = SINGLE_TEXTS[-1]


def request_costs_block(file: str, path: Path) -> str:
    """Return processor times and latencies of a request, as Markdown."""
    result = RequestCosts.model_validate_json(path.read_text(encoding="utf-8"))
    titles = ["Server"]
    for load in SINGLE_TEXTS:
        figure = "requests/s" if load == SATURATING else "p50 ms"
        titles += [f"{load}: {each}" for each in (f"{SERVER}, ms", f"{STUB}, ms", figure)]
    return "\n".join(
        [
            _row(titles),
            _row(["---", *["---:"] * (len(titles) - 1)]),
            *(_row(_cells(result, name)) for name in COSTED),
            "",
            _in_process(result),
            "",
            _conditions(result),
            "",
            f"Raw: `{file}`",
            "",
        ]
    )


def _cells(result: RequestCosts, system: str) -> list[str]:
    cells = [COSTED[system].title]
    for name in SINGLE_TEXTS:
        loads = result.loads(system, name)
        for process in (SERVER, STUB):
            cells.append(_mean([each.processor_ms[process] for each in loads]))
        if name == SATURATING:
            cells.append(_mean([each.requests_per_second for each in loads], "{:.4g}"))
        else:
            cells.append(_mean([each.p50_ms for each in loads]))
    return cells


def _mean(figures: Sequence[float], form: str = "{:.2f}") -> str:
    mean = mean_over_rounds(figures)
    return f"{form} [{form}, {form}]".format(mean.value, mean.low, mean.high)


def _in_process(result: RequestCosts) -> str:
    without, paused = (
        _mean([each.p50_ms for each in result.calls if each.pause_ms == pause_ms])
        for pause_ms in PAUSES_MS
    )
    return (
        f"In a process of its own, the model takes {without} ms for a text, called without a "
        f"pause, and {paused} ms with a pause of {PAUSES_MS[1]:g} ms before each call."
    )


def _conditions(result: RequestCosts) -> str:
    here, config = result.environment, result.config
    cores = "server and generator share the cores"
    if config.pins.server is not None:
        cores = "the server has one core, the generator another"
    load = busiest([*(each.load for each in result.visits), *(each.load for each in result.calls)])
    return (
        f"{result.name} ({result.precision}), single texts of {result.task} over gRPC; {cores}. "
        f"`{SERVER}` is the processor time of Triton for a request, `{STUB}` that of its Python "
        f"process, in which the model runs. {config.rounds} starts of each row, in turns; means, "
        f"with intervals of 95 % over starts. Busiest start: {load}. {processor_name(here)}; "
        f"onnxruntime {here.versions['onnxruntime']}, nvidia-pytriton "
        f"{here.versions['nvidia-pytriton']}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
