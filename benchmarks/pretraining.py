"""Objectives of pre-training, each for an equal time.

Each row of OBJECTIVES trains an encoder of the same shape on the first passages of the corpus, once
through; probes find how many fit the time, vocabulary and rows included. `untrained` is the same
encoder after a few passages. Models are stored in `--work`, so processes may share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, gain, machine, points, task_title
from benchmarks.harness import Out, Row, Run, Work, grouped, names_in, record
from benchmarks.making import Probe, amount_in, made_once, scored_row, seconds_of, timed
from bertender.core.artifact import Artifact
from bertender.core.config import parts_of
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining.config import OBJECTIVES, PHRASE, PretrainConfig
from distill.pretraining.corpus import Corpus, survey
from distill.pretraining.pretrain import pretrain

UNTRAINED, CONTROL = "untrained", "mlm"
FIRST_PASSAGES = 500
"""Passages of a first probe, and of the row `untrained`."""


def run(
    corpus: Annotated[str, typer.Argument(help="text files by commas, as `bertender pretrain`")],
    work: Work,
    out: Out = None,
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
    """Pre-train by every objective, fine-tune, and record the scores of the classifiers."""
    shape = {"layers": layers, "hidden_size": hidden_size, "epochs": 1}
    finetuning = {"epochs": epochs, "learning_rate": learning_rate, "allow_constant": True}
    loaded = [load_task(TaskConfig(task=name, max_train=max_train)) for name in parts_of(tasks)]
    rows = []
    known = [UNTRAINED, *(name for name in OBJECTIVES if name != PHRASE)]  # which needs a file
    for objective in names_in("--objectives", objectives, known):
        encoder, passages = _encoder(corpus, objective, shape, 60 * minutes, work)
        classifiers = [
            _classifier(encoder, task, {**finetuning, "seed": seed}, work)
            for task in loaded
            for seed in range(seeds)
        ]
        named = {"objective": objective, "passages": passages, "classifiers": classifiers}
        rows.append({**named, "processor_s": seconds_of(encoder)})
    about: dict[str, Any] = {
        "corpus": ",".join(Path(part).name for part in corpus.split(",")),
        "budget_s": 60 * minutes,
        "shape": shape,
        "finetuning": finetuning,
        "tasks": [
            {"name": task.name, "metric": task.metric, "labels": list(task.dev.label_ids)}
            | {"label_names": task.labels, "train_texts": len(task.train)}
            for task in loaded
        ],
    }
    record("pretraining", rows, out, **about)


class _Passages:
    """The first passages of a corpus."""

    def __init__(self, corpus: str, count: int) -> None:
        self.corpus = corpus
        self.count = count

    def __iter__(self) -> Iterator[str]:
        """Yield the passages; an empty one ends a document and is not counted."""
        left = self.count
        for passage in Corpus(self.corpus):
            if passage and not left:
                return
            left -= bool(passage)
            yield passage


def _encoder(
    corpus: str, objective: str, shape: dict[str, Any], budget_s: float, work: Path
) -> tuple[Artifact, int]:
    """Return the encoder of an objective, and the number of its passages."""
    whole = survey(Corpus(corpus))
    method = CONTROL if objective == UNTRAINED else objective
    config = PretrainConfig.parse({"corpus": corpus, "objective": method, **shape})

    def made(passages: int) -> Artifact:
        data = _Passages(corpus, passages)
        place = work / f"{objective}-{passages}"
        return made_once(place, config, survey(data).sha256, None, timed(partial(pretrain, data)))

    def probe(passages: int) -> Probe:
        return Probe(amount=passages, processor_s=seconds_of(made(passages)))

    passages = min(FIRST_PASSAGES, whole.passages)
    if objective != UNTRAINED:
        identity = f"{config.model_dump_json()} {whole.sha256}"
        file = work / f"{objective}.amount.json"
        amount = amount_in(budget_s, file, identity, probe, FIRST_PASSAGES, whole.passages)
        passages = amount.amount
    return made(passages), passages


def _classifier(encoder: Artifact, task: Task, settings: dict[str, Any], work: Path) -> Row:
    config = FinetuneConfig.parse({"teacher": str(encoder.path), **settings})
    place = work / f"{encoder.name}-{task.name}-{config.seed}"
    make = partial(finetune_by_name, task)
    made = made_once(place, config, task.fingerprint(), encoder, make)
    return {**scored_row(made, task), "task": task.name}


def table(runs: Sequence[Run]) -> Table:
    """Points of each objective over masked tokens alone, on each task."""
    (result,) = runs
    rows = []
    for row in result.rows:
        cells = [_points(result, task, row) for task in result.about["tasks"]]
        rows.append([f"`{row['objective']}`", f"{row['passages']:,}", *cells])
    shape, budget = result.about["shape"], result.about["budget_s"]
    note = (
        f"Encoders of {shape['layers']} layers x {shape['hidden_size']}, {budget:.0f} s of "
        "processor time each, then fine-tuned with 3 seeds; brackets are 95 % intervals. "
        f"{machine(result)}."
    )
    names = (task_title(task["name"]) for task in result.about["tasks"])
    headings = (f"{name}, points over `{CONTROL}`" for name in names)
    return Table(["Objective", "Passages", *headings], rows, note)


def _points(result: Run, task: dict[str, Any], row: Row) -> str:
    if row["objective"] == CONTROL:
        return "-"
    count = len(task["label_names"])
    about = {"metric": task["metric"], "labels": task["labels"], "label_count": count}
    run = result.model_copy(update={"about": about})
    (control,) = (each for each in result.rows if each["objective"] == CONTROL)
    theirs, own = (grouped(each["classifiers"], "task")[task["name"]] for each in (control, row))
    return points(gain(run, theirs, own))
