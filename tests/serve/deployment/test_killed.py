"""A deployment, or its server, that is killed half-way: what is there then, and who cleans up."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertender.core.errors import ServingError
from serve.deploy import deploy
from serve.server.targets import ModelControl
from tests.serve.deployment.conftest import (
    Deployable,
    Versions,
    answered_by,
    asking,
    deployable,
    logits_of,
    snapshot,
)

pytestmark = pytest.mark.server

HANGING = """
import sys
from pathlib import Path
from bertender.core.artifact import Artifact
from serve import repository
from serve.config import DeployConfig
from serve.deploy import deploy

repository.MODEL_FILE += "\\nimport time\\ntime.sleep(1000)\\n"
artifact, url, token = sys.argv[1:]
print("begun", flush=True)
deploy(Artifact.load(artifact), url, DeployConfig(admin_token_file=Path(token)))
"""


def kill_while_the_candidate_loads(versions: Versions, running: Deployable) -> None:
    words = (versions.new.path, running.server.http_url, running.token_file)
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    candidate = running.server.repository / "classifier-candidate"
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        deadline = time.monotonic() + 60
        while "classifier-candidate" not in running.loaded():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    assert candidate.is_dir()


@pytest.mark.fault(
    "`deploy` is killed", "the served model stays loaded; the next deployment cleans up"
)
@pytest.mark.slow
def test_the_next_deployment_sweeps_what_a_killed_one_left(
    versions: Versions, tmp_path: Path
) -> None:
    with deployable(versions.old, tmp_path) as running:
        with asking(running.server.http_url) as clients:
            kill_while_the_candidate_loads(versions, running)
            time.sleep(0.2)
        assert answered_by(clients.answers, versions.old) == [True]
        done = deploy(versions.new, running.server.http_url, running.config)
        assert running.loaded() == {"classifier": {done.version}}
        np.testing.assert_allclose(running.answer(), logits_of(versions.new), atol=1e-4)
        repository = running.server.repository
        assert [path.name for path in repository.iterdir()] == ["classifier"]


def dies_at_the_switch(
    server: Deployable, patch: pytest.MonkeyPatch, last: Callable[[], None]
) -> None:
    """Let a server die when it is about to load the next version of the served model."""
    load = ModelControl.load

    def dying(control: ModelControl, model: str) -> None:
        if model == "classifier":
            server.server.stop()
            last()
        load(control, model)

    patch.setattr(ModelControl, "load", dying)


@pytest.mark.slow
def test_a_server_that_dies_at_the_switch_is_not_said_to_go_on(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployable(versions.old, tmp_path) as running:
        before = snapshot(running.server.repository)
        dies_at_the_switch(running, monkeypatch, lambda: None)
        with pytest.raises(ServingError, match=r"does not respond.* has version 1") as caught:
            deploy(versions.new, running.server.http_url, running.config)
        assert "goes on" not in str(caught.value)
        assert snapshot(running.server.repository) == before


@pytest.mark.slow
def test_a_server_that_takes_its_repository_along_is_named(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployable(versions.old, tmp_path) as running:
        gone = running.server.repository
        dies_at_the_switch(running, monkeypatch, lambda: shutil.rmtree(gone))
        with pytest.raises(ServingError, match=r"models is gone.*bertender serve. again"):
            deploy(versions.new, running.server.http_url, running.config)
        assert not gone.exists()
