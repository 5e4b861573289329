"""Systems of the literature next to labels alone.

With `--minutes`, each row of SYSTEMS trains for the same processor time, the teacher's part
included: probes on few texts say how many texts, or epochs, that time holds. The first seed of each
is exported and quantized (dynamic 8 bits), and all graphs are timed with the teacher's, in turns,
unless `--untimed`. With `--epochs`, rows are methods of `distill`, `METHOD` or `METHOD:TIMES` for
so many times as many epochs, and nothing is timed.

Everything that is made stays in `--work`, so that several processes may share the training
(`--systems`, without `--out`), and a last call scores, and times on an otherwise idle machine. With
OMP_NUM_THREADS=1, processor time equals clock time on an otherwise idle core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import cells, making
from benchmarks.harness import Noisy, Out, Run, Work, grouped, names_in, recorded, save_runs
from benchmarks.models import comparison_run
from bertender.comparison.accuracy import evaluate
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.core.config import Config, parts_of
from bertender.core.errors import AccuracyError, ConfigError, GateError, ModelError, ParityError
from bertender.models.classifier import open_classifier
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.texts import with_unlabelled
from distill.methods import METHODS
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize

REFUSALS = (AccuracyError, ConfigError, GateError, ModelError, ParityError)
ENCODER = "ENCODER"
"""Placeholder in settings: the encoder of `--students`."""
FIRST_TEXTS = 100
"""Labelled texts of the first probe, in one epoch."""
SCORED = 100
"""Texts that a training scores itself on; all of them score the result afterwards."""
CHOICE_TEXTS = 500
"""Validation texts, which choose the control alone."""
MOST_TEXTS, MOST_EPOCHS = 300_000, 100
GATE_TEXTS = 64
"""Texts of a gate, which would take most of the time; all held-out texts score the graphs."""


@dataclass(frozen=True)
class System:
    """A row of SYSTEMS."""

    title: str
    paper: str
    """arXiv number."""
    settings: Mapping[str, Any]
    """Of the stage."""
    stage: str = "distill"
    in_epochs: bool = False
    """Whether a longer training sees the labelled texts more often, instead of others without
    labels."""
    share: float = 1.0
    """Of the time."""
    is_control: bool = False
    """Whether it learns from labels alone: the best such row on the validation texts is what
    others are compared with."""


FROM_NOISE = {"learning_rate": 5e-4, "earlier_learning_rate": 5e-4}
"""Settings of students that start from random weights, as `mobilebert`'s does."""
DISTILBERT = {"method": "distilbert", "layers": 6, "teacher_layers": "alternating"}
HARD = {**DISTILBERT, "method": "hard"}
LABELS_OF_PKD = {"method": "pkd", "layers": 6, "weights": {"soft": 0, "hard": 1, "patience": 0}}
THESEUS = {"method": "theseus", "layers": 6}
TINYBERT_4 = {"layers": 4, "hidden_size": 312, "feed_forward_size": 1200, **FROM_NOISE}
MINILM_6 = {"layers": 6, "hidden_size": 384, **FROM_NOISE}
SMALL_VOCAB = {"method": "small-vocab", "student": ENCODER}


def _labels_alone(title: str, settings: Mapping[str, Any], share: float = 1.0) -> System:
    return System(title, "", settings, in_epochs=True, share=share, is_control=True)


