"""What a request costs: every server is measured, and the table shows what was."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.request_costs import measuring as benchmark
from benchmarks.request_costs.measuring import (
    COSTED,
    PAUSES_MS,
    SINGLE_TEXTS,
    CostVisit,
    PausedCalls,
    RequestCosts,
    RequestLoad,
    measure_request_costs,
)
from benchmarks.request_costs.table import request_costs_block
from benchmarks.serving.records import ServingConfig
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ModelError
from bertender.core.machine_load import MachineLoad
from bertender.tasks.task import Task

QUICK = ServingConfig(rounds=3, duration_s=0.2, warmup_s=0.0, noisy=True)
NO_LOAD = MachineLoad(other_work=0.0, steal=0.0)


@pytest.mark.server
@pytest.mark.slow
def test_every_server_is_measured_next_to_the_model(exported: Artifact, task: Task) -> None:
    texts = [text for (text,) in task.dev.examples]
    result = measure_request_costs(exported, texts, QUICK)
    for system in COSTED:
        for load in SINGLE_TEXTS:
            loads = result.loads(system, load)
            assert len(loads) == QUICK.rounds
            assert all(each.requests_per_second > 0 for each in loads)
            assert all({*each.processor_ms} == {"server", "stub"} for each in loads)
    assert [each.pause_ms for each in result.calls] == [*PAUSES_MS] * QUICK.rounds
    assert all(each.p50_ms > 0 for each in result.calls)


def test_a_torch_artifact_is_refused_before_anything_starts(teacher: Artifact) -> None:
    with pytest.raises(ModelError, match="Export it first"):
        measure_request_costs(teacher, ["a text"], QUICK)


def made_up() -> RequestCosts:
    """Return costs of 1, 2 and 3 in the rounds, the further rows of COSTED ten times less."""
    visits = [
        CostVisit(
            system=system,
            round=number,
            loads=tuple(
                RequestLoad(
                    load=load,
                    requests_per_second=100.0 * (number + 1),
                    p50_ms=(number + 1) / 10**place,
                    processor_ms={"server": (number + 1) / 10**place, "stub": 4.0},
                )
                for load in SINGLE_TEXTS
            ),
            load=NO_LOAD,
        )
        for number in (2, 0, 1)
        for place, system in enumerate(COSTED)
    ]
    calls = [
        PausedCalls(round=number, pause_ms=pause_ms, p50_ms=5 + pause_ms, load=NO_LOAD)
        for number in range(3)
        for pause_ms in PAUSES_MS
    ]
    return RequestCosts(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        parameters=1,
        config=QUICK,
        visits=tuple(visits),
        calls=tuple(calls),
        environment=environment(),
    )


def test_the_results_of_a_load_are_in_the_order_of_the_rounds() -> None:
    assert [each.p50_ms for each in made_up().loads("bertender", "one caller")] == [1, 2, 3]


def test_the_table_has_means_over_starts(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(made_up().model_dump_json())
    block = request_costs_block("costs.json", path)
    first, second, _ = (line for line in block.splitlines() if line.startswith(("| bert", "| no")))
    assert first.startswith("| bertender | 2.00 [-0.48, 4.48] | 4.00 [4.00, 4.00] | 2.00 ")
    assert second.startswith("| no model, responses sent | 0.20 [-0.05, 0.45] | 4.00 ")
    assert "takes 5.00 [5.00, 5.00] ms for a text" in block
    assert "and 6.00 [6.00, 6.00] ms with a pause of 1 ms" in block
    assert "server and generator share the cores" in block


def test_the_command_writes_what_it_measured(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[ServingConfig] = []

    def measured(artifact: Artifact, texts: list[str], config: ServingConfig) -> RequestCosts:
        configs.append(config)
        return made_up()

    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "measure_request_costs", measured)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "costs.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--rounds", "4", "--duration-s", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "bertender, one caller: 100/s, server 1.000 ms, stub 4.000 ms" in done.output
    assert RequestCosts.model_validate_json(out.read_text()) == made_up()
    (config,) = configs
    assert (config.rounds, config.duration_s, config.warmup_s) == (4, 2, 0)
    assert (config.pins.server, config.pins.generator) == (0, 1)
