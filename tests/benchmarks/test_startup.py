"""Starts of the server: when it is ready, what its processes take, and a table that judges both."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.pinning import NOT_PINNED, Pins
from benchmarks.startup.measuring import ProcessMemory, Start, StartupBenchmark, measure_starts
from benchmarks.startup.table import TITLES, startup_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ServingError
from bertender.core.machine_load import MachineLoad
from bertender.tasks.task import Task


@pytest.mark.server
@pytest.mark.slow
def test_every_process_of_every_start_is_looked_at(exported: Artifact, task: Task) -> None:
    result = measure_starts(exported, task.dev.examples, 2, NOT_PINNED, noisy=True)
    assert len(result.starts) == 2
    for start in result.starts:
        assert 0 < start.ready_s < start.first_response_s
        assert sorted(each.role for each in start.memory) == sorted(TITLES)
        assert all(0 < each.own_bytes < each.resident_bytes for each in start.memory)
        resident = sum(each.resident_bytes for each in start.memory)
        assert max(each.resident_bytes for each in start.memory) < start.total_bytes < resident


def test_a_server_that_does_not_start_is_an_error(
    exported: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.startup.measuring.sys.executable", "/bin/false")
    with pytest.raises(ServingError, match="run it by hand"):
        measure_starts(exported, task.dev.examples, 1, NOT_PINNED, noisy=True)


def made_up(ready_s: float, megabytes: float) -> StartupBenchmark:
    """Return three starts; the median one is of that time, and of that size without doubles."""
    starts = tuple(
        Start(
            ready_s=ready_s * factor,
            first_response_s=ready_s * factor + 0.1,
            memory=tuple(
                ProcessMemory(
                    role=role,
                    resident_bytes=int(1e6 * megabytes * factor / 2),
                    own_bytes=int(1e6 * megabytes * factor / 8),
                )
                for role in TITLES
            ),
            file_bytes=int(1e6 * megabytes * factor / 2),
        )
        for factor in (1, 3, 0.5)
    )
    return StartupBenchmark(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        texts=7,
        pins=Pins(server=0),
        starts=starts,
        load=MachineLoad(other_work=0.0, steal=0.0),
        environment=environment(),
    )


JUDGED = {
    "reached": (2.4, 240.0, ("Ready after 2.40 s", "240 MB, with pages", "480 MB where those")),
    "missed": (2.6, 260.0, ("Ready after 2.60 s", "260 MB, with pages", "520 MB where those")),
}


@pytest.mark.parametrize("name", JUDGED)
def test_the_table_judges_medians_against_the_aims(name: str, tmp_path: Path) -> None:
    ready_s, megabytes, said = JUDGED[name]
    path = tmp_path / "startup.json"
    path.write_text(made_up(ready_s, megabytes).model_dump_json())
    text = startup_block("startup.json", path)
    assert [words for words in said if words not in text] == []
    assert text.count(name) == 2
    assert "on one core" in text and "Raw: `startup.json`" in text
