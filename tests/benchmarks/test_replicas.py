"""The benchmark of replicas: what it starts, what it records, and a table that judges it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.replicas import measuring as benchmark
from benchmarks.replicas.measuring import measure_replicas
from benchmarks.replicas.records import (
    Cores,
    ReplicaBenchmark,
    ReplicaConfig,
    ReplicaRun,
    Restart,
    RollingRestart,
)
from benchmarks.replicas.table import replicas_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export

USABLE = sorted(os.sched_getaffinity(0))
QUIET = MachineLoad(other_work=0.0, steal=0.0)


@pytest.mark.server
@pytest.mark.slow
def test_one_and_two_are_measured_and_restarted(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("no haproxy here: install it")
    exported = export(teacher, task, ExportConfig(parity_texts=8), tmp_path / "onnx")
    config = ReplicaConfig(
        rounds=1, duration_s=0.5, warmup_s=0.1, texts_per_request=4, clients=2, noisy=True
    )
    texts = [text for (text,) in task.dev.examples]
    result = measure_replicas(exported, texts, config.model_copy(update={"restart_s": 40}))
    assert sorted(each.replicas for each in result.runs) == [1, 2]
    for each in result.runs:
        assert each.outcomes["ok"] > 0 and each.texts_per_second > 0
        assert each.cores_used.keys() == {"generator", "proxy", "replicas"}
        assert min(each.cores_used.values()) > 0
    assert [each.replica for each in result.restart.restarts] == [0, 1]
    assert min(each.stop_s for each in result.restart.restarts) > 0
    assert result.restart.failed == 0 < result.restart.outcomes["ok"]
    with pytest.raises(LoadTestError, match="--restart-s"):
        measure_replicas(exported, texts, config.model_copy(update={"restart_s": 0.5}))


def test_cores_are_those_of_this_process() -> None:
    assert Cores.parse("") == Cores()
    assert Cores.parse(f"proxy={USABLE[0]}") == Cores(proxy=USABLE[0])
    if len(USABLE) > 1:
        cores = Cores.by_default()
        assert (cores.first, cores.second) == tuple(USABLE[:2])


@pytest.mark.parametrize("words", ["first", "first=4096", "first=x", f"server={USABLE[0]}"])
def test_other_cores_are_an_error_that_names_these(words: str) -> None:
    with pytest.raises(ConfigError, match="first, second, proxy, generator"):
        Cores.parse(words)


def made_up(two: float = 190.0, failed: int = 0, wobble: float = 0.1) -> ReplicaBenchmark:
    """Return three rounds in which one replica has 100 texts/s."""
    speeds = {1: 100.0, 2: two}
    return ReplicaBenchmark(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        config=ReplicaConfig(cores=Cores(first=0, second=1), rounds=3),
        runs=tuple(
            ReplicaRun(
                replicas=count,
                round=number,
                texts_per_second=speed + wobble * number * count,
                p50_ms=50.0 + number,
                p99_ms=80.0,
                outcomes={"ok": 9},
                cores_used={"generator": 0.05, "proxy": 0.02, "replicas": 0.97 * count},
                load=QUIET,
            )
            for number in range(3)
            for count, speed in speeds.items()
        ),
        restart=RollingRestart(
            outcomes={"ok": 500, "failed": failed},
            p50_ms=60.0,
            p99_ms=150.0,
            restarts=tuple(Restart(replica=place, stop_s=2.0, start_s=4.5) for place in (0, 1)),
            load=QUIET,
        ),
        environment=environment(),
    )


VERDICTS = {
    "both are reached": ({}, "least 1.8): reached", "(aim: 0): reached"),
    "too little is gained": ({"two": 150.0}, "least 1.8): missed", "(aim: 0): reached"),
    "not told apart": ({"two": 180.0, "wobble": 9.0}, "not distinguished", "(aim: 0): reached"),
    "a request fails": ({"failed": 1}, "least 1.8): reached", "(aim: 0): missed"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_table_judges_both(name: str, tmp_path: Path) -> None:
    changes, *verdicts = VERDICTS[name]
    path = tmp_path / "replicas.json"
    path.write_text(made_up(**changes).model_dump_json())
    text = replicas_block("replicas.json", path)
    assert [words for words in verdicts if words not in text] == []
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["Replicas", "---", "1", "2"]
    assert rows[2][2:] == ["51", "80", "0.97", "0.02", "0.05"]
    assert "First on core 0, second on core 1, proxy on all cores" in text
    assert "away for 6.5 s and 6.5 s" in text and "Raw: `replicas.json`" in text


def test_a_round_without_latency_shows_none(tmp_path: Path) -> None:
    result = made_up()
    silent = result.runs[0].model_copy(update={"p99_ms": None})
    path = tmp_path / "replicas.json"
    changed = result.model_copy(update={"runs": (silent, *result.runs[1:])})
    path.write_text(changed.model_dump_json())
    assert "| 51 | none | 0.97" in replicas_block("replicas.json", path)


def test_the_command_writes_what_it_measured(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[ReplicaConfig] = []

    def measured(artifact: Artifact, texts: list[str], config: ReplicaConfig) -> ReplicaBenchmark:
        configs.append(config)
        return made_up(failed=2)

    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "measure_replicas", measured)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "replicas.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--cores", f"first={USABLE[0]}"]
    done = CliRunner().invoke(app, [*words, "--clients", "3"])
    assert done.exit_code == 0, done.output
    assert "two over one: 1.90 [" in done.output and "2 of 502 failed" in done.output
    assert ReplicaBenchmark.model_validate_json(out.read_text()) == made_up(failed=2)
    (config,) = configs
    assert (config.cores, config.clients) == (Cores(first=USABLE[0]), 3)