SYSTEMS: Mapping[str, System] = {
    "hard-6": _labels_alone("labels alone", HARD),
    "hard-6-half": _labels_alone("labels alone, half the time", HARD, 0.5),
    "hard-6-quarter": _labels_alone("labels alone, a quarter", HARD, 0.25),
    # what PKD starts from, the teacher's first layers: the others take alternating ones
    "pkd-6-labels": _labels_alone("labels alone, first layers", LABELS_OF_PKD),
    "distilbert-6": System("DistilBERT", "1910.01108", DISTILBERT),
    "pkd-6": System("PKD, 6 layers", "1908.09355", {"method": "pkd", "layers": 6}),
    "pkd-3": System("PKD, 3 layers", "1908.09355", {"method": "pkd", "layers": 3}),
    "internal-6": System("Aguilar et al.", "1910.03723", {"method": "internal", "layers": 6}),
    "tinybert-6": System("TinyBERT, 6 layers", "1909.10351", {"method": "tinybert", "layers": 6}),
    "tinybert-4": System("TinyBERT, 4 x 312", "1909.10351", {"method": "tinybert", **TINYBERT_4}),
    "minilm-6": System("MiniLM, 6 x 384", "2002.10957", {"method": "minilm", **MINILM_6}),
    "theseus-6": System("BERT-of-Theseus", "2002.02925", THESEUS, in_epochs=True),
    "mobilebert": System("MobileBERT", "2004.02984", {"method": "mobilebert"}),
    "mobilebert-tiny": System("MobileBERT, tiny", "2004.02984", {"method": "mobilebert-tiny"}),
    "albert": System("ALBERT", "1909.11942", {"method": "albert"}),
    "bilstm": System("BiLSTM", "1903.12136", {"method": "bilstm"}),
    "pd": System("Pre-trained distillation", "1908.08962", {"method": "pd", "student": ENCODER}),
    "small-vocab-192": System("Small vocabulary, 192", "1909.11687", SMALL_VOCAB, in_epochs=True),
    "small-vocab-48": System("Small vocabulary, 48", "1909.11687", SMALL_VOCAB, in_epochs=True),
    "static": System("Static embeddings", "", {"method": "static"}),
    "heads": System("Two of five heads pruned", "1905.10650", {"heads": 0.4}, stage="prune"),
}
"""Name -> system. Any may start from an encoder of `--students`: `small-vocab-192` from one of
`bertender distill-general --method small-vocab --hidden-size 192`."""

CONTROL = "hard"
"""The control of methods at equal epochs."""


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Work,
    out: Out = None,
    systems: Annotated[str, typer.Option(help="by commas; by default all that can be made")] = "",
    minutes: Annotated[float, typer.Option(help="processor time of a training")] = 3.0,
    epochs: Annotated[int, typer.Option(help="of each method, instead of a time")] = 0,
    layers: Annotated[int, typer.Option(help="of each student, with --epochs")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="models of each system")] = 3,
    learning_rate: Annotated[float, typer.Option(help="or the method's own, where higher")] = 5e-5,
    max_train: Annotated[int | None, typer.Option(help="training texts of all")] = None,
    students: Annotated[str, typer.Option(help="SYSTEM=ENCODER by commas")] = "",
    unlabelled: Annotated[Path | None, typer.Option(help="file of texts without labels")] = None,
    untimed: Annotated[bool, typer.Option(help="make no graphs")] = False,
    processes: Annotated[int, typer.Option(min=1, help="repetitions of the timing")] = 3,
    noisy: Noisy = False,
) -> None:
    """Train by every system, and record scores, sizes and times."""
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train} if max_train else {})
    making.check_choices(source, task)
    encoders = dict(map(_pair, filter(None, parts_of(students))))
    able = (
        METHODS if epochs else [name for name, each in SYSTEMS.items() if "method" in each.settings]
    )
    names_in("--students", ",".join(encoders), able)
    shared = (source, task, learning_rate, encoders, unlabelled, work)
    trainer = ForEpochs(*shared, epochs, layers) if epochs else ForMinutes(*shared, 60 * minutes)
    chosen = trainer.chosen(systems)
    models, absent = _trained(trainer, chosen, seeds)
    untimed = untimed or bool(epochs)
    # only what has the whole time is timed: a shorter training gives a graph as another's
    whole = [] if untimed else [name for name in models if SYSTEMS[name].share == 1]
    graphs = {name: _graphs(models[name][0], task, work) for name in whole}
    of_teacher = {} if untimed else _graphs(source, task, work)
    if out is None:
        return
    scoring = replace(task, selection=task.selection.first(CHOICE_TEXTS))
    rows = [
        making.scored_row(each, scoring, group=name, processor_s=making.seconds_of(each))
        for name, own in models.items()
        for each in own
    ]
    held_out, _ = evaluate(open_classifier(source), task.dev, task.metric)
    about = {
        **making.task_facts(task),
        "teacher": held_out.model_dump(),
        "train_texts": len(task.train),
        "encoders": {name: Path(place).name for name, place in encoders.items()},
        "absent": absent,
        "graphs": {
            name: {key: each.name for key, each in own.items()} for name, own in graphs.items()
        },
        "learning_rate": learning_rate,
        "unlabelled": str(unlabelled or ""),
        **({"epochs": epochs, "layers": layers} if epochs else {"budget_s": 60 * minutes}),
    }
    runs = [recorded("methods", rows, part="scores", **about)]
    if not untimed:
        config = CompareConfig(processes=processes, noisy=noisy)
        artifacts = [each for own in (of_teacher, *graphs.values()) for each in own.values()]
        runs.append(comparison_run("methods", compare(artifacts, task, config), part="speeds"))
    save_runs(runs, out)


