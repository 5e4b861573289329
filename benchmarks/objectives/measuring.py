"""Pre-trains an encoder by every objective for an equal time, fine-tunes each, and scores them.

    python -m benchmarks.objectives CORPUS --work DIR --out FILE.json [--minutes 3] [--seeds 3]
        [--tasks sst2,mrpc]

Each row of OBJECTIVES trains an encoder of the same shape on the first passages of the corpus, once
through; probes say how many the time holds, vocabulary and rows included. `untrained` is the same
encoder after a few passages. Each encoder is fine-tuned on every task with several seeds, and
scored on its held-out texts, which choose nothing.

What is made stays in `--work` and is not made again. So several processes may share the work
(`--objectives`, without `--out`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from benchmarks.common.budget import Probe, amount_in
from benchmarks.common.making import made_once, seconds_of, timed
from benchmarks.common.options import OptionalOutFile, names_in
from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.files import save_result
from bertender.core.machine import Environment, environment
from bertender.core.progress import show_progress
from bertender.metrics.resampling import Score
from bertender.models.opening import open_classifier
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining.config import OBJECTIVES, PretrainConfig
from distill.pretraining.corpus import Corpus, survey
from distill.pretraining.pretrain import pretrain

__all__ = ["UNTRAINED", "FineTuned", "ObjectivesBenchmark", "PretrainedEncoder", "run"]

UNTRAINED = "untrained"
"""The row of an encoder that has seen next to nothing."""
FIRST_PASSAGES = 500
"""Of a first probe, and of the row `untrained`."""


class FineTuned(Record):
    """A classifier of an encoder."""

    task: str
    seed: int
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")


class PretrainedEncoder(Record):
    """An encoder and its classifiers."""

    objective: str = Field(description="a row of OBJECTIVES, or `untrained`")
    passages: int
    processor_s: float = Field(description="of the pre-training, vocabulary and rows included")
    parameters: int = Field(description="of a classifier")
    classifiers: tuple[FineTuned, ...]


class ScoredTask(Record):
    """A task that encoders are fine-tuned on."""

    name: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    label_names: tuple[str, ...]
    train_texts: int


class ObjectivesBenchmark(Record):
    """Every encoder, and the conditions."""

    corpus: str
    budget_s: float
    shape: dict[str, Any] = Field(description="settings of every pre-training")
    finetuning: dict[str, Any] = Field(description="settings of every fine-tuning")
    tasks: tuple[ScoredTask, ...]
    encoders: tuple[PretrainedEncoder, ...]
    environment: Environment


class _Passages:
    """The first passages of a corpus, as data of an artifact that is made once."""

    def __init__(self, corpus: str, count: int) -> None:
        self.corpus = corpus
        self.count = count

    def fingerprint(self) -> str:
        return survey(self).sha256

    def __iter__(self) -> Iterator[str]:
        """Yield passages until there are so many; an empty one, which ends a document, is none."""
        left = self.count
        for passage in Corpus(self.corpus):
            if passage and not left:
                return
            left -= bool(passage)
            yield passage


class _Encoders:
    """Encoders of one shape, made once."""

    def __init__(self, corpus: str, shape: Mapping[str, Any], budget_s: float, work: Path) -> None:
        self.corpus = corpus
        self.shape = shape
        self.budget_s = budget_s
        self.work = work
        self.whole = survey(Corpus(corpus))

    def made(self, objective: str) -> tuple[Artifact, int]:
        """Return the encoder of an objective, and of how many passages it is."""
        if objective == UNTRAINED:
            few = min(FIRST_PASSAGES, self.whole.passages)
            return self._of("mlm", few, UNTRAINED), few

        def trained(passages: int) -> Probe:
            made = self._of(objective, passages, objective)
            return Probe(amount=passages, processor_s=seconds_of(made))

        amount = amount_in(
            self.budget_s,
            self.work / f"{objective}.amount.json",
            f"{self._config(objective).model_dump_json()} {self.whole.sha256}",
            trained,
            FIRST_PASSAGES,
            self.whole.passages,
        ).amount
        return self._of(objective, amount, objective), amount

    def _of(self, objective: str, passages: int, name: str) -> Artifact:
        data = _Passages(self.corpus, passages)
        make = timed(partial(pretrain, data))
        out = self.work / f"{name}-{passages}"
        return made_once(out, self._config(objective), data, None, make)

    def _config(self, objective: str) -> PretrainConfig:
        return PretrainConfig(corpus=self.corpus, objective=objective, **self.shape)


def run(
    corpus: Annotated[str, typer.Argument(help="text files by commas, as `bertender pretrain`")],
    work: Annotated[Path, typer.Option(help="folder for all that is made")],
    out: OptionalOutFile = None,
    objectives: Annotated[str, typer.Option(help="by commas; all and untrained by default")] = "",
    tasks: Annotated[str, typer.Option(help="by commas")] = "sst2,mrpc",
    minutes: Annotated[float, typer.Option(help="of each pre-training, processor time")] = 3.0,
    seeds: Annotated[int, typer.Option(min=1, help="classifiers of each encoder and task")] = 3,
    layers: Annotated[int, typer.Option(help="of the encoder")] = 4,
    hidden_size: Annotated[int, typer.Option(help="its width")] = 256,
    max_train: Annotated[int, typer.Option(help="texts of a fine-tuning, at most")] = 8000,
    epochs: Annotated[int, typer.Option(help="of a fine-tuning")] = 3,
    learning_rate: Annotated[float, typer.Option(help="of a fine-tuning")] = 1e-4,
) -> None:
    """Pre-train by every objective, fine-tune, and write what the classifiers score."""
    show_progress()
    chosen = _chosen(objectives)
    shape = {"layers": layers, "hidden_size": hidden_size, "epochs": 1}
    finetuning = {"epochs": epochs, "learning_rate": learning_rate}
    encoders = _Encoders(corpus, shape, 60 * minutes, work)
    loaded = [
        load_task(TaskConfig(task=name, max_train=max_train))
        for name in names_in("--tasks", tasks, required=True)
    ]
    rows = []
    for objective in chosen:
        rows.append(_row(objective, encoders, loaded, finetuning, seeds))
        typer.echo(_line(rows[-1]))
    if out is not None:
        save_result(_benchmark(encoders, loaded, finetuning, rows), out)


def _benchmark(
    encoders: _Encoders,
    tasks: Sequence[Task],
    finetuning: Mapping[str, Any],
    rows: Sequence[PretrainedEncoder],
) -> ObjectivesBenchmark:
    return ObjectivesBenchmark(
        corpus=",".join(Path(part).name for part in encoders.corpus.split(",")),
        budget_s=encoders.budget_s,
        shape=dict(encoders.shape),
        finetuning=dict(finetuning),
        tasks=tuple(
            ScoredTask(
                name=task.name,
                metric=task.metric,
                labels=task.dev.label_ids,
                label_names=task.labels,
                train_texts=len(task.train),
            )
            for task in tasks
        ),
        encoders=tuple(rows),
        environment=environment(),
    )


def _chosen(objectives: str) -> list[str]:
    """Return the rows that are asked for, or all.

    Raises:
        UnknownNameError: one is not there.
        ConfigError: none is asked for.
    """
    known = [UNTRAINED, *OBJECTIVES]
    asked = names_in("--objectives", objectives, known) or known
    for name in asked:
        if name != UNTRAINED:
            OBJECTIVES[name]
    return asked


def _row(
    objective: str,
    encoders: _Encoders,
    tasks: Sequence[Task],
    finetuning: Mapping[str, Any],
    seeds: int,
) -> PretrainedEncoder:
    encoder, passages = encoders.made(objective)
    classifiers, parameters = [], 0
    for task in tasks:
        for seed in range(seeds):
            config = FinetuneConfig(
                teacher=str(encoder.path), seed=seed, allow_constant=True, **finetuning
            )
            out = encoders.work / f"{objective}-{task.name}-{seed}"
            made = made_once(out, config, task, encoder, partial(finetune_by_name, task))
            classifier = open_classifier(made)
            score, predictions = evaluate(classifier, task.dev, task.metric)
            parameters = classifier.parameters
            classifiers.append(
                FineTuned(
                    task=task.name, seed=seed, score=score, predictions=tuple(predictions.tolist())
                )
            )
    return PretrainedEncoder(
        objective=objective,
        passages=passages,
        processor_s=seconds_of(encoder),
        parameters=parameters,
        classifiers=tuple(classifiers),
    )


def _line(row: PretrainedEncoder) -> str:
    scores = ", ".join(f"{each.task} {each.score.value:.3f}" for each in row.classifiers)
    return f"{row.objective}: {row.passages} passages in {row.processor_s:.0f} s; {scores}"
