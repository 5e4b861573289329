"""The benchmark of pre-training objectives: encoders of equal time, fine-tuned and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.budget import Amount
from benchmarks.objectives import measuring as benchmark
from benchmarks.objectives.measuring import (
    UNTRAINED,
    FineTuned,
    ObjectivesBenchmark,
    PretrainedEncoder,
    ScoredTask,
    run,
)
from benchmarks.objectives.table import objectives_block
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.metrics.scores import score
from bertender.tasks.task import Task

TRUE = (0, 1) * 20


@pytest.mark.parametrize(
    ("objectives", "error"), [("none-such", UnknownNameError), (" , ", ConfigError)]
)
def test_objectives_that_are_not_there_are_refused(
    objectives: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run("corpus.txt", tmp_path, None, objectives)


@pytest.mark.slow
def test_encoders_are_pretrained_fine_tuned_and_scored_once(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [" ".join(["apple", "saw", "plum", "drill"][n % 4 :] * 3) for n in range(600)]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{line} {n}.\n" for n, line in enumerate(words)))
    monkeypatch.setattr(benchmark, "load_task", lambda config: task)
    monkeypatch.setattr(benchmark, "FIRST_PASSAGES", 200)
    work, out = tmp_path / "work", tmp_path / "objectives.json"
    amount = Amount(amount=300, budget_s=1.0, identity="", probes=())
    monkeypatch.setattr(benchmark, "amount_in", lambda *args: amount)
    settings = {"minutes": 0.01, "seeds": 2, "layers": 1, "hidden_size": 16, "tasks": task.name}
    run(str(corpus), work, out, f"{UNTRAINED},mlm", **settings)
    result = ObjectivesBenchmark.model_validate_json(out.read_text())
    assert [each.objective for each in result.encoders] == [UNTRAINED, "mlm"]
    assert [each.passages for each in result.encoders] == [200, 300]
    for each in result.encoders:
        assert [classifier.seed for classifier in each.classifiers] == [0, 1]
    made = {path: path.stat().st_mtime_ns for path in work.glob("*/artifact.json")}
    run(str(corpus), work, out, f"{UNTRAINED},mlm", **settings)
    assert made == {path: path.stat().st_mtime_ns for path in made}
    assert ObjectivesBenchmark.model_validate_json(out.read_text()).encoders == result.encoders


def encoder(objective: str, *right: int) -> PretrainedEncoder:
    """Return an encoder whose classifiers have the labels of so many texts right, a seed each."""
    predictions = [(*TRUE[:count], *(1 - label for label in TRUE[count:])) for count in right]
    return PretrainedEncoder(
        objective=objective,
        passages=1234,
        processor_s=180.0,
        parameters=4_000_000,
        classifiers=tuple(
            FineTuned(
                task="toy",
                seed=seed,
                score=score("accuracy", TRUE, each, label_count=2),
                predictions=each,
            )
            for seed, each in enumerate(predictions)
        ),
    )


def test_the_table_has_means_and_what_each_gains(tmp_path: Path) -> None:
    result = ObjectivesBenchmark(
        corpus="wiki.txt",
        budget_s=180.0,
        shape={"layers": 4, "hidden_size": 256, "epochs": 1},
        finetuning={"epochs": 3, "learning_rate": 1e-4},
        tasks=(
            ScoredTask(
                name="toy", metric="accuracy", labels=TRUE, label_names=("a", "b"), train_texts=9
            ),
        ),
        encoders=(encoder("untrained", 20, 20), encoder("mlm", 30, 30), encoder("rtd", 40, 40)),
        environment=environment(),
    )
    path = tmp_path / "objectives.json"
    path.write_text(result.model_dump_json())
    text = objectives_block("objectives.json", path)
    assert "| `untrained` | 1,234 | 180 | 4.0 | 0.500, -25.0 [" in text
    assert "| `mlm` | 1,234 | 180 | 4.0 | 0.750 |" in text
    assert "| `rtd` | 1,234 | 180 | 4.0 | 1.000, +25.0 [" in text
    assert "means of 2 seeds" in text and "Raw: `objectives.json`" in text
