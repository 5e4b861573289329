"""bertender serve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, explicit, option_values
from bertender.cli.output import console, messages, print_json, print_words
from bertender.core.artifact import IMPORT_STAGE, Artifact
from bertender.core.errors import ConfigError
from bertender.models.importing import open_artifact
from serve.config import ServeCommandConfig
from serve.foreground import serve_forever
from serve.installation import installed_version
from serve.model_arguments import models_by_name
from serve.profiles import UsedProfile, with_profile
from serve.repository import write_repository
from serve.request_faults import named
from serve.server import TritonServer
from serve.server_log import STANDARD_OUTPUT
from serve.wire import MODEL_NAME

__all__ = ["serve_command"]

logger = logging.getLogger(__name__)


def serve_command() -> Callable[..., None]:
    """Build `bertender serve`."""

    def command(
        artifacts: Annotated[
            list[str],
            typer.Argument(
                metavar="ARTIFACT",
                help=f"onnx artifact to serve, as the model {MODEL_NAME!r}; several as "
                "NAME=ARTIFACT",
            ),
        ],
        values: dict[str, Any],
        as_json: JsonFlag = False,
    ) -> None:
        config = ServeCommandConfig.parse(explicit(option_values(ServeCommandConfig, values)))
        if as_json and config.log_file == STANDARD_OUTPUT:
            raise ConfigError(
                "log_file=-: with --json, standard output has one line of JSON. Name a file."
            )
        models = {  # checked when the repository is written
            name: open_artifact(path, verify=False)
            for name, path in models_by_name(artifacts).items()
        }
        _say_single_texts(models.values())
        if config.repository_only:
            written = write_repository(models, config.repository_only, config)
            _print_state(as_json, {"repository": str(written)}, f"model repository: {written}")
            return
        config, profile = with_profile(config, [each.card for each in models.values()])
        with ExitStack() as stack:

            def report_ready(server: TritonServer) -> None:
                _ready(server, profile, _page(stack, models, server, config), as_json)

            serve_forever(models, config, on_ready=report_ready)

    return command_with_flags(command, (ServeCommandConfig,))


def _say_single_texts(models: Iterable[Artifact]) -> None:
    """Say of finished models, whose folders name no columns, how many texts they are given."""
    for artifact in models:
        record = artifact.card.task
        if artifact.card.stage == IMPORT_STAGE and not record.source and len(record.labels) > 2:
            logger.warning(
                "%s is served for single texts. A model of pairs, as of premise and hypothesis, "
                "needs its columns: bertender import %s --pair-column NAME --out DIRECTORY",
                artifact.place,
                artifact.place,
            )


def _page(
    stack: ExitStack,
    models: Mapping[str, Artifact],
    server: TritonServer,
    config: ServeCommandConfig,
) -> dict[str, str]:
    """Start the page where it is asked for, until the stack is left; return its address.

    Of several models, it is for the first.
    """
    if not config.page:
        return {}
    from serve.page import PageServer  # it loads the client, and so gRPC

    name, source = next(iter(models.items()))
    page = stack.enter_context(
        PageServer(source, server.http_url, config.page_port, name, server.repository)
    )
    return {"page": page.url}


def _ready(
    server: TritonServer, profile: UsedProfile | None, page: Mapping[str, str], as_json: bool
) -> None:
    has_grpc = server.config.grpc_port is not None
    urls = {
        "http": server.http_url,
        "grpc": server.grpc_url if has_grpc else None,
        "metrics": server.metrics_url,
    }
    used = None if profile is None else str(profile.path)
    command = f'bertender classify "a text of yours" --url {server.http_url}'
    lines = [
        f"ready at {server.http_url}{f' and {server.grpc_url}' if has_grpc else ''}; stop it with "
        "Ctrl-C.",
        f"metrics: {server.metrics_url}",
        *([] if profile is None else [f"{profile}; --no-profile ignores it"]),
        f"try it: {command}{_model_option(server)}",
        *(f"the page: {url}" for url in page.values()),
    ]
    if faults := named(installed_version(server.config.tritonserver), has_grpc):
        messages.print(f"{faults}.")
    _print_state(as_json, {**urls, **page, "profile": used}, "\n".join(lines))
    console.file.flush()  # a reader at the other end of a pipe is waiting for it


def _model_option(server: TritonServer) -> str:
    """Return the option that names a model, where it is not the one that is asked by default."""
    return "" if MODEL_NAME in server.models else f" --model {server.models[0]}"


def _print_state(as_json: bool, result: Mapping[str, str | None], words: str) -> None:
    if as_json:
        print_json(result)
    else:
        print_words(words)
