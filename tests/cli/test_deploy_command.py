"""bertender deploy: what it prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.cli.serving import lines_of_deployment
from bertender.core.artifact import Artifact
from bertender.gate.golden import GoldenCheck
from serve.config import DeployConfig, ServeConfig
from serve.deploy import Deployment
from serve.repository import write_repository
from tests.cli.made import Made
from tests.front import fail, succeed

pytestmark = pytest.mark.server


def test_a_directory_gets_a_version(made: Made, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_repository({"tone": Artifact.load(made["int8"])}, repository, ServeConfig())
    result = succeed("deploy", made["int8"], "--to", repository, "--model", "tone")
    assert result.stdout.startswith(
        "tone: version 2 is written; a server that reads the repository"
    )
    assert "golden texts predicted as when it was made, outputs within" in result.stdout
    assert f"deploy {repository}/tone/1/artifact --to {repository} --model tone" in result.stdout
    assert (repository / "tone" / "2" / "artifact" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "nowhere"), "no such directory, and no url"),
        (("--to", "http://127.0.0.1:1"), "--admin-token-file FILE"),
        (("--to", ".", "--keep", "-1"), "keep=-1"),
        (("--to", "http://127.0.0.1:1", "--tritonserver", "/bin/true"), "tritonserver=/bin/true"),
    ],
)
def test_what_cannot_be_is_an_error(words: tuple[str, ...], said: str, made: Made) -> None:
    assert said in fail("deploy", made["int8"], *words)


def test_a_torch_artifact_is_refused(made: Made, tmp_path: Path) -> None:
    assert "only 'onnx' artifacts are served" in fail("deploy", made["teacher"], "--to", tmp_path)


def test_the_way_back_is_shown() -> None:
    check = GoldenCheck(texts=16, left_out=3, max_abs_difference=2e-7, failures=())
    deployment = Deployment(
        model="classifier",
        version=7,
        digest="d",
        state="serving",
        golden=check,
        repository="/srv/models",
        earlier_versions=(5, 6),
    )
    lines = [*lines_of_deployment(deployment, "/srv/models", DeployConfig())]
    assert lines[0] == "classifier: version 7 is serving; every request is answered by it now"
    assert lines[2].startswith("  3 golden texts are beyond the server's --max-length")
    place = "/srv/models/classifier/6/artifact"
    back = f"  to go back to version 6: bertender deploy {place} --to /srv/models"
    assert lines[-1] == back
    values = {
        "model": "tone",
        "admin_token_file": "admin token",
        "api_key_file": "key",
        "ca_file": "ca.pem",
        "other_task": True,
        "keep": 1,
    }
    *_, last = lines_of_deployment(deployment, "/srv/models", DeployConfig.parse(values))
    assert last == (
        f"{back} --model tone --admin-token-file 'admin token' --api-key-file key --ca-file ca.pem "
        "--other-task"
    )
