"""The benchmark of endpoints: every way of asking is timed on the real Triton, and has its row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.common import saving
from benchmarks.documents.block import ROOT
from benchmarks.documents.newest import NEWEST, newest_blocks
from benchmarks.endpoint import measuring as endpoint
from benchmarks.endpoint.measuring import IN_PROCESS, WAYS, EndpointBenchmark, ServedModel
from benchmarks.endpoint.table import endpoint_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import BertenderError, MachineBusyError
from bertender.measure.latency import Latency, LatencyConfig, LatencyReport, measure_latency
from bertender.measure.load import MachineLoad
from bertender.models.predictor import Classifier, FloatArray
from bertender.tasks.task import Task
from bertender.text.batch import Batch, keep_text
from tests.front import write_toy_files

STARTS, ROUNDS, TEXTS = 2, 2, 3


@pytest.fixture(scope="module")
def result(exported: Artifact, task: Task) -> EndpointBenchmark:
    config = LatencyConfig(
        rounds=ROUNDS, single_texts=TEXTS, batch_size=16, warmup_rounds=0, threads=1, noisy=True
    )
    return endpoint.time_endpoints([exported], task.dev.examples, config, STARTS)


@pytest.mark.server
@pytest.mark.slow
def test_every_way_is_timed_in_every_start(result: EndpointBenchmark, exported: Artifact) -> None:
    assert [model.digest for model in result.models] == [exported.digest]
    for model in result.models:
        assert model.max_abs_difference < 1e-3
        assert len(model.starts) == STARTS
        for report in model.starts:
            assert [row.name for row in report.rows] == list(WAYS)
            assert (report.threads, report.batch_texts) == (1, 16)
            assert report.load is not None
            for row in report.rows:
                assert np.shape(row.single_ms) == (1, ROUNDS, TEXTS)
                assert np.shape(row.batch_ms) == (1, ROUNDS)
                assert np.min(row.batch_ms) > 0


@pytest.mark.server
@pytest.mark.slow
def test_the_table_is_made_from_the_file(result: EndpointBenchmark, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(result.model_dump_json())
    text = endpoint_block("result.json", path)
    rows = [line for line in text.splitlines() if line.startswith("| onnx (float32)")]
    assert [row.split(" | ")[1] for row in rows] == [*WAYS]
    for row, way in zip(rows, WAYS, strict=True):
        assert row.count("x [") == (0 if way == IN_PROCESS else 2)
    samples = np.ravel([report.rows[1].single_ms for report in result.models[0].starts])
    assert f"| HTTP | {np.median(samples):.2f} |" in rows[1]
    assert "Raw: `result.json`" in text


@pytest.mark.server
@pytest.mark.slow
def test_the_command_writes_what_it_measured(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toy_files(tmp_path, task)
    monkeypatch.setattr(endpoint, "recorded_task", lambda artifact, changes: task)
    app = typer.Typer()
    app.command()(endpoint.run)
    words = ["--out", str(tmp_path / "times.json"), "--rounds", "2", "--single-texts", "2"]
    answer = CliRunner().invoke(
        app, [str(exported.path), *words, "--starts", "1", "--threads", "1", "--noisy"]
    )
    assert answer.exit_code == 0, answer.output
    assert "onnx, gRPC: " in answer.output
    written = EndpointBenchmark.model_validate(json.loads((tmp_path / "times.json").read_text()))
    assert len(written.models) == len(written.models[0].starts) == 1
    assert written.models[0].starts[0].config.batch_size == endpoint.TEXTS_A_REQUEST


def benchmark_under(*shares: float | None) -> EndpointBenchmark:
    """Return made-up times of one artifact: a start for each share that other work had."""
    config = LatencyConfig(rounds=ROUNDS, single_texts=TEXTS, processes=1, noisy=True)
    rows = classifier_rows(config)
    starts = [
        LatencyReport(
            config=config,
            threads=1,
            batch_texts=16,
            rows=rows,
            load=MachineLoad(other_work=share, steal=None if share is None else 0.0),
        )
        for share in shares
    ]
    model = ServedModel(
        name="onnx",
        digest="0",
        precision="float32",
        parameters=1,
        max_abs_difference=0.0,
        starts=tuple(starts),
    )
    return EndpointBenchmark(task="toy", environment=environment(), models=(model,))


def classifier_rows(config: LatencyConfig) -> tuple[Latency, ...]:
    """Return a row for each way, of classifiers that do nothing."""
    classifiers = [Classifier(way, ("a", "b"), keep_text, Nothing(), 0) for way in WAYS]
    return measure_latency(classifiers, [("a text",)], config).rows


class Nothing:
    """A predictor that predicts the first label at once."""

    def logits(self, batch: Batch) -> FloatArray:
        return np.zeros((len(batch.examples), 2), np.float32)


@pytest.mark.parametrize(
    ("shares", "said"),
    [((0.0, 0.01), "had 1.0%"), ((0.5, 0.0), "had 50.0%"), ((None, None), "load unknown")],
)
def test_the_busiest_start_is_said(
    shares: tuple[float | None, ...], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_text(benchmark_under(*shares).model_dump_json())
    text = endpoint_block("result.json", path)
    assert said in text
    assert ("shared with other work" in text) == (0.5 in shares)


def test_noisy_times_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teacher: Artifact, task: Task
) -> None:
    monkeypatch.setattr(saving, "RESULTS", tmp_path)
    monkeypatch.setattr(endpoint, "recorded_task", lambda artifact, changes: task)
    monkeypatch.setattr(endpoint, "time_endpoints", lambda *_: benchmark_under(0.5))
    with pytest.raises(MachineBusyError, match=r"50\.0%"):
        endpoint.run([teacher.path], tmp_path / "times.json")
    with pytest.raises(typer.BadParameter, match="--noisy"):
        endpoint.run([teacher.path], tmp_path / "times.json", noisy=True)
    assert not (tmp_path / "times.json").exists()


def test_a_torch_model_is_refused_before_anything_is_timed(teacher: Artifact, task: Task) -> None:
    with pytest.raises(BertenderError, match="torch"):
        endpoint.time_endpoints([teacher], task.dev.examples, LatencyConfig(rounds=2), 1)


def test_the_interval_holds_what_differs_between_starts(tmp_path: Path) -> None:
    """Of the same rounds in each start, but of starts that differ: of one more than another."""
    benchmark = benchmark_under(0.0, 0.0, 0.0)
    local, asked = 2.0, (2.2, 2.4, 3.2)
    starts = [
        start.model_copy(update={"rows": tuple(map(taking, start.rows, (local, longer, longer)))})
        for start, longer in zip(benchmark.models[0].starts, asked, strict=True)
    ]
    model = benchmark.models[0].model_copy(update={"starts": tuple(starts)})
    path = tmp_path / "result.json"
    path.write_text(benchmark.model_copy(update={"models": (model,)}).model_dump_json())
    (row,) = [line for line in endpoint_block("a.json", path).split("\n") if "| HTTP |" in line]
    *_, one_text, one_ratio, many_texts, many_ratio, _ = (cell.strip() for cell in row.split("|"))
    assert (one_text, many_texts) == ("2.40", "2.40")
    assert one_ratio == many_ratio and one_ratio.startswith("1.20x [1.0")


def taking(row: Latency, milliseconds: float) -> Latency:
    """Return a row of which every request takes so long."""
    single = [[[milliseconds] * len(texts) for texts in rounds] for rounds in row.single_ms]
    batch = [[milliseconds] * len(rounds) for rounds in row.batch_ms]
    return Latency.model_validate({**row.model_dump(), "single_ms": single, "batch_ms": batch})


@pytest.mark.parametrize("name", NEWEST)
def test_the_newest_result_has_the_block(name: str, tmp_path: Path) -> None:
    assert newest_blocks(tmp_path) == {}
    for day in ("2026-11-23", "2026-11-25", "2026-11-24"):
        (tmp_path / f"{day}-sst2-{name}-cpu.json").touch()
    (block,) = newest_blocks(tmp_path).values()
    assert block.files == (f"benchmarks/results/2026-11-25-sst2-{name}-cpu.json",)
    page = (ROOT / block.document).read_text(encoding="utf-8")
    assert f"<!-- begin {name} -->" in page and f"<!-- end {name} -->" in page
