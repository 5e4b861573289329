"""bertender deploy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, command_with_flags, explicit, option_values
from bertender.cli.output import print_json, print_words
from bertender.models.importing import open_artifact
from serve.deployment.config import DeployConfig
from serve.deployment.deploy import Deployment, deploy

__all__ = ["deploy_command", "lines_of_deployment"]

NEXT_STEPS = {
    "serving": "every request is answered by it now",
    "written": "a server that reads the repository has to load it, or to be started again",
}
"""By the state of a deployment."""


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
        config = DeployConfig.parse(explicit(option_values(DeployConfig, values)))
        source = open_artifact(artifact, verify=False)  # checked when its files are placed
        deployment = deploy(source, to, config)
        if as_json:
            print_json(deployment.model_dump(mode="json"))
            return
        for line in lines_of_deployment(deployment, to):
            print_words(line)

    return command_with_flags(command, (DeployConfig,))


def lines_of_deployment(deployment: Deployment, to: str) -> Iterator[str]:
    """Return the lines that show a deployment to a place."""
    golden = deployment.golden
    yield (
        f"{deployment.model}: version {deployment.version} is {deployment.state}; "
        f"{NEXT_STEPS[deployment.state]}"
    )
    yield (
        f"  {golden.texts} golden texts predicted as when it was made, logits within "
        f"{golden.max_abs_difference:.2g}"
    )
    if golden.left_out:
        yield (
            f"  {golden.left_out} golden texts are beyond the server's --max-length or "
            "--max-text-bytes, and were not compared"
        )
    for version in deployment.earlier_versions:
        place = Path(deployment.repository, deployment.model, str(version), "artifact")
        command = shlex.join(["bertender", "deploy", str(place), "--to", to])
        yield f"  to go back to version {version}: {command}"
