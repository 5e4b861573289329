"""bertender serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, explicit, option_values
from bertender.cli.output import console, print_json, print_words
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from serve.config import ServeCommandConfig
from serve.foreground import serve_forever
from serve.page import PageServer
from serve.profiles import UsedProfile, with_profile
from serve.repository import write_repository
from serve.server import TritonServer
from serve.server_log import STANDARD_OUTPUT

__all__ = ["serve_command"]


def serve_command() -> Callable[..., None]:
    """Build `bertender serve`."""

    def command(
        artifact: Annotated[
            Path, typer.Argument(metavar="ARTIFACT", help="onnx artifact to serve")
        ],
        values: dict[str, Any],
        as_json: JsonFlag = False,
    ) -> None:
        config = ServeCommandConfig.parse(explicit(option_values(ServeCommandConfig, values)))
        if as_json and config.log_file == STANDARD_OUTPUT:
            raise ConfigError(
                "log_file=-: with --json, standard output has one line of JSON. Name a file."
            )
        source = Artifact.load(artifact, verify=False)  # checked when the repository is written
        if config.repository_only:
            written = write_repository(source, config.repository_only, config)
            _print_state(as_json, {"repository": str(written)}, f"model repository: {written}")
            return
        config, profile = with_profile(config, source.card)
        with ExitStack() as stack:

            def report_ready(server: TritonServer) -> None:
                _ready(server, profile, _page(stack, source, server, config), as_json)

            serve_forever(source, config, on_ready=report_ready)

    return command_with_flags(command, (ServeCommandConfig,))


def _page(
    stack: ExitStack, source: Artifact, server: TritonServer, config: ServeCommandConfig
) -> dict[str, str]:
    """Start the page where it is asked for, until the stack is left; return its address."""
    if not config.page:
        return {}
    page = stack.enter_context(PageServer(source, server.http_url, config.page_port))
    return {"page": page.url}


def _ready(
    server: TritonServer, profile: UsedProfile | None, page: Mapping[str, str], as_json: bool
) -> None:
    urls = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
    used = None if profile is None else str(profile.path)
    lines = [
        f"ready at {server.http_url} and {server.grpc_url}; stop it with Ctrl-C.",
        *([] if profile is None else [f"{profile}; --no-profile ignores it"]),
        f'try it: bertender classify "a text of yours" --url {server.http_url}',
        *(f"the page: {url}" for url in page.values()),
    ]
    _print_state(as_json, {**urls, **page, "profile": used}, "\n".join(lines))
    console.file.flush()  # a reader at the other end of a pipe is waiting for it


def _print_state(as_json: bool, result: Mapping[str, str | None], words: str) -> None:
    if as_json:
        print_json(result)
    else:
        print_words(words)
