"""bertender card and bertender push."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender import api
from bertender.cli.flags import JsonFlag, command_with_flags, settings_of
from bertender.cli.output import print_json, print_words
from bertender.core.files import check_savable, save_text
from bertender.publishing.model_card import README_NAME, ModelCardConfig, model_card
from bertender.publishing.push import PushConfig, push

ArtifactArgument = Annotated[str, typer.Argument(metavar="ARTIFACT", help="artifact to publish")]


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    if name == "card":
        return command_with_flags(card_command, (ModelCardConfig,))
    return command_with_flags(push_command, (PushConfig,))


def card_command(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="artifact to describe")],
    values: dict[str, Any],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help=f"write it to this file; as ARTIFACT/{README_NAME}, `push` takes it as it is",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    check_savable("--out", out, "Markdown")
    text = model_card(
        api.opened(artifact), ModelCardConfig.parse(settings_of(ModelCardConfig, values))
    )
    if out:
        save_text(text, out)
    if as_json:
        print_json({"out": out and str(out), "card": text})
    elif out is None:
        print(text, end="")


def push_command(
    artifact: ArtifactArgument,
    repository: Annotated[
        str, typer.Argument(metavar="REPO", help="repository of the hub, OWNER/NAME")
    ],
    values: dict[str, Any],
    force: Annotated[
        bool,
        typer.Option("--force", help="put it among files that no push has put there"),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    config = PushConfig.parse(settings_of(PushConfig, values))
    pushed = push(api.opened(artifact), repository, config, force)
    if as_json:
        print_json(pushed)
        return
    access = "private" if pushed.private else "public"
    print_words(f"{pushed.url}: {len(pushed.files)} files, {access}")
    if pushed.removed:
        print_words(f"  removed of the artifact before: {', '.join(pushed.removed)}")
    print_words(f"  bertender show {pushed.repository}", "dim")
