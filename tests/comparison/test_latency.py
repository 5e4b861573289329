"""Latency on a fake clock: what is timed, in which order, and the statistics of it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertender.comparison.latency import Turns, measure_latency, merged, threads_of
from bertender.comparison.records import LatencyConfig, LatencyReport
from bertender.core import machine as load
from bertender.core.errors import ConfigError, DataError, MachineBusyError
from bertender.core.machine import CpuSeconds, MachineLoad, environment
from bertender.models.classifier import Classifier
from bertender.text.batch import Batch, Example
from tests.fake_classifier import EXAMPLES, fake_classifier, honest

CONFIG = LatencyConfig(
    single_texts=6, batch_size=4, rounds=5, warmup_rounds=2, warmup_texts=2, threads=1
)
TURN = CONFIG.warmup_texts + CONFIG.single_texts + 1
ROUNDS = CONFIG.warmup_rounds + CONFIG.rounds


class Bench:
    """A clock that only classifiers move, and a log of who answered what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.log: list[tuple[str, tuple[Example, ...]]] = []
        self.states: set[tuple[bool, int]] = set()
        clock = SimpleNamespace(perf_counter_ns=lambda: self.now_ns)
        monkeypatch.setattr("bertender.comparison.latency.time", clock)

    def classifier(self, name: str, milliseconds: float, drift: float = 0.0) -> Classifier:
        """Takes so long per text; the whole machine gets slower by `drift` with every answer."""

        def answer(batch: Batch):
            self.log.append((name, batch.examples))
            self.states.add((gc.isenabled(), torch.get_num_threads()))
            slowness = 1 + drift * (len(self.log) // (2 * TURN))  # steps from round to round
            self.now_ns += round(milliseconds * 1e6 * len(batch) * slowness)
            return honest(batch)

        return fake_classifier(name, answer)

    def turns(self) -> list[tuple[str, list[tuple[Example, ...]]]]:
        """The log cut into turns: who, and the batches it answered."""
        cuts = [self.log[start : start + TURN] for start in range(0, len(self.log), TURN)]
        return [(cut[0][0], [batch for _, batch in cut]) for cut in cuts]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_rows_are_interleaved_in_every_round_on_the_same_texts(bench: Bench) -> None:
    names = ["a", "b", "c"]
    measure_latency([bench.classifier(name, 1.0) for name in names], EXAMPLES, CONFIG)
    turns = bench.turns()
    assert len(turns) == 3 * ROUNDS
    rounds = [turns[start : start + 3] for start in range(0, len(turns), 3)]
    for one_round in rounds:
        assert sorted(name for name, _ in one_round) == names
        assert one_round[0][1] == one_round[1][1] == one_round[2][1]
    assert len({tuple(name for name, _ in one_round) for one_round in rounds}) > 1
    assert rounds[0][0][1] != rounds[1][0][1]  # another round, other texts


def test_a_turn_is_warm_up_then_single_texts_then_one_batch(bench: Bench) -> None:
    report = measure_latency([bench.classifier("a", 1.0)], EXAMPLES, CONFIG)
    for _, batches in bench.turns():
        assert [len(batch) for batch in batches] == [1] * (TURN - 1) + [4]
        assert batches[:2] == batches[2:4]  # the warm-up texts are the first ones, untimed
    row = report.rows[0]
    (rounds,) = row.single_ms  # of this process
    assert len(rounds) == CONFIG.rounds and {*map(len, rounds)} == {6}
    assert {value for values in rounds for value in values} == {1.0}
    assert row.batch_ms == ((4.0,) * 5,) and row.texts_per_second == pytest.approx(1000.0)


def test_every_shape_runs_untimed_before_it_is_timed() -> None:
    """A runtime that compiles for each new shape is timed as it serves afterwards."""
    shapes: list[tuple[int, ...]] = []

    def encode(examples: Sequence[Example]) -> Batch:
        length = max(len(text) for (text,) in examples)
        return Batch(tuple(examples), {"input_ids": np.zeros((len(examples), length), np.int64)})

    def answer(batch: Batch):
        shapes.append(batch.arrays["input_ids"].shape)
        return honest(batch)

    texts = [("a" * length,) for length in (1, 2, 3)]
    config = CONFIG.model_copy(update={"single_texts": 3, "batch_size": 3, "warmup_texts": 0})
    turns = Turns([replace(fake_classifier("a", answer), encode=encode)], texts, config, 0)
    turns.take(0, 0)
    once = {(1, 1), (1, 2), (1, 3), (3, 3)}
    assert set(shapes[:4]) == once == set(shapes[4:]) and len(shapes) == 8
    turns.take(0, 1)
    assert len(shapes) == 12


def test_a_drifting_machine_leaves_the_speedup_exact(bench: Bench) -> None:
    slow, fast = bench.classifier("slow", 8.0, drift=0.5), bench.classifier("fast", 2.0, drift=0.5)
    first, second = measure_latency([slow, fast], EXAMPLES, CONFIG).rows
    assert first.single_ms[0][-1][0] > 1.5 * first.single_ms[0][0][0]  # the machine did get slower
    assert (first.speedup.value, first.speedup.low, first.speedup.high) == (1.0, 1.0, 1.0)
    assert second.speedup.value == pytest.approx(4.0, rel=0.01)
    assert second.speedup.high - second.speedup.low < 0.01


def test_collector_is_off_and_threads_are_set_while_timing_and_put_back(bench: Bench) -> None:
    config = CONFIG.model_copy(update={"threads": 2})
    assert gc.isenabled() and torch.get_num_threads() == 1
    report = measure_latency([bench.classifier("a", 1.0)], EXAMPLES, config)
    assert bench.states == {(False, 2)} and report.threads == 2
    assert gc.isenabled() and torch.get_num_threads() == 1


def test_they_are_put_back_when_a_model_fails(bench: Bench) -> None:
    def fails(batch: Batch):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        measure_latency([fake_classifier("a", fails)], EXAMPLES, CONFIG)
    assert gc.isenabled() and torch.get_num_threads() == 1


def test_threads_0_are_the_usable_cores() -> None:
    assert threads_of(LatencyConfig()) == environment().cores >= 1
    assert threads_of(LatencyConfig(threads=3)) == 3


def test_a_small_split_gives_fewer_texts_and_says_so(bench: Bench) -> None:
    report = measure_latency([bench.classifier("a", 1.0)], EXAMPLES[:3], CONFIG)
    assert report.batch_texts == 3
    assert report.rows[0].batch_ms == ((3.0,) * 5,)
    assert report.rows[0].texts_per_second == pytest.approx(1000.0)


def test_seed_decides_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for seed in (0, 0, 1):
        bench = Bench(monkeypatch)
        config = CONFIG.model_copy(update={"seed": seed})
        measure_latency([bench.classifier("a", 1.0)], EXAMPLES, config)
        logs.append(bench.log)
    assert logs[0] == logs[1] != logs[2]


def test_json_keeps_raw_samples(bench: Bench) -> None:
    report = measure_latency([bench.classifier("a", 1.23456)], EXAMPLES, CONFIG)
    assert report.rows[0].single_ms[0][0][0] == 1.2346  # rounded to 0.1 microseconds
    assert LatencyReport.model_validate_json(report.model_dump_json()) == report


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no classifiers"):
        measure_latency([], EXAMPLES, CONFIG)
    with pytest.raises(DataError, match="no texts"):
        measure_latency([fake_classifier()], [], CONFIG)


def test_each_process_draws_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for process in (0, 1):
        bench = Bench(monkeypatch)
        measure_latency([bench.classifier("a", 1.0)], EXAMPLES, CONFIG, process=process)
        logs.append(bench.log)
    assert logs[0] != logs[1]


def test_processes_are_merged_with_their_raw_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is 2 times as fast as the first in one process, and 4 times in the other."""
    config = CONFIG.model_copy(update={"processes": 2})
    reports = []
    for process, fast in enumerate((4.0, 2.0)):
        bench = Bench(monkeypatch)
        rows = [bench.classifier("slow", 8.0), bench.classifier("fast", fast)]
        reports.append(measure_latency(rows, EXAMPLES, config, process=process))
    whole = merged(reports, config)
    slow, fast_row = whole.rows
    assert [len(slow.single_ms), len(fast_row.batch_ms)] == [2, 2]
    assert fast_row.single_ms[0] + fast_row.single_ms[1] == (
        *reports[0].rows[1].single_ms[0],
        *reports[1].rows[1].single_ms[0],
    )
    assert slow.speedup.value == slow.speedup.low == slow.speedup.high == 1.0
    assert fast_row.speedup.value == pytest.approx(3.0)
    assert fast_row.speedup.low < 2.0 + 1e-6 and fast_row.speedup.high > 4.0 - 1e-6
    assert fast_row.texts_per_second == pytest.approx(1000 * 2 / (4.0 + 2.0))
    assert fast_row.single.p50_ms == pytest.approx(3.0)


def test_the_load_is_recorded_and_a_busy_machine_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_work(share: float) -> None:
        readings = iter(CpuSeconds(100.0 * n, 100.0 * n * share, 0.0, 0.0) for n in range(9))
        monkeypatch.setattr(load, "cpu_seconds", lambda: next(readings))
        monkeypatch.setattr(load, "SAMPLE_S", 0.0)

    other_work(0.01)
    quiet = measure_latency([bench.classifier("a", 1.0)], EXAMPLES, CONFIG)
    assert quiet.load == MachineLoad(other_work=0.01, steal=0.0)
    bench.log.clear()
    other_work(0.3)
    with pytest.raises(MachineBusyError, match=r"other work had 30\.0%"):
        measure_latency([bench.classifier("a", 1.0)], EXAMPLES, CONFIG)
    assert bench.log == [], "nobody waits for a refusal"
    other_work(0.3)
    allowed = CONFIG.model_copy(update={"noisy": True})
    noisy = measure_latency([bench.classifier("a", 1.0)], EXAMPLES, allowed)
    assert noisy.load and noisy.load.noisy and bench.log
