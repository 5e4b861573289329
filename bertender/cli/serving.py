"""bertender serve, deploy, tune, api-key and install-server.

The implementation is imported when a command runs, since help and settings do not need it.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, settings_of
from bertender.cli.output import (
    console,
    messages,
    print_json,
    print_result,
    print_rows,
    print_words,
)
from bertender.comparison.table import DASH
from bertender.core.artifact import IMPORT_STAGE, Artifact
from bertender.core.errors import ConfigError
from bertender.core.files import check_savable
from bertender.models.importing import open_artifact
from serve.config import STANDARD_OUTPUT, DeployConfig, ServeCommandConfig
from serve.loadtest import texts_to_send
from serve.profiles import with_profile
from serve.server.wheels import install_server, why_not_here
from serve.tuning import Tried, TuneConfig, TuneResult, tune
from serve.wire import MODEL_NAME

if TYPE_CHECKING:
    from serve.deploy import Deployment
    from serve.server.server import Server

logger = logging.getLogger(__name__)

ASSIGNMENT = re.compile(r"([^=/]*)=(.+)")


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    builders = {
        "serve": serve_command,
        "deploy": deploy_command,
        "tune": tune_command,
        "api-key": api_key_command,
        "install-server": install_server_command,
    }
    return builders[name]()


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
        from serve.repository import model_names, write_repository
        from serve.server.server import serve_forever
        from serve.server.triton_process import attached_command

        config = ServeCommandConfig.parse(settings_of(ServeCommandConfig, values))
        for name in ("log_file", "access_log"):
            if as_json and getattr(config, name) == STANDARD_OUTPUT:
                raise ConfigError(
                    f"{name}=-: with --json, standard output has one line of JSON. Name a file."
                )
        models = {  # checked when the repository is written
            name: open_artifact(path, verify=False)
            for name, path in models_by_name(artifacts).items()
        }
        _warn_of_single_texts(models.values())
        config, taken = with_profile(config, [each.card for each in models.values()])
        if taken:
            messages.print(f"{taken}.", soft_wrap=True, markup=False)
        if config.repository_only:
            from serve.check import try_repository

            written = write_repository(models, config.repository_only, config)
            not_tried = try_repository(written, config)
            command_line = shlex.join(attached_command(written, model_names(written)))
            state = {
                "repository": str(written),
                "not_tried": not_tried,
                "tritonserver": command_line,
            }
            tried = f"not tried here: {not_tried}" if not_tried else "a server classified with it"
            lines = [
                f"model repository: {written}",
                tried,
                f"for `bertender serve --triton http://127.0.0.1:8004`: {command_line}",
            ]
            print_result(state, lines, as_json=as_json)
            return
        serve_forever(
            models, config, on_ready=lambda server: _ready(server, config.profile, as_json)
        )

    return command_with_flags(command, (ServeCommandConfig,))


def models_by_name(words: Sequence[str]) -> Mapping[str, str]:
    """Return artifact paths by model name, from the words of a command line.

    A single path is the model `classifier`, even with an equals sign if it leads to a folder.
    Others are NAME=ARTIFACT.

    Raises:
        ConfigError: a name is not valid for a model, or occurs twice.
    """
    from serve.repository import check_name

    models: dict[str, str] = {}
    for word in words:
        match = ASSIGNMENT.fullmatch(word)
        if match is None or Path(word).exists():
            name, path = MODEL_NAME, word
        else:
            name, path = check_name(match[1]), match[2]
        if name in models:
            raise ConfigError(
                f"{word}: another artifact is called {name!r} already, {models[name]}. Give each "
                "a name of its own, as NAME=ARTIFACT."
            )
        models[name] = path
    return models


def _warn_of_single_texts(models: Iterable[Artifact]) -> None:
    """Warn how many texts imported models are given, as their folders name no columns."""
    for artifact in models:
        record = artifact.card.task
        if artifact.card.stage == IMPORT_STAGE and not record.source and len(record.labels) > 2:
            logger.warning(
                "%s is served for single texts. A model of pairs, as of premise and hypothesis, "
                "needs its columns: bertender import %s --pair-column NAME --out DIRECTORY",
                artifact.place,
                artifact.place,
            )


def _ready(server: Server, profile: Path | None, as_json: bool) -> None:
    has_grpc = server.config.grpc_port is not None
    name = "embedded" if server.config.is_embedded else "triton"
    urls = {
        "server": name,
        "http": server.http_url,
        "grpc": server.grpc_url if has_grpc else None,
        "metrics": server.metrics_url,
    }
    page = {"page": f"{server.http_url}/"} if server.config.page else {}
    command = f'bertender classify "a text of yours" --url {server.http_url}'
    model = "" if MODEL_NAME in server.models else f" --model {server.models[0]}"
    without = f"server: {name}, without Triton" if server.config.is_embedded else ""
    if without and server.config.server is None and why_not_here() is None:
        without += ", which `bertender install-server` installs"
    lines = [
        f"ready at {server.http_url}{f' and {server.grpc_url}' if has_grpc else ''}; stop it with "
        "Ctrl-C.",
        f"metrics: {server.metrics_url}",
        f"try it: {command}{model}",
        *filter(None, (without,)),
        *(f"the page: {url}" for url in page.values()),
    ]
    print_result({**urls, **page, "profile": profile}, lines, as_json=as_json)
    console.file.flush()  # a reader of the pipe may be waiting for this line


def deploy_command() -> Callable[..., None]:
    """Build `bertender deploy`."""

    def command(
        artifact: Annotated[
            str, typer.Argument(metavar="ARTIFACT", help="onnx artifact to deploy")
        ],
        to: Annotated[
            str,
            typer.Option(
                metavar="DIR_OR_URL",
                help="a running `bertender serve` of this machine, http://..., or the directory of "
                "a model repository",
            ),
        ],
        values: dict[str, Any],
        as_json: JsonFlag = False,
    ) -> None:
        from serve.deploy import deploy

        config = DeployConfig.parse(settings_of(DeployConfig, values))
        source = open_artifact(artifact, verify=False)  # checked when its files are copied
        deployment = deploy(source, to, config)
        print_result(deployment, lines_of_deployment(deployment, to, config), as_json=as_json)

    return command_with_flags(command, (DeployConfig,))


NEXT_STEPS = {
    "serving": "every request is answered by it now",
    "written": "a server that reads the repository has to load it, or to be started again",
}
"""Next step by state of a deployment."""


def lines_of_deployment(deployment: Deployment, to: str, config: DeployConfig) -> Iterator[str]:
    """Return the lines of a deployment, with the command that goes back, by the same options."""
    golden = deployment.golden
    yield (
        f"{deployment.model}: version {deployment.version} is {deployment.state}; "
        f"{NEXT_STEPS[deployment.state]}"
    )
    yield (
        f"  {golden.texts} golden texts predicted as when it was made, outputs within "
        f"{golden.max_abs_difference:.2g}"
    )
    if golden.left_out:
        yield (
            f"  {golden.left_out} golden texts are beyond the server's --max-length or "
            "--max-text-bytes, and were not compared"
        )
    for version in deployment.earlier_versions:
        place = Path(deployment.repository, deployment.model, str(version), "artifact")
        command = shlex.join(["bertender", "deploy", str(place), "--to", to, *_options(config)])
        yield f"  to go back to version {version}: {command}"


def _options(config: DeployConfig) -> Iterator[str]:
    """Yield the options of a command line for the settings that are not defaults."""
    for name, value in config:
        if config.is_explicit(name, beyond_default=True):
            flag = f"--{name.replace('_', '-')}"
            yield from (flag,) if value is True else (flag, str(value))


def tune_command() -> Callable[..., None]:
    """Build `bertender tune`."""

    def command(
        artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="onnx artifact to serve")],
        values: dict[str, Any],
        out: Annotated[
            Path | None,
            typer.Option(
                "--out",
                metavar="FILE",
                help="write a profile for `serve --profile` to this JSON file, with every "
                "figure; an interrupted run with the same file continues",
            ),
        ] = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        config = TuneConfig.parse(settings_of(TuneConfig, values))
        source = open_artifact(artifact, verify=False)  # checked when it is served
        result = tune(source, partial(texts_to_send, config), config, out)
        if as_json:
            print_json(result)
        else:
            _print_result(result, artifact, out)

    return command_with_flags(command, (TuneConfig,))


def _print_result(result: TuneResult, artifact: str, out: Path | None) -> None:
    _print_tried("setting", result.tried)
    if result.fresh:
        _print_tried("once more", result.fresh)
    print_words(f"{result.choice.setting}: {result.choice.reason}.")
    noisy = ": noisy, these figures are not reliable" if result.load.noisy else ""
    print_words(f"busiest server: {result.load}{noisy}")
    if options := result.settings.options:
        print_words(f"use it: bertender serve {shlex.quote(artifact)} {options}")
        if out:
            print_words(
                f"or: {shlex.join(['bertender', 'serve', artifact, '--profile', str(out)])}"
            )
    else:
        print_words("these are the defaults of `bertender serve`")


def _print_tried(title: str, tried: Sequence[Tried]) -> None:
    rows = [
        (
            row.name,
            DASH if row.texts_per_second is None else f"{row.texts_per_second:.4g}",
            DASH if row.against_default is None else str(row.against_default),
        )
        for row in tried
    ]
    print_rows((title, "texts/s", "against the default"), rows)
    for row in tried:
        if row.failure:
            print_words(f"{row.name}: no score, because it could not be served: {row.failure}")


def api_key_command() -> Callable[..., None]:
    """Build `bertender api-key`."""

    def command(
        name: Annotated[str, typer.Argument(metavar="NAME", help="who will send the key")],
        file: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="append the row to this file, of `serve --api-keys`; a missing file is "
                "written, for this user alone. By default the row is printed",
            ),
        ] = None,
        tokens_per_second: Annotated[
            float | None,
            typer.Option(
                min=1e-3,
                help="most tokens a second, one for 4 bytes of text; by default any number",
            ),
        ] = None,
        as_json: JsonFlag = False,
    ) -> None:
        from serve.door.callers import append_row, new_key

        key, row = new_key(name, tokens_per_second)
        if file is not None:
            append_row(file, row)
        lines = (
            f"key, which is shown this once: {key}",
            f"row of the file of keys: {row}" if file is None else f"added to {file}",
        )
        print_result({"name": name, "key": key, "row": row}, lines, as_json=as_json)

    return command


def install_server_command() -> Callable[..., None]:
    """Build `bertender install-server`."""

    def command(as_json: JsonFlag = False) -> None:
        result = install_server(say=lambda line: messages.print(line, soft_wrap=True, markup=False))
        how = "; `bertender serve` starts it" if result.changed else f" already, in {result.folder}"
        words = f"Triton {result.version} is installed{how}"
        print_result(result, [words], as_json=as_json)

    return command
