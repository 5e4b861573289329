"""Too little shared memory is named before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertender.core.errors import ServingError
from serve.config import ServeConfig
from serve.server import TritonServer
from serve.shared_memory import check_shared_memory, needed_bytes
from tests.served import ANY_PORTS


def test_too_little_shared_memory_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    server = TritonServer(tmp_path, ServeConfig(**ANY_PORTS))
    with pytest.raises(
        ServingError,
        match=r"1\.0 MiB free, and the server takes 4\.0 .*--shm-size.*of `bertender serve`",
    ):
        server.__enter__()
    assert server.supervisor is None and not server.workspace.path.exists()


def test_no_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(shutil, "disk_usage", missing)
    with pytest.raises(ServingError, match="no shared memory at /dev/shm: No such file"):
        check_shared_memory(ServeConfig())


def test_each_copy_of_the_model_takes_its_own() -> None:
    one = needed_bytes(ServeConfig())
    assert needed_bytes(ServeConfig(instances=3)) == 3 * one
    assert needed_bytes(ServeConfig(max_batch_size=128)) > one
