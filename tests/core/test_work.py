"""The folder of an interrupted run: found by the same run only, and by one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertender.core.build_once import forget_work, work_directory
from bertender.core.errors import ArtifactError, BusyError
from tests.training.runs import CONFIG


def work_of(out: Path, *identity: Any) -> Path:
    """Leave a work directory as an interrupted run does."""
    with pytest.raises(KeyboardInterrupt), work_directory(out, *identity) as work:
        raise KeyboardInterrupt
    return work


def test_only_the_same_run_finds_its_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, config = tmp_path / "model", CONFIG.model_dump(mode="json")
    work = work_of(out, "finetune", config, "digest")
    (work / "checkpoint").touch()
    assert work_of(out, "finetune", config, "digest") == work and (work / "checkpoint").exists()
    others = {
        work_of(out, "finetune", {**config, "seed": 9}, "digest"),
        work_of(out, "finetune", config, "other digest"),
        work_of(out, "distill", config, "digest"),
        work_of(tmp_path / "other", "finetune", config, "digest"),
    }
    monkeypatch.setenv("WORLD_SIZE", "2")
    others.add(work_of(out, "finetune", config, "digest"))
    assert len(others) == 5 and work not in others


@pytest.mark.parametrize("name", ["model", "model[1]"])
def test_work_vanishes_on_success(tmp_path: Path, name: str) -> None:
    stale = work_of(tmp_path / name, "other config")
    kept = work_of(tmp_path / "other", "config")
    with work_directory(tmp_path / name, "config") as work:
        (work / "checkpoint-1").mkdir()
    assert not work.exists() and not stale.exists() and kept.exists()


def test_a_run_that_does_not_continue_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for identity, texts in (("config", 0), ("config", 0), ("other config", 1), ("config", 1)):
        work_of(tmp_path / "model", identity)
        assert caplog.text.count("model starts from the beginning") == texts


def test_foreign_directory_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").touch()
    with pytest.raises(ArtifactError), work_directory(tmp_path / "thesis", "config"):
        pytest.fail("training has begun")


HOLDER = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from bertender.core.build_once import work_directory

with work_directory(Path(sys.argv[1]), "config"):
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "model"
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"at work\n"
        for identity in ("config", "other config"):
            with pytest.raises(BusyError, match="another process"), work_directory(out, identity):
                pytest.fail("two processes train at once")
        with pytest.raises(BusyError):
            forget_work(out)
        holder.kill()
    with work_directory(out, "config") as work:
        assert work.is_dir(), "a killed process holds nothing"


def test_forgotten_work_is_not_resumed(tmp_path: Path) -> None:
    work = work_of(tmp_path / "model", "config")
    kept = work_of(tmp_path / "other", "config")
    forget_work(tmp_path / "model")
    forget_work(tmp_path / "never begun")
    assert not work.exists() and kept.exists()
