"""Deployment to a server with TLS and keys, whatever runs the model behind its door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bertender.core.errors import ConfigError, DeploymentError
from serve.client.endpoint import Endpoint
from serve.config import DeployConfig
from serve.deploy import deploy
from serve.door.callers import append_row, new_key
from serve.server.server import Server
from tests.serve.deployment.conftest import (
    ASKED,
    Deployable,
    Versions,
    deployable,
    logits_of,
    snapshot,
)
from tests.serve.deployment.test_refusals import disagreeing, unloadable

pytestmark = pytest.mark.server


@dataclass
class Locked:
    """A running server with TLS and keys, and what opens it."""

    running: Deployable
    config: DeployConfig

    @property
    def server(self) -> Server:
        return self.running.server

    @property
    def url(self) -> str:
        """By the name in its certificate."""
        return self.server.http_url.replace("127.0.0.1", "localhost")

    def answer(self) -> np.ndarray:
        with Endpoint(self.url, retries=0, access=self.config.access) as endpoint:
            return endpoint.logits([ASKED])[0]


@pytest.fixture(scope="module", params=[pytest.param("triton", marks=pytest.mark.slow), "embedded"])
def locked(
    request: pytest.FixtureRequest,
    versions: Versions,
    tls: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    key, row = new_key("deployer")
    append_row(folder / "keys", row)
    (folder / "key").write_text(f"{key}\n")
    certificate, own = tls
    files = {"tls_certificate": certificate, "tls_key": own, "api_keys": folder / "keys"}
    opening = {"api_key_file": folder / "key", "ca_file": certificate}
    with deployable(versions.old, folder, server=request.param, **files) as running:
        yield Locked(running, running.config.model_copy(update=opening))


def test_it_is_opened_by_its_key_and_its_authority(locked: Locked, versions: Versions) -> None:
    done = deploy(versions.new, locked.url, locked.config)
    assert (done.version, done.state, done.golden.failures) == (2, "serving", ())
    np.testing.assert_allclose(locked.answer(), logits_of(versions.new), atol=1e-4)
    back = deploy(versions.old, locked.server.http_url, locked.config)
    assert (back.version, back.earlier_versions) == (3, (2,))
    np.testing.assert_allclose(locked.answer(), logits_of(versions.old), atol=1e-4)


def test_what_does_not_open_it_changes_nothing(
    locked: Locked, versions: Versions, tmp_path: Path
) -> None:
    before = snapshot(locked.server.repository)
    no_key = locked.config.model_copy(update={"api_key_file": None})
    with pytest.raises(DeploymentError, match=r"takes no request without a key.*--api-key-file"):
        deploy(versions.new, locked.url, no_key)
    untrusted = locked.config.model_copy(update={"ca_file": None})
    with pytest.raises(ConfigError, match=r"no trusted TLS connection to .*--ca-file"):
        deploy(versions.new, locked.url, untrusted)
    with pytest.raises(DeploymentError, match="golden text 3 of 8"):
        deploy(disagreeing(versions.new, tmp_path), locked.url, locked.config)
    with pytest.raises(DeploymentError, match="load"):
        deploy(unloadable(versions.new, tmp_path), locked.url, locked.config)
    assert snapshot(locked.server.repository) == before
    np.testing.assert_allclose(locked.answer(), logits_of(versions.old), atol=1e-4)


@pytest.mark.parametrize("name", ["api_key_file", "ca_file"])
def test_a_directory_needs_neither(name: str, versions: Versions, tmp_path: Path) -> None:
    config = DeployConfig.parse({name: tmp_path / "file"})
    with pytest.raises(ConfigError, match=rf"{name}=.*is for a running server.*is a directory"):
        deploy(versions.new, str(tmp_path), config)