def _pair(part: str) -> tuple[str, str]:
    name, _, encoder = map(str.strip, part.partition("="))
    if not encoder:
        raise ConfigError(f"--students {part!r}: give SYSTEM=ENCODER, as pd=all-MiniLM-L6-v2.")
    return name, encoder


def _trained(
    trainer: Trainer, chosen: Sequence[str], seeds: int
) -> tuple[dict[str, list[Artifact]], dict[str, str]]:
    """Return each system's models by seed, and why others have none."""
    models: dict[str, list[Artifact]] = {}
    absent: dict[str, str] = {}
    for seed in range(seeds):
        for name in chosen:
            if name in absent:
                continue
            try:
                model = trainer.trained(name, seed)
            except REFUSALS as error:
                absent[name] = str(error).replace(f"{trainer.work}/", "")
                models.pop(name, None)
                print(f"{name} is left out: {error}")
            else:
                models.setdefault(name, []).append(model)
                print(f"{name} {seed}: {making.seconds_of(model):.0f} s")
    return models, absent


def _graphs(model: Artifact, task: Task, work: Path) -> dict[str, Artifact]:
    """Return the float32 and int8 graphs of a model, or of a graph."""
    if model.card.kind == "onnx":
        return {model.card.precision: model}
    made: dict[str, Artifact] = {}
    with suppress(*REFUSALS):
        made["float32"] = _gated(ExportConfig(), export, model, task, work / f"{model.name}-onnx")
        config = QuantizeConfig(scheme="dynamic")
        made["int8"] = _gated(config, quantize, made["float32"], task, work / f"{model.name}-int8")
    return made


def _gated(
    config: Any, make: Callable[..., Artifact], source: Artifact, task: Task, place: Path
) -> Artifact:
    """Return a graph that few texts let pass, or as many as the gate usually asks.

    Of many graphs that are sound, some would be refused by chance, and the fewer texts the gate
    asks, the further one of them can seem from its source.
    """
    few = config.changed({"parity_texts": GATE_TEXTS})
    again = place.with_name(f"{place.name}-of-{config.parity_texts}-texts")
    with suppress(ParityError):
        if not again.exists():
            return making.made_of(source, task, make, few, place)
    return making.made_of(source, task, make, config, again)


STAGES: Mapping[str, tuple[type[Config], Callable[..., Artifact]]] = {
    "distill": (DistillConfig, distill),
    "prune": (PruneConfig, prune),
}


