"""Two load generators send the same request to one server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.foreign_load import measuring as benchmark
from benchmarks.foreign_load.measuring import (
    FOREIGN,
    GENERATORS,
    OWN,
    SIZES,
    ForeignLoad,
    ForeignLoadConfig,
    GeneratorRun,
    measure_generators,
)
from benchmarks.foreign_load.table import foreign_load_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.tasks.task import Task

QUICK = ForeignLoadConfig(rounds=3, duration_s=1.0, clients=2, noisy=True)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("hey") is None, reason="hey is not installed")
def test_both_generators_get_responses_to_every_request(exported: Artifact, task: Task) -> None:
    result = measure_generators(exported, [text for (text,) in task.dev.examples], QUICK)
    for generator in GENERATORS:
        for size in SIZES:
            runs = result.of(generator, size)
            assert len(runs) == QUICK.rounds
            assert all(0 < each.p50_ms <= each.p99_ms for each in runs)
            assert [each.errors for each in runs] == [0] * QUICK.rounds


def test_what_is_not_installed_is_named(
    exported: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LoadTestError, match="apt-get install hey"):
        measure_generators(exported, ["a text"], QUICK)


def made_up() -> ForeignLoad:
    """Return runs in which the own generator reports half of what the foreign one does."""
    speeds = {OWN: 100.0, FOREIGN: 200.0}
    return ForeignLoad(
        task="toy",
        name="onnx",
        digest="0",
        config=QUICK,
        runs=tuple(
            GeneratorRun(
                generator=name,
                texts_per_request=size,
                requests_per_second=speeds[name] * number,
                p50_ms=1000 / speeds[name] / number,
                p99_ms=50.0,
                errors=number,
            )
            for number in (1, 2, 3)
            for size in SIZES
            for name in GENERATORS
        ),
        load=MachineLoad(other_work=0.0, steal=0.0),
        environment=environment(),
    )


def test_the_ratios_are_those_within_rounds(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(made_up().model_dump_json())
    block = foreign_load_block("load.json", path)
    assert "| 1 | bertender | 200 | 6.11 | 50.00 | 6 |" in block
    assert "| 16 | hey | 400 | 3.06 | 50.00 | 6 |" in block
    assert (
        "- 16 a request: bertender reports 0.50 [0.50, 0.50] times the requests/s of hey, "
        "and 2.00 [2.00, 2.00] times its p50." in block
    )


def test_the_command_writes_what_it_measured(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[ForeignLoadConfig] = []

    def measured(artifact: Artifact, texts: list[str], config: ForeignLoadConfig) -> ForeignLoad:
        configs.append(config)
        return made_up()

    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "measure_generators", measured)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "load.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--no-pin", "--clients", "3"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "hey, 16 a request: 600 requests/s, p50 1.67 ms" in done.output
    assert ForeignLoad.model_validate_json(out.read_text()) == made_up()
    (config,) = configs
    assert (config.clients, config.rounds, config.pins.server) == (3, 5, None)
