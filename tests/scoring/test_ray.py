"""`score --engine ray`, on a cluster of this machine: work of a killed worker is done once."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, RuntimeMissingError
from bertender.scoring.job import Job, PartRecord
from bertender.tasks.task import Task
from tests.tasks.writers import WRITERS

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_the_extra_is_named(teacher: Artifact, tmp_path: Path) -> None:
    source = WRITERS[".csv"](tmp_path / "texts.csv", [{"text": "a pear"}])
    with pytest.raises(RuntimeMissingError, match=r"bertender\[ray\]"):
        bertender.score(teacher, source, out=tmp_path / "out", engine="ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two cores, of which each worker takes one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a token into the user's home
        patch.setenv("RAY_raylet_start_wait_time_s", "300")  # two cores may have other work
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray = pytest.importorskip("ray")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}},
        )
        yield ray
        ray.shutdown()


class Dies:
    """A job whose first worker is killed in the middle of a part, once."""

    def __init__(self, job: Job, once: Path) -> None:
        self.job = job
        self.once = once

    def compute(self, numbers: list[int], bar: Any) -> Iterator[PartRecord]:
        with (self.once / "workers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        try:
            (self.once / "killed").touch(exist_ok=False)
        except FileExistsError:
            yield from self.job.compute(numbers, bar)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_killed_worker_loses_nothing_and_repeats_nothing(
    cluster: Any,
    exported: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    from bertender.scoring import score

    rows = [{"id": str(row), "text": text} for row, (text,) in enumerate(task.train.examples[:60])]
    source = WRITERS[suffix](tmp_path / f"texts{suffix}", rows)
    run_on_ray = score.run_on_ray

    def with_a_death(job: Job, numbers: list[int], bar: Any) -> Iterator[PartRecord]:
        return run_on_ray(Dies(job, tmp_path), numbers, bar)  # type: ignore[arg-type]

    settings = {"texts_per_part": 5, "format": "parquet" if suffix == ".parquet" else "jsonl"}
    monkeypatch.setattr(Dies, "config", property(lambda self: self.job.config), raising=False)
    monkeypatch.setattr(score, "run_on_ray", with_a_death)
    run = bertender.score(
        exported, source, out=tmp_path / "out", engine="ray", workers=2, **settings
    )
    alone = bertender.score(exported, source, out=tmp_path / "alone", **settings)
    workers = {*(tmp_path / "workers").read_text().split()}
    assert len(workers) == 3, "two, and one for the killed"
    assert run.complete and (run.parts, run.texts) == (12, 60) == (alone.parts, alone.texts)
    for path in sorted((tmp_path / "alone").glob("part-*")):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_an_error_of_a_worker_is_the_command_s(
    cluster: Any, exported: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes after it was checked."""
    source = WRITERS[".jsonl"](tmp_path / "texts.jsonl", [{"text": "a pear"}, {"text": "a saw"}])
    run = Job.run

    def changed(self: Job, numbers: list[int], bar: Any) -> Iterator[PartRecord]:
        source.write_text(json.dumps({"text": "a pear"}) + '\n{"text": ""}\n')
        return run(self, numbers, bar)

    monkeypatch.setattr(Job, "run", changed)
    with pytest.raises(BertenderError, match=r"texts\.jsonl, line 2.*empty"):
        bertender.score(exported, source, out=tmp_path / "out", engine="ray", texts_per_part=1)
