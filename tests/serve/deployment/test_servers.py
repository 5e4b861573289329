"""Deployments to servers of several models, with a page, with a profile, and started again."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import bertender
from bertender.core.errors import ServingError
from bertender.core.files import save_result
from serve.config import SERVERS, ServeConfig
from serve.deploy import deploy
from serve.profiles import MachineKey, ModelShape, ServeProfile, TunedSettings
from serve.server.targets import ModelFolder
from tests.serve.deployment.conftest import Deployable, Versions, deployable, logits_of
from tests.serve.processes import stub_of
from tests.serve.test_page import about
from tests.served import ANY_PORTS

pytestmark = [pytest.mark.server, pytest.mark.slow]

RESTART_S = 20


def test_one_of_several_models_is_replaced(versions: Versions, tmp_path: Path) -> None:
    models = {"tone": versions.old, "topic": versions.old}
    with deployable(models, tmp_path) as running:
        config = running.config.model_copy(update={"model": "tone"})
        done = deploy(versions.new, running.server.http_url, config)
        assert (done.model, done.version) == ("tone", 2)
        assert (running.control.versions("tone"), running.control.versions("topic")) == ({2}, {1})
        np.testing.assert_allclose(running.answer("tone"), logits_of(versions.new), atol=1e-4)
        np.testing.assert_allclose(running.answer("topic"), logits_of(versions.old), atol=1e-4)
        names = sorted(path.name for path in running.server.repository.iterdir())
        assert names == ["tone", "topic"], "nothing of the candidate is left"


@pytest.mark.parametrize("server", SERVERS)
def test_a_page_shows_the_version_that_answers(
    server: str, versions: Versions, tmp_path: Path
) -> None:
    with deployable(versions.old, tmp_path, server=server, page=True) as running:
        url = running.server.http_url
        (before,) = about(url)
        deploy(versions.new, url, running.config)
        (after,) = about(url)
    assert (before["version"], after["version"]) == ("1", "2")
    assert before["lineage"][0]["digest"] == versions.old.digest[:12]
    assert after["lineage"][0]["digest"] == versions.new.digest[:12]
    assert after["lineage"][0]["name"] == "classifier, version 2"
    assert after["lineage"][1]["digest"] == versions.new.card.parent.digest[:12]


def test_the_settings_of_a_profile_stay(versions: Versions, tmp_path: Path) -> None:
    tuned = TunedSettings(concurrent_buckets=2, threads_per_instance=1, tokens_per_bucket=77)
    machine = MachineKey.of_this_machine(ServeConfig())
    model = ModelShape.of_card(versions.old.card)
    profile = ServeProfile(settings=tuned, machine=machine, model=model, noisy=False)
    save_result(profile, path := tmp_path / "tuned.json")
    token = {"admin_token_file": tmp_path / "token"}
    with bertender.serve(versions.old, profile=path, **ANY_PORTS, **token) as server:
        done = bertender.deploy(versions.new, server.http_url, **token)
        folder = ModelFolder(server.repository / "classifier")
        served, parameters = folder.served, folder.config.parameters
    assert (done.version, served, done.digest) == (2, 2, versions.new.digest)
    stay = {name: parameters[name].string_value for name in ("tokens_per_bucket", "threads")}
    assert stay == {"tokens_per_bucket": "77", "threads": "1"}
    assert parameters["concurrent_buckets"].string_value == "2"


def wait_until_it_answers(running: Deployable) -> None:
    deadline = time.monotonic() + RESTART_S
    while True:
        try:
            running.answer()
            return
        except ServingError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_server_that_was_started_again_takes_a_new_version(
    versions: Versions, tmp_path: Path
) -> None:
    with deployable(versions.old, tmp_path, restart=True) as running:
        stub_of(running.server).kill()
        wait_until_it_answers(running)
        done = deploy(versions.new, running.server.http_url, running.config)
        assert (done.version, done.state) == (2, "serving")
        assert running.loaded() == {"classifier": {2}}
        np.testing.assert_allclose(running.answer(), logits_of(versions.new), atol=1e-4)
