"""bertender loadtest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, explicit, option_values
from bertender.cli.output import print_json, print_words
from bertender.core.errors import LoadTestError
from bertender.core.saving import check_savable, save_result, save_text
from serve.client import AccessConfig
from serve.loadtest.config import LoadConfig
from serve.loadtest.measure import load_test
from serve.loadtest.plot import load_svg
from serve.loadtest.records import Limit, LoadRun, LoadTest
from serve.loadtest.texts import texts_to_send

__all__ = ["lines_of_test", "loadtest_command"]

UrlArgument = Annotated[
    str,
    typer.Argument(metavar="URL", help="address of the endpoint, http(s)://... or grpc(s)://..."),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="write the result to this JSON file")
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="draw the latencies in this SVG file")
]


def loadtest_command() -> Callable[..., None]:
    """Build `bertender loadtest`."""

    def command(
        url: UrlArgument,
        values: dict[str, Any],
        out: OutFile = None,
        plot: PlotFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        check_savable("--plot", plot, "SVG")
        config = LoadConfig.parse(explicit(option_values(LoadConfig, values)))
        access = AccessConfig.parse(explicit(option_values(AccessConfig, values)))
        test = load_test(url, lambda columns: texts_to_send(config, columns), config, access)
        if out:
            save_result(test, out)
        if plot:
            save_text(load_svg(test), plot)
        if as_json:
            print_json(test.model_dump(mode="json"))
        else:
            for line in lines_of_test(test):
                print_words(line)
        if test.limit and test.limit.lower_bound:
            raise LoadTestError(f"the search ended before the limit: {test.limit.lower_bound}")

    return command_with_flags(command, (LoadConfig, AccessConfig))


def lines_of_test(test: LoadTest) -> Iterator[str]:
    """Return the lines that show a load test."""
    for run in test.runs:
        yield _run_line(run)
    if test.limit:
        yield _limit_line(test.limit, test.runs[0].texts_per_request)
    noisy = ": noisy, these figures are not reliable" if test.load.noisy else ""
    yield f"{test.protocol}; before and after, {test.load}{noisy}"


def _limit_line(limit: Limit, texts: int) -> str:
    bound = "at least " if limit.lower_bound else ""
    above = f"; {limit.above:.4g} do not" if limit.above else ""
    ended = ": a lower bound, since the search ended early" if limit.lower_bound else ""
    return (
        f"limit: {bound}{limit.rate:.4g} requests/s ({limit.rate * texts:.4g} texts/s) hold a p99 "
        f"of {limit.slo_p99_ms:g} ms{ended}{above}"
    )


def _run_line(run: LoadRun) -> str:
    latency = (
        "no response"
        if run.latency is None
        else (
            f"p50 {run.latency.p50_ms:.2f} ms, p95 {run.latency.p95_ms:.2f} ms, "
            f"p99 {run.latency.p99_ms:.2f} ms"
        )
    )
    counts = ", ".join(f"{count} {name}" for name, count in run.outcomes.items() if count)
    return (
        f"{run.load} of {run.texts_per_request} texts: {latency}; {counts}; "
        f"{run.texts_per_second:.4g} texts/s; sent {run.send_lag.p50_ms:.3f} ms late "
        f"(p99 {run.send_lag.p99_ms:.3f} ms)"
    )
