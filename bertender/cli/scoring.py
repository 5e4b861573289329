"""bertender score.

PyTorch is imported only when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertender.cli.flags import OUTPUT, JsonFlag, command_with_flags, settings_of
from bertender.cli.output import messages, print_result
from bertender.scoring.config import ScoreConfig

if TYPE_CHECKING:
    from bertender.scoring.score import ScoreRun


def build(name: str) -> Callable[..., None]:
    """Build the command of this module."""

    def command(
        artifact: Annotated[
            str, typer.Argument(metavar="ARTIFACT", help="artifact, or finished model")
        ],
        source: Annotated[
            str,
            typer.Argument(
                metavar="FILE",
                help="file of texts, a folder of them, or a pattern in quotes: CSV, TSV, JSONL, "
                ".txt with a text a line (these as .xz too), Parquet, or .conll",
            ),
        ],
        out: Annotated[
            Path,
            typer.Option(
                metavar="DIR",
                help="folder that gets the parts; the same command again computes what is missing",
                rich_help_panel=OUTPUT,
            ),
        ],
        values: dict[str, Any],
        force: Annotated[
            bool,
            typer.Option(
                "--force",
                help="begin anew over the parts of another command",
                rich_help_panel=OUTPUT,
            ),
        ] = False,
        as_json: JsonFlag = False,
    ) -> None:
        config = ScoreConfig.parse(settings_of(ScoreConfig, values))
        from bertender import api

        run = api.score(artifact, source, config, out=out, force=force)
        print_result(run, lines_of_run(run), as_json=as_json)
        if run.truncated and not as_json:
            messages.print(
                f"{run.truncated} of {run.texts} texts were cut to the model's input: see "
                "--max-length",
                soft_wrap=True,
            )

    return command_with_flags(command, (ScoreConfig,))


def lines_of_run(run: ScoreRun) -> Iterator[str]:
    """Yield the lines on what a run has written, and what is missing."""
    resumed = f", {run.resumed} of them by an earlier run" if run.resumed else ""
    rate = f", {run.texts_per_s:.4g} texts/s" if run.texts_per_s else ""
    yield f"{run.out}: predictions for {run.texts} texts in {run.parts} parts{resumed}{rate}"
    if run.blank:
        yield f"lines without a text, which have no prediction: {run.blank}"
    if run.left_out:
        first = run.left_out.first[0]
        yield (
            f"bad rows that are left out: {run.left_out.count}, the first {first.file}, "
            f"{first.place}: {first.reason}"
        )
    if not run.complete:
        yield f"{run.parts_done} of {run.parts_in_all} parts are there: other shards are to run"
