"""`bertender serve` on a disk that is full, and with shared memory that is scarce: real ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from serve.repository import is_repository
from serve.repository.config_pbtxt import read_model_config
from serve.server.supervisor import SHARED_MEMORY
from tests.quick import quick
from tests.served import ANY_PORT_OPTIONS, SERVE
from tests.small_disk import SmallDisk, small_disk

MIB = 2**20


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command that has failed as it should, on one line."""
    assert done.returncode == 2 and not done.stdout, done
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder of temporary files of a command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def size_bytes(artifact: Artifact) -> int:
    return sum(file.size_bytes for file in artifact.card.files.values())


@pytest.fixture
def disk(onnx_artifact: Artifact, temporary: Path) -> Iterator[SmallDisk]:
    """A disk that has room for one copy of the artifact."""
    with small_disk(temporary, int(1.6 * size_bytes(onnx_artifact))) as disk:
        yield disk


@pytest.fixture
def full_disk(onnx_artifact: Artifact, temporary: Path) -> Iterator[SmallDisk]:
    """A disk that has room for half of the artifact."""
    with small_disk(temporary, size_bytes(onnx_artifact) // 2) as disk:
        yield disk


NEEDS_COPIES: Mapping[str, tuple[str, ...]] = {
    "a repository": ("--repository-only", "models"),
    # of a server that is never started again, the repository has symbolic links
    "the repository of a server": ("--restart", *ANY_PORT_OPTIONS),
}
"""Options with which `serve` copies the model to the working directory or the temporary one."""


@pytest.mark.fault("the disk is full at the start", "an error with the size; what was there stays")
@pytest.mark.parametrize("kind", NEEDS_COPIES)
def test_a_full_disk_is_named_and_has_nothing_half_written(
    kind: str, full_disk: SmallDisk, onnx_artifact: Artifact
) -> None:
    variables = {**os.environ, "TMPDIR": str(full_disk.folder)}
    words: tuple[str | Path, ...] = (*SERVE, onnx_artifact.path, *NEEDS_COPIES[kind])
    there = ("env", f"--chdir={full_disk.folder}")  # a folder that is entered before it is another
    error = error_of(full_disk.run(*there, *words, env=variables))
    assert "models cannot be written: No space left on device." in error
    assert "Make room, or choose another directory" in error
    assert [*full_disk.content.iterdir()] == []


@pytest.mark.parametrize("kibibytes", [16, pytest.param(40, marks=pytest.mark.slow)])
def test_a_disk_without_room_for_the_log_is_named(
    kibibytes: int, temporary: Path, onnx_artifact: Artifact
) -> None:
    variables = {**os.environ, "TMPDIR": str(temporary)}
    with small_disk(temporary, 1024 * kibibytes) as disk:
        done = disk.run(*SERVE, onnx_artifact.path, *ANY_PORT_OPTIONS, env=variables)
        error = error_of(done)
        assert "log and notes take 1024 KiB. Make room, or choose another directory" in error
        assert [*disk.content.iterdir()] == []


def test_a_disk_without_room_for_another_repository_keeps_the_one_it_has(
    disk: SmallDisk, onnx_artifact: Artifact
) -> None:
    words = (*SERVE, onnx_artifact.path, "--repository-only", disk.folder / "models")
    assert disk.run(*words, "--max-batch-size", "3").returncode == 0
    assert "No space left" in error_of(disk.run(*words, "--max-batch-size", "4"))
    (repository,) = disk.content.iterdir()
    config = read_model_config(repository / "classifier" / "config.pbtxt")
    assert is_repository(repository) and config.max_batch_size == 3
    placed = Artifact.load(repository / "classifier" / "1" / "artifact")
    assert placed.digest == onnx_artifact.digest


SCARCE: Mapping[str, tuple[int, tuple[str, ...], str]] = {
    "for one copy": (MIB, (), "has 1.0 MiB free, and the server needs 14.0 MiB"),
    "for one copy of three": (15 * MIB, ("--instances", "3"), "needs 42.0 MiB"),
    "for a queue": (15 * MIB, ("--max-queue-texts", "512"), "needs 22.0 MiB"),
}
"""Size of the shared memory, options, and what is said."""


@pytest.mark.server
@pytest.mark.fault(
    "`/dev/shm` is too small", "an error before the start, with the size that is needed"
)
@pytest.mark.parametrize("kind", quick(SCARCE, "for one copy of three"))
def test_scarce_shared_memory_is_named_and_nothing_is_started(
    kind: str, temporary: Path, onnx_artifact: Artifact
) -> None:
    size, options, said = SCARCE[kind]
    variables = {**os.environ, "TMPDIR": str(temporary)}
    with small_disk(SHARED_MEMORY, size) as disk:
        done = disk.run(*SERVE, onnx_artifact.path, *ANY_PORT_OPTIONS, *options, env=variables)
        assert [*disk.content.iterdir()] == []
    error = error_of(done)
    assert said in error and "Make it larger (docker run --shm-size" in error
    assert [*temporary.iterdir()] == []
