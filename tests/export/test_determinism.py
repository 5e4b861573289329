"""The same source gives the same bytes, in another process too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact

WRITE = """
import hashlib, sys
from pathlib import Path
from bertender.core.artifact import Artifact
from export.exporter import ExportConfig, write_onnx
from tests.toys import toy_task
for number, settings in enumerate(({settings})):
    folder = Path(sys.argv[2]) / str(number)
    folder.mkdir()
    write_onnx(Artifact.load(sys.argv[1]), toy_task(), ExportConfig(**settings), folder)
    print(hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest())
"""
SETTINGS = (
    "{}",
    "{'optimize': 'basic'}",
    "{'optimize': 'fused', 'precision': 'float16'}",
    "{'optimize': 'fused', 'precision': 'bfloat16'}",
)


@pytest.mark.slow
def test_processes_of_other_hash_seeds_write_the_same_bytes(
    teacher: Artifact, tmp_path: Path
) -> None:
    digests = [written(teacher, tmp_path / seed, seed) for seed in ("1", "2")]
    assert len(digests[0]) == len(SETTINGS)
    assert digests[0] == digests[1]


def written(teacher: Artifact, folder: Path, seed: str) -> list[str]:
    """The digests of graphs that a process of its own writes."""
    folder.mkdir()
    script = WRITE.replace("{settings}", f"{', '.join(SETTINGS)},")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(teacher.path), str(folder)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
