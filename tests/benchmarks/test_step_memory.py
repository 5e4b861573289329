"""The benchmark of memory and disk: a command in a process of its own, and its row of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.step_memory.measuring import (
    COMMANDS,
    MeasuredCommandError,
    Step,
    StepMemoryBenchmark,
    StepUse,
    measure_step,
)
from benchmarks.step_memory.table import step_memory_block
from bertender.cli.main import commands
from bertender.core.environment import environment


def test_a_command_is_measured(tmp_path: Path) -> None:
    use = measure_step(Step("--version", tmp_path))
    assert 5 * 10**6 < use.largest_process_bytes < 10**10
    assert (use.most_disk_bytes, use.left_on_disk_bytes) == (0, 0)


def test_what_a_command_writes_is_counted(tmp_path: Path) -> None:
    class Writing(Step):
        @property
        def arguments(self) -> list[str]:
            return ["sh", "-c", "printf 12345 > out; printf 123 > gone; sleep 0.5; rm gone"]

    use = measure_step(Writing("writing", tmp_path))
    assert (use.left_on_disk_bytes, use.most_disk_bytes) == (5, 8)
    assert use.all_processes_bytes > 0


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasuredCommandError, match="bertender show nowhere: exit code 1"):
        measure_step(Step("show nowhere", tmp_path))


def test_every_command_of_the_chain_is_one() -> None:
    assert {command.split()[0] for command in COMMANDS} <= set(commands())


def test_the_table_has_a_row_a_command(tmp_path: Path) -> None:
    use = StepUse(
        command="export student",
        largest_process_bytes=1_234_000_000,
        all_processes_bytes=0,
        most_disk_bytes=70_000_000,
        left_on_disk_bytes=20_000_000,
    )
    result = StepMemoryBenchmark(
        task="toy", encoder="tiny", rows=5, threads="", environment=environment(), steps=(use,)
    )
    path = tmp_path / "result.json"
    path.write_text(result.model_dump_json())
    text = step_memory_block("result.json", path)
    assert "| `export student` | 1,234 | 70 | 20 |" in text
    assert "`tiny` on the task `toy`, 5 training texts" in text and "Raw: `result.json`" in text
