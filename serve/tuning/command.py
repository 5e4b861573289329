"""bertender tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, explicit, option_values
from bertender.cli.output import print_json, print_rows, print_words
from bertender.core.saving import check_savable, save_result
from bertender.models.importing import open_artifact
from bertender.report.cells import DASH
from serve.loadtest.texts import texts_to_send
from serve.tuning.choice import Tried
from serve.tuning.config import TuneConfig
from serve.tuning.tune import TuneResult, tune

__all__ = ["tune_command"]


def tune_command() -> Callable[..., None]:
    """Build `bertender tune`."""

    def command(
        artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="onnx artifact to serve")],
        values: dict[str, Any],
        out: Annotated[
            Path | None,
            typer.Option("--out", metavar="FILE", help="write every figure to this JSON file"),
        ] = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        config = TuneConfig.parse(explicit(option_values(TuneConfig, values)))
        source = open_artifact(artifact, verify=False)  # checked when it is served
        result = tune(source, lambda columns: texts_to_send(config, columns), config)
        if out:
            save_result(result, out)
        if as_json:
            print_json(result.model_dump(mode="json"))
        else:
            _print(result)

    return command_with_flags(command, (TuneConfig,))


def _print(result: TuneResult) -> None:
    _print_tried("setting", result.tried)
    if result.fresh:
        _print_tried("once more", result.fresh)
    print_words(f"{result.choice.setting}: {result.choice.reason}.")
    noisy = ": noisy, these figures are not reliable" if result.load.noisy else ""
    print_words(f"busiest server: {result.load}{noisy}")
    print_words(
        f"`bertender serve` now uses {result.profile.settings} for such a model on this machine; "
        f"the profile is {result.path}"
    )


def _print_tried(title: str, rows: Sequence[Tried]) -> None:
    print_rows((title, "texts/s", "against the default"), [_row(row) for row in rows])
    for row in rows:
        if row.failure:
            print_words(f"{row.name}: no score, because it could not be served: {row.failure}")


def _row(row: Tried) -> tuple[str, str, str]:
    speed, ratio = row.texts_per_second, row.against_default
    return (
        row.name,
        DASH if speed is None else f"{speed:.4g}",
        DASH if ratio is None else str(ratio),
    )
