"""The training benchmark: equal work every way, the usual way as it is, and a table of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from benchmarks.training import measuring as training
from benchmarks.training import table as training_table
from benchmarks.training.measuring import TrainingBenchmark, begun, run, take_turns, without_further
from benchmarks.training.table import training_block
from benchmarks.training.ways_to_distil import WAYS, TrainingRun, padded
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.measure.load import MachineLoad
from bertender.metrics.scores import Score
from bertender.tasks.task import Split, Task
from bertender.training.config import TrainingConfig
from bertender.training.examples import TokenDataset
from bertender.training.loop import planned
from distill.distillation import distillation, phases
from distill.distillation.distiller import DistillConfig
from tests.training.runs import toy_examples

SETTINGS = {"weights": {"cosine": 0}, "layers": 2, "epochs": 2, "batch_size": 16, "max_length": 32}


def test_padded_examples_make_random_batches_of_full_length() -> None:
    examples = toy_examples()
    full = padded(examples, 40)
    assert set(full.lengths) == {40}
    batch, own = full.collate([full[3]]), examples.collate([examples[3]])
    real = int(own["attention_mask"].sum())
    assert batch["attention_mask"].sum() == real
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[name][:, :real], own[name])
    assert set(batch["input_ids"][0, real:].tolist()) == {examples.padding.token_id}
    config = TrainingConfig(batch_size=8)
    spreads = [mean_spread(planned(each, config).batches, examples) for each in (full, examples)]
    assert spreads[0] > 2 * spreads[1], "lengths in a batch are mixed"
    assert len(planned(full, config)) == len(planned(examples, config))


def mean_spread(batches: tuple[tuple[int, ...], ...], examples: TokenDataset) -> float:
    lengths = [[examples.lengths[row] for row in batch] for batch in batches]
    return sum(max(batch) - min(batch) for batch in lengths) / len(batches)


@pytest.mark.slow
def test_every_way_trains_on_every_text_in_as_many_steps(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "none"))  # put back afterwards
    shapes: dict[str, list[tuple[int, int]]] = {name: [] for name in WAYS}
    online: dict[str, int] = dict.fromkeys(WAYS, 0)
    now = [""]
    distil, read = training.distil_by, phases.read_signals

    def following(name: str, *given: object) -> TrainingRun:
        now[0] = name
        return distil(name, *given)  # type: ignore[arg-type]

    def counted(model: torch.nn.Module, batch: dict[str, torch.Tensor], wanted: object) -> object:
        online[now[0]] += 1
        return read(model, batch, wanted)  # type: ignore[arg-type]

    class Watching(phases.DistillationObjective):
        def __call__(self, model, batch, step):  # type: ignore[no-untyped-def]
            shapes[now[0]].append(tuple(batch["input_ids"].shape))
            return super().__call__(model, batch, step)

    monkeypatch.setattr(training, "distil_by", following)
    monkeypatch.setattr(phases, "read_signals", counted)
    monkeypatch.setattr(distillation, "DistillationObjective", Watching)
    config = DistillConfig(**SETTINGS)
    further = Split(task.dev.examples[:7], task.dev.label_ids[:7])
    result = begun(teacher, task, further, config)
    (runs,) = take_turns(teacher, task, further, config, (1,), tmp_path)
    steps = {name: len(seen) for name, seen in shapes.items()}
    assert len(set(steps.values())) == 1
    assert online == {name: 0 if way.caches_outputs else steps[name] for name, way in WAYS.items()}
    assert {sum(rows for rows, _ in seen) for seen in shapes.values()} == {96 + 2 * 96}
    assert {length for _, length in shapes["usual"]} == {32}
    assert shapes["buckets"] == shapes["kept"] != shapes["usual"]
    assert [rows for rows, _ in shapes["random"]] == [rows for rows, _ in shapes["usual"]]
    assert shapes["random"] != shapes["usual"]
    assert shapes["pooled-4"] not in (shapes["pooled-50"], shapes["random"])
    first, *others = WAYS
    assert [run.way for run in runs] == [*others, first], "each seed begins with another way"
    for each in runs:
        assert each.load is not None
        assert len(each.epoch_s) == 2 and min(each.epoch_s) > 0
        assert (each.kept_s > 0.001) is WAYS[each.way].caches_outputs
        assert 0 < each.teacher_s < each.seconds
        assert len(each.predictions) == len(result.labels)
        assert len(each.further_predictions) == len(result.further_labels) == 7
    assert not list(tmp_path.iterdir())


def run_of(way: str, seed: int, kept_s: float, epoch_s: float, right: int) -> TrainingRun:
    score = Score(metric="accuracy", value=right / 4, low=0.0, high=1.0, n=4)
    return TrainingRun(
        way=way,
        seed=seed,
        kept_s=kept_s,
        epoch_s=(epoch_s, epoch_s),
        teacher_s=epoch_s,
        score=score,
        predictions=(1,) * right + (0,) * (4 - right),
    )


def test_seeds_that_are_there_are_not_made_again(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, made = tmp_path / "result.json", list[tuple[str, int]]()

    def faked(
        name: str,
        artifact: Artifact,
        few: Task,
        further: Split,
        config: DistillConfig,
        work: Path,
        noisy: bool,
    ) -> TrainingRun:
        made.append((name, config.seed))
        return run_of(name, config.seed, 0.0, 1.0, 3)

    monkeypatch.setattr(training, "distil_by", faked)
    monkeypatch.setattr(
        training,
        "recorded_task",
        lambda artifact, changes: replace(task, train=task.train.first(changes["max_train"])),
    )

    def go(seeds: int, layers: int = 2) -> TrainingBenchmark:
        threads = torch.get_num_threads()
        run(teacher.path, tmp_path / "work", out, seeds, 20, 5, 1, 1e-4, 8, layers, threads)
        return TrainingBenchmark.model_validate_json(out.read_text())

    first = go(1)
    assert len(made) == 2 * len(first.runs) == 2 * len(WAYS), "a short run of each before"
    assert len(first.further_labels) == 5 and first.texts == 20
    again = go(2)
    assert again.runs[: len(WAYS)] == first.runs and {each.seed for each in again.runs} == {0, 1}
    assert go(2) == again and len(made) == 4 * len(WAYS), "and nothing where all is there"
    cut_off = again.model_copy(update={"runs": again.runs[:-1]})
    out.write_text(cut_off.model_dump_json())
    assert go(2) == again and len(made) == 6 * len(WAYS), "a seed is compared side by side"
    with pytest.raises(typer.BadParameter, match="other config: give another --out"):
        go(3, layers=1)


def test_further_texts_are_those_that_no_model_has_read(task: Task) -> None:
    apart = Split(task.dev.examples[:9], task.dev.label_ids[:9])
    cut, further = without_further(replace(task, selection=apart), 20, 7)
    assert (len(cut.train), further) == (20, apart.first(7))
    cut, further = without_further(task, 20, 7)
    assert cut.train == task.train.first(20)
    assert further.examples == task.train.examples[20:27], "the teacher alone has read them"
    assert not without_further(replace(task, selection=apart), 20, 0)[1].examples


def test_the_table_counts_what_was_kept_in_each_epoch(tmp_path: Path) -> None:
    """An epoch of 2 s and half of 4 s of kept answers is 4 s: five times as fast as 20 s."""
    seconds = {"usual": (0.0, 20.0, 3), "buckets": (0.0, 10.0, 3), "kept": (4.0, 2.0, 4)}
    benchmark = TrainingBenchmark(
        task="toy",
        metric="accuracy",
        labels=(1, 1, 1, 1),
        texts=40,
        tokens=7.25,
        threads=2,
        bf16=True,
        config=DistillConfig(**SETTINGS).model_dump(mode="json"),
        environment=environment(),
        runs=tuple(run_of(way, seed, *given) for seed in (0, 1) for way, given in seconds.items()),
    )
    (tmp_path / "result.json").write_text(benchmark.model_dump_json())
    text = training_block("result.json", tmp_path / "result.json")
    assert "further" not in text and "Load not recorded." in text
    assert "| `usual` | 20.0 | 1.0x [1.0, 1.0] | 2 | 50% | 0.750 | - |" in text
    assert "| `buckets` | 10.0 | 2.0x [2.0, 2.0] | 4 | 50% | 0.750 | +0.0 [" in text
    assert "| `kept` | 4.0 | 5.0x [5.0, 5.0] | 10 | 25% | 1.000 | +25.0 [" in text
    assert "40 training texts of 7.2 tokens" in text and "2 seeds" in text and "bf16" in text
    assert "2 threads" in text and "Raw: `result.json`" in text
    more: dict[str, object] = {
        "further_labels": (1, 1),
        "runs": tuple(map(with_further, benchmark.runs)),
    }
    (tmp_path / "result.json").write_text(benchmark.model_copy(update=more).model_dump_json())
    text = training_block("result.json", tmp_path / "result.json")
    assert "| On 2 further texts |" in text
    assert "the teacher has learned from them, no student has" in text
    more["further_from"] = "selection"
    (tmp_path / "result.json").write_text(benchmark.model_copy(update=more).model_dump_json())
    text = training_block("result.json", tmp_path / "result.json")
    assert "no model has learned from them" in text and "over texts and seeds" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| `kept` |"))
    assert row.endswith("| +50.0 [+0.0, +100.0] |")


def test_the_busiest_run_is_said() -> None:
    loads = [MachineLoad(other_work=share, steal=0.0) for share in (0.01, 0.03)]
    runs = [
        run_of("usual", seed, 0.0, 1.0, 3).model_copy(update={"load": load})
        for seed, load in enumerate(loads)
    ]
    assert training_table.load_words(runs) == f"In the busiest run, {loads[1]}."
    runs.append(run_of("usual", 3, 0.0, 1.0, 3))
    assert training_table.load_words(runs) == "Load not recorded."


def with_further(run: TrainingRun) -> TrainingRun:
    """Let `kept` be right on both further texts, and the others on one."""
    return run.model_copy(update={"further_predictions": (1, int(run.way == "kept"))})