@dataclass(frozen=True)
class Trainer:
    """Trains models of a teacher on its task."""

    teacher: Artifact
    task: Task
    learning_rate: float
    encoders: Mapping[str, str]
    unlabelled: Path | None
    work: Path

    def chosen(self, systems: str) -> list[str]:
        """Return the systems that are asked for."""
        raise NotImplementedError

    def trained(self, name: str, seed: int) -> Artifact:
        """Return a system's model of a seed, trained now or before.

        Raises:
            ModelError, AccuracyError, GateError, ParityError: it cannot be made from this teacher.
            ConfigError: its settings conflict, or its time is too short for it.
        """
        raise NotImplementedError

    def _made(
        self, stage: str, settings: Mapping[str, Any], task: Task, seed: int, out: Path
    ) -> Artifact:
        kind, make = STAGES[stage]
        config = kind.parse({**settings, "seed": seed, "allow_constant": True})
        return making.made_of(self.teacher, task, make, config, out, is_timed=True)


@dataclass(frozen=True)
class ForEpochs(Trainer):
    """Trains methods of `distill` for the same epochs over all phases together."""

    epochs: int
    layers: int

    def chosen(self, systems: str) -> list[str]:
        able = [name for name, method in METHODS.items() if not method.student.wants_own_start]
        names = [*filter(None, parts_of(systems))] or able
        names_in("--systems", ",".join(name.partition(":")[0] for name in names), METHODS)
        return names

    def trained(self, name: str, seed: int) -> Artifact:
        method, _, longer = name.partition(":")
        row = METHODS[method]
        epochs = self.epochs * int(longer or 1)
        earlier = len(row.at(self.layers).phases) - 1
        if epochs <= earlier:
            raise ConfigError(f"{epochs} epochs are too few for {earlier + 1} phases.")
        # the phases before the last share half of the epochs
        each = max(epochs // (2 * earlier), 1) if earlier else 0
        # a method whose student starts from noise would hardly move at the rate of the others
        own_rate = row.settings.get("learning_rate", 0.0)
        rate = max(self.learning_rate, own_rate)
        earlier_rate = None if rate == own_rate else rate
        phases = {"earlier_epochs": each, "earlier_learning_rate": earlier_rate}
        settings = {
            "method": method,
            "layers": self.layers if row.student.usual_layers == "half" else None,
            "epochs": epochs - earlier * each,
            "learning_rate": rate,
            "batch_size": 32,
            "vocab_size": "all",
            "student": self.encoders.get(method),
            "unlabelled": self.unlabelled,
            "teacher_layers": "spread" if row.start_layers == "first-and-last" else None,
            **(phases if earlier else {}),
        }
        return self._made("distill", settings, self.task, seed, self.work / f"{name}-{seed}")


@dataclass(frozen=True)
class ForMinutes(Trainer):
    """Trains SYSTEMS, each for the same processor time."""

    budget_s: float

    def chosen(self, systems: str) -> list[str]:
        able = [name for name in SYSTEMS if name in self.encoders or not _wants_encoder(name)]
        return names_in("--systems", systems, able)

    def trained(self, name: str, seed: int) -> Artifact:
        return self._of_texts(name, self._texts(name), seed, self.work / f"{name}-{seed}")

    def _texts(self, name: str) -> int:
        """Return how many texts a system's time holds, each counted as often as it is seen."""
        budget_s = SYSTEMS[name].share * self.budget_s
        labelled = len(self._short.train)
        most = labelled * MOST_EPOCHS if self._in_epochs(name) else labelled + self._others

        def trained(texts: int) -> making.Probe:
            made = self._of_texts(name, texts, 0, self.work / "probes" / f"{name}-{texts}")
            probe = making.Probe(amount=texts, processor_s=making.seconds_of(made))
            if texts <= FIRST_TEXTS and probe.processor_s > budget_s:
                raise ConfigError(
                    f"{texts} texts alone take {probe.processor_s:.0f} s of processor time, and it "
                    f"has {budget_s:.0f} s. Give more --minutes."
                )
            return probe

        settings = sorted(self._settings(name, 0).items())
        data = f"{self._short.fingerprint()} {self._others} texts"
        identity = f"{settings} {self.teacher.digest} {data}"
        file = self.work / f"{name}.amount.json"
        return making.amount_in(budget_s, file, identity, trained, FIRST_TEXTS, most).amount

    def _in_epochs(self, name: str) -> bool:
        return SYSTEMS[name].in_epochs or not self._others

    def _of_texts(self, name: str, texts: int, seed: int, out: Path) -> Artifact:
        count = min(texts, len(self._short.train))
        task = replace(self._short, train=self._first(count))
        return self._made(SYSTEMS[name].stage, self._settings(name, texts), task, seed, out)

    def _settings(self, name: str, texts: int) -> dict[str, Any]:
        """Return the settings of a system that learns from `texts` texts."""
        system, labelled = SYSTEMS[name], len(self._short.train)
        own = dict(system.settings)
        if name in self.encoders:  # it has its shape, and layers that have learned
            own = {"method": own["method"], "student": self.encoders[name]}
        in_epochs = self._in_epochs(name)
        epochs = max(round(texts / labelled), 1) if in_epochs else 1
        settings = {"learning_rate": self.learning_rate, "batch_size": 32, "epochs": epochs, **own}
        if not in_epochs and texts > labelled:
            settings |= self._unlabelled(texts - labelled)
        if system.stage == "distill":
            method = METHODS[str(own["method"])]
            rates = (self.learning_rate, method.settings.get("learning_rate", 0.0))
            settings["learning_rate"] = max(*rates, own.get("learning_rate", 0.0))
            settings["vocab_size"] = "all"
            if method.has_phases:
                settings["earlier_epochs"] = epochs
        return settings

    def _first(self, count: int) -> Split:
        """Return the first training texts, in an order that was drawn.

        A task with only a part of its training file is in such an order already.
        """
        train = self._short.train
        if self.teacher.card.task.source.get("max_train") == len(train):
            return train.first(count)
        return sample(train, count, self.task.problem)

    @cached_property
    def _short(self) -> Task:
        """The task with few texts to score, which would take a large part of the time.

        The others are reserved, so that nothing learns from them.
        """
        parts = (self.task.dev, self.task.selection)
        dev, selection = (each.first(SCORED) for each in parts)
        left = [text for each in parts for text in each.after(SCORED).examples]
        reserved = (*self.task.reserved, *left)
        return replace(self.task, dev=dev, selection=selection, reserved=reserved)

    @cached_property
    def _others(self) -> int:
        """The number of texts without labels to learn from; 0 if the task has none."""
        settings = DistillConfig.parse(self._unlabelled(MOST_TEXTS))
        extended, _ = with_unlabelled(self._short, settings)
        return len(extended.train) - len(self._short.train)

    def _unlabelled(self, count: int) -> dict[str, Any]:
        """Return the settings of texts without labels, from the file or from the task."""
        if self.unlabelled is None:
            return {"unlabelled_texts": count}
        return {"unlabelled": self.unlabelled, "max_unlabelled": count}


def _wants_encoder(name: str) -> bool:
    return ENCODER in SYSTEMS[name].settings.values()


def table(runs: Sequence[Run]) -> cells.Table:
    """Systems at equal processor time: points over labels alone, size and speed of 8 bits."""
    scores = [run for run in runs if run.about["part"] == "scores"]
    gains = [gains_over_control(run) for run in scores]
    (speeds,) = (run for run in runs if run.about["part"] == "speeds")
    rows = []
    for name, system in SYSTEMS.items():
        if any(name in own for own in gains) and not system.is_control:
            changes = [cells.points(own.get(name)) for own in gains]
            title = f"{system.title} ({system.paper})" if system.paper else system.title
            rows.append([title, *changes, *_of_graphs(scores[0], speeds, name)])
    sets = [f"{cells.titled(run).split(',')[0]}, points" for run in scores]
    budget = scores[0].about["budget_s"]
    note = (
        f"Each trained for {budget:.0f} s of processor time, 3 seeds, from a teacher of 12 layers "
        "with 1,000 labels; points over labels alone with the teacher's first layers, with 95 % "
        f"intervals over texts and seeds; smaller and faster than the teacher's float32 graph. "
        f"{cells.machine(speeds)}."
    )
    return cells.Table(["System", *sets, "Smaller, 8 bits", "Faster, 8 bits"], rows, note)


def gains_over_control(run: Run) -> dict[str, Any]:
    """Return the points of each system over the best row of labels alone."""
    groups = grouped(run.rows, "group")
    controls = [name for name, system in SYSTEMS.items() if system.is_control and name in groups]
    control = max(controls, key=lambda name: cells.mean_score(groups[name], "choice"))
    others = (name for name in groups if name not in (control, "teacher"))
    return {name: cells.gain(run, groups[control], groups[name]) for name in others}


def _of_graphs(run: Run, speeds: Run, name: str) -> Sequence[str]:
    """Return how much smaller and faster a system's 8-bit graph is than the teacher's float one."""
    first, *others = speeds.rows
    graph = run.about["graphs"].get(name, {}).get("int8")
    for row in others:
        if row["name"] == graph:
            larger, smaller = (each["size"]["model_size_bytes"] for each in (first, row))
            faster = cells.over(first["latency"], row["latency"])
            return f"{cells.two(larger / smaller)}x", cells.times(faster)
    return cells.DASH, cells.DASH


def epochs_table(runs: Sequence[Run]) -> cells.Table:
    """Methods at equal epochs: points over labels alone on each set."""
    groups = [grouped(run.rows, "group") for run in runs]
    names = dict.fromkeys(name for own in groups for name in own if name != CONTROL)
    rows = []
    for name in names:
        found = next(own[name] for own in groups if name in own)
        gained = [
            cells.gain(run, own[CONTROL], own[name]) if name in own else None
            for run, own in zip(runs, groups, strict=True)
        ]
        millions = cells.two(found[0]["size"]["parameters"] / 1e6)
        rows.append([f"`{name}`", millions, *map(cells.points, gained)])
    headings = ["Method", "Parameters, M", *(f"{cells.titled(run)}, points" for run in runs)]
    about = runs[0].about
    note = (
        f"{about['layers']} layers of a teacher of 6, {about['epochs']} epochs, 3 seeds; points "
        "over labels alone (`hard`) with 95 % intervals over texts and seeds."
    )
    return cells.Table(headings, rows, note)


def labels_table(runs: Sequence[Run]) -> cells.Table:
    """Few labels: the best length of labels alone, and distilling with further texts."""
    rows, changes = zip(*map(_few_labels, range(len(runs)), runs), strict=True)
    headings = ["Data set", "Labels alone", "Distilled, further texts", "Points"]
    average = cells.points(cells.mean_change(changes))
    note = (
        f"1,000 labels, 3 layers of {runs[0].about['student']}, 3 seeds; brackets are 95 % "
        f"intervals over texts and seeds; on average {average} points. "
        f"{cells.machine(runs[0])}."
    )
    return cells.Table(headings, rows, note)


def _few_labels(number: int, run: Run) -> tuple[list[str], cells.ResampledChange]:
    """Return the row of a set, and its change; each set is drawn apart, for their average."""
    groups = grouped(run.rows, "group")
    controls = [name for name in groups if name.startswith(("labels", "small-vocab"))]
    (distilled,) = (name for name in groups if name not in controls)
    # the length is chosen by the seeds that all lengths have
    seeds = set.intersection(*({row["seed"] for row in groups[name]} for name in controls))
    alike = {name: [row for row in groups[name] if row["seed"] in seeds] for name in controls}
    best = max(controls, key=lambda name: cells.mean_score(alike[name], "choice"))
    means = (f"{cells.mean_score(groups[name]):.2f}" for name in (best, distilled))
    change = cells.resampled_gain(run, groups[best], groups[distilled], seed=number)
    return [cells.titled(run), *means, cells.points(change.change())], change
