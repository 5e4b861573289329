"""The soak: memory of every process, goodput beyond the limit, and a table that judges both."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.serving.records import ServingConfig
from benchmarks.soak import measuring as benchmark
from benchmarks.soak.measuring import soak
from benchmarks.soak.records import (
    MemorySample,
    Overload,
    Segment,
    SoakBenchmark,
    SoakConfig,
)
from benchmarks.soak.table import FIRST, soak_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.tasks.task import Task
from serve.loadtest.records import Limit

MEASURED = ServingConfig(warmup_s=0.05, limit_duration_s=0.2, slo_p99_ms=500, noisy=True)
QUICK = SoakConfig(
    minutes=0, segment_s=0.3, overload_s=0.3, queue_timeout_ms=250, measured=MEASURED
)


@pytest.mark.server
@pytest.mark.slow
def test_every_process_is_looked_at_after_every_segment(exported: Artifact, task: Task) -> None:
    known = QUICK.model_copy(update={"limit": 40.0})  # a search depends on the machine
    result = soak(exported, [text for (text,) in task.dev.examples], known)
    assert len(result.memory) == len(result.segments) == 5, "the fewest that growth is read from"
    for sample in result.memory:
        assert {*sample.bytes_of} == {"server", "stub", "supervisor"}
        assert min(sample.bytes_of.values()) > 2e6 and sample.total < 4e9
    assert (result.limit.rate, result.rate, result.overload.rate) == (40, 32, 80)
    assert sum(result.overload.outcomes.values()) > 0 <= result.goodput_share
    assert all(each.outcomes["ok"] > 0 for each in result.segments)
    assert result.overload_growth is not None
    assert result.default_overload is not None
    assert result.default_overload.rate == 80 and result.default_overload.outcomes["ok"] > 0


@pytest.mark.server
@pytest.mark.slow
def test_where_no_rate_holds_there_is_nothing_to_soak(exported: Artifact, task: Task) -> None:
    measured = MEASURED.model_copy(update={"slo_p99_ms": 0.001})
    config = QUICK.model_copy(update={"measured": measured})
    with pytest.raises(LoadTestError, match="nothing to soak: "):
        soak(exported, [text for (text,) in task.dev.examples], config)


def test_the_command_writes_what_it_measured(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[SoakConfig] = []

    def measured(artifact: Artifact, texts: list[str], config: SoakConfig) -> SoakBenchmark:
        configs.append(config)
        return made_up(STEADY, 950)

    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "soak", measured)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "soak.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--no-pin", "--minutes", "3"]
    done = CliRunner().invoke(app, [*words, "--slo-p99-ms", "30"])
    assert done.exit_code == 0, done.output
    assert "memory grew by 0.0%" in done.output and ": 95.0%" in done.output
    assert SoakBenchmark.model_validate_json(out.read_text()) == made_up(STEADY, 950)
    (config,) = configs
    assert (config.minutes, config.queue_timeout_ms, config.measured.slo_p99_ms) == (3, 12, 30)
    assert config.limit is None


def made_up(sizes: list[int], within_slo: int) -> SoakBenchmark:
    return SoakBenchmark(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        config=QUICK,
        limit=Limit(slo_p99_ms=500, rate=100.0, above=105.0),
        rate=80.0,
        memory=tuple(
            MemorySample(
                at_s=20.0 * n, bytes_of={"server": size - 30, "stub": 20, "supervisor": 10}
            )
            for n, size in enumerate(sizes)
        ),
        segments=(
            Segment(p50_ms=5.0, p99_ms=9.0, outcomes={"ok": 7}, lag_share=0.0),
            Segment(p50_ms=6.0, p99_ms=12.5, outcomes={"ok": 5, "rejected": 1}, lag_share=0.0),
        ),
        overload=Overload(
            rate=200.0, duration_s=10.0, outcomes={"ok": 999}, within_slo=within_slo, lag_share=0.0
        ),
        load=MachineLoad(other_work=0.0, steal=0.0),
        environment=environment(),
    )


STEADY = [100] + [1000] * 9
GROWTHS = {
    "steady after the first": (STEADY, 0.0),
    "growing": ([1000] * 4 + [1020] * 4 + [1100] * 2, 0.1),
    "a peak that goes": ([1000] * 5 + [5000] + [1000] * 4, 0.0),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_growth_is_that_of_the_last_fifth_over_the_second(name: str) -> None:
    sizes, growth = GROWTHS[name]
    assert made_up(sizes, 950).growth == pytest.approx(growth)


@pytest.mark.parametrize(
    ("sizes", "within_slo", "said"),
    [
        (STEADY, 950, ["+0.0% from", "5%): reached", "95.0% of the limit", "90%): reached"]),
        (GROWTHS["growing"][0], 950, ["+10.0% from", "5%): missed", "90%): reached"]),
        (STEADY, 890, ["5%): reached", "89.0% of the limit", "90%): missed"]),
    ],
)
def test_the_table_judges_both(
    sizes: list[int], within_slo: int, said: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "soak.json"
    path.write_text(made_up(sizes, within_slo).model_dump_json())
    text = soak_block("soak.json", path)
    assert [words for words in said if words not in text] == []
    assert "p50 6.0 ms in the median segment, p99 12.5 ms in the worst" in text
    assert "12 ok, 1 rejected" in text and "for 3.0 minutes" in text
    assert "Raw: `soak.json`" in text


JUDGED = {
    "reached": (49.0, [1000, 1040], "49.0 ms at p99 (aim: under 50 ms): reached", "+4.0%"),
    "missed": (51.0, [1000, 1060], "51.0 ms at p99 (aim: under 50 ms): missed", "+6.0%"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_rejections_and_memory_of_the_overload_are_judged(name: str, tmp_path: Path) -> None:
    p99_ms, (before, after), rejections, growth = JUDGED[name]
    made = made_up([before] * 5, 950)
    bytes_of = {**made.memory[-1].bytes_of, "server": after - 30}
    update = {
        "rejected_p50_ms": 1.0,
        "rejected_p99_ms": p99_ms,
        "memory": MemorySample(at_s=20, bytes_of=bytes_of),
    }
    path = tmp_path / "soak.json"
    judged = made.model_copy(update={"overload": made.overload.model_copy(update=update)})
    path.write_text(judged.model_dump_json())
    text = soak_block("soak.json", path)
    assert rejections in text
    assert f"after the overload: {growth} over that before it (aim: under 5%): {name}" in text


def test_what_the_default_settings_gave_is_said(tmp_path: Path) -> None:
    made = made_up(STEADY, 950)
    update = {"outcomes": {"ok": 900, "rejected": 1100}, "within_slo": 10, "p50_ms": 271.4}
    path = tmp_path / "soak.json"
    default = made.model_copy(update={"default_overload": made.overload.model_copy(update=update)})
    path.write_text(default.model_dump_json())
    text = soak_block("soak.json", path)
    assert "90 responses/s came (90.0% of the limit), with a p50 of 271 ms, and so 1 of" in text


@pytest.mark.parametrize(("digest", "shown"), [("0", True), ("other", False)])
def test_the_first_soak_of_a_model_is_shown(tmp_path: Path, digest: str, shown: bool) -> None:
    path = tmp_path / "soak.json"
    path.write_text(made_up(STEADY, 950).model_dump_json())
    first = made_up(STEADY, 300).model_copy(update={"digest": digest})
    (tmp_path / FIRST).write_text(first.model_dump_json())
    text = soak_block("soak.json", path)
    assert ("The first soak had a goodput of 30.0% of its limit" in text) is shown
