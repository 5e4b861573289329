"""bertender serve and bertender classify."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.commands.flags import JsonFlag, command_with_flags, given, option_values
from bertender.commands.show import console, print_json
from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.core.text import Example
from serve.client import DEFAULT_URL, Endpoint
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server import TritonServer, serve_forever

__all__ = ["classify_command", "serve_command"]


def serve_command() -> Callable[..., None]:
    """Build `bertender serve`."""

    def command(
        artifact: Annotated[Path, typer.Argument(help="onnx artifact to serve")],
        values: dict[str, Any],
        repository_only: Annotated[
            Path | None,
            typer.Option(help="write the model repository into this directory and stop"),
        ] = None,
        as_json: JsonFlag = False,
    ) -> None:
        config = ServeConfig.parse(given(option_values(ServeConfig, values)))
        source = Artifact.load(artifact)
        if repository_only:
            written = write_repository(source, repository_only, config)
            _tell(as_json, {"repository": str(written)}, f"model repository: {written}")
        else:
            serve_forever(source, config, on_ready=lambda server: _ready(server, as_json))

    return command_with_flags(command, (ServeConfig,))


def classify_command() -> Callable[..., None]:
    """Build `bertender classify`."""

    def command(
        texts: Annotated[
            list[str] | None, typer.Argument(help="texts; by default the lines of standard input")
        ] = None,
        pair: Annotated[
            list[str] | None,
            typer.Option(help="second text of the first pair, of the second, ..., for pair tasks"),
        ] = None,
        url: Annotated[
            str, typer.Option(help="address of the endpoint, http://... or grpc://...")
        ] = DEFAULT_URL,
        as_json: JsonFlag = False,
    ) -> None:
        examples = _examples(texts or _lines(), pair or [])
        with Endpoint(url) as endpoint:
            answers = endpoint.classify(examples)
        if as_json:
            print_json([answer.model_dump(mode="json") for answer in answers])
            return
        for example, answer in zip(examples, answers, strict=True):
            print(f"{answer.label}\t{answer.score:.4f}\t{' | '.join(example)}")

    return command


def _ready(server: TritonServer, as_json: bool) -> None:
    urls = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
    _tell(
        as_json,
        urls,
        f"ready at {server.http_url} and {server.grpc_url}; stop it with Ctrl-C.\n"
        f'try it: bertender classify "a text of yours" --url {server.http_url}',
    )
    sys.stdout.flush()


def _tell(as_json: bool, result: dict[str, str], words: str) -> None:
    if as_json:
        print_json(result)
    else:
        console.print(words, highlight=False, soft_wrap=True)


def _lines() -> list[str]:
    return [line.rstrip("\n") for line in sys.stdin if line.strip()]


def _examples(texts: list[str], pairs: list[str]) -> list[Example]:
    if not texts:
        raise DataError("no text to classify. Give TEXT arguments, or lines on standard input.")
    if pairs and len(pairs) != len(texts):
        raise DataError(f"{len(pairs)} --pair texts for {len(texts)} texts: give one for each.")
    return list(zip(texts, pairs, strict=True)) if pairs else [(text,) for text in texts]
