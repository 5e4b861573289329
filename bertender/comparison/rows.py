"""Rows of a comparison: models to time, their scores, their predictions, and a cascade of two."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertender.comparison.accuracy import (
    Answers,
    all_scores,
    answers,
    found_constant,
    score_by,
    shown,
)
from bertender.comparison.calibration import reliability_of
from bertender.comparison.cascade import Answered, chosen
from bertender.comparison.latency import PassedOn, TimedModel, threads_of
from bertender.comparison.records import (
    Ancestor,
    CascadeFindings,
    CompareConfig,
    ComparisonRow,
    Confused,
    Disagreement,
    Latency,
    LengthsRead,
    PrunedHeads,
    Size,
    measure_size,
)
from bertender.core.artifact import Artifact, lineage
from bertender.core.findings import ConstantFindings, Reliability, TextLengths
from bertender.metrics import paired_change
from bertender.metrics.metric import Change, LabelSet, Score, is_labelled
from bertender.models.classifier import in_label_order
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, preferred, runtime_of, suits
from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task
from bertender.text.batch import Encode, Tokenize

SHOWN_CHARACTERS = 500


def row_names(artifacts: Sequence[Artifact]) -> list[str]:
    """Return a name of its own for each row: an artifact's directory, with as many parents before
    it as tell it from others; with a number where the same one is there again."""
    paths = [artifact.path.resolve() for artifact in artifacts]
    names = []
    for place, path in enumerate(paths):
        others = {each for each in paths if each != path}
        depth = next(
            count
            for count in itertools.count(1)
            if all(each.parts[-count:] != path.parts[-count:] for each in others)
        )
        name, before = str(Path(*path.parts[-depth:])), paths[:place].count(path)
        names.append(f"{name} ({before + 1})" if before else name)
    return names


def timed_models(artifacts: Sequence[Artifact], runtimes: Sequence[str]) -> list[TimedModel]:
    """Return the timed rows: an onnx artifact once per runtime, others once. The first onnx
    artifact has a row for each possible runtime, later ones for the runtimes that they are made
    for: only the first is timed in float32 from a float16 file.
    """
    rows = []
    first = next((each for each in artifacts if each.card.kind == "onnx"), None)
    for artifact, name in zip(artifacts, row_names(artifacts), strict=True):
        titles = {DEFAULT_RUNTIME: name}
        if artifact.card.kind == "onnx":
            suiting = [each for each in runtimes if suits(each, artifact)]
            titles = {
                each: name if len(runtimes) == 1 else f"{name} in {RUNTIMES[each].title}"
                for each in (suiting if artifact is first else preferred(suiting, artifact))
            }
        for runtime, title in titles.items():
            path = artifact.path.resolve()
            rows.append(TimedModel(name=title, artifact=path, runtime=runtime))
    return rows


@dataclass
class Scored:
    """Answers and scores of a row, whose classifier is closed before the next one is opened."""

    task: Task
    further_tasks: Mapping[str, Task]
    problem: Problem[Any]
    labels: Sequence[str]
    encode: Encode
    parameters: int
    answers: Answers
    further: Mapping[str, Answers]
    """Answers to the held-out texts of other tasks."""
    lengths: LengthsRead | None = None
    reliability: Reliability | None = None

    def __post_init__(self) -> None:
        # at once, so that an error comes before minutes of timing
        task, own = self.task, self.answers
        given = task.dev, task.metric, own.predictions, own.outputs
        self.scores = all_scores(self.problem, self.labels, *given)
        self.further_scores = {
            name: score_by(task.metric, task.labels, other.dev, own.predictions, own.outputs)
            for name, other in self.further_tasks.items()
            for own in (self.further[name],)
        }

    @property
    def score(self) -> Score:
        """The score by the task's metric."""
        return self.scores.of(self.task.metric)

    def change_over(self, first: Scored, seed: int) -> Change | None:
        """Return the gain over the first row; None where either score is undefined."""
        if first.score.undefined or self.score.undefined:
            return None
        task, pair = self.task, (first.answers.predictions, self.answers.predictions)
        labels = LabelSet(len(task.labels), task.labels)
        return paired_change(task.metric, task.dev.label_ids, *pair, labels, seed=seed)

    @property
    def constant(self) -> ConstantFindings | None:
        """The one label of all predictions, if it is one."""
        return found_constant(self.task, self.task.dev, self.answers.predictions)


def scored_row(
    model: TimedModel, task: Task, further: Mapping[str, Task], config: CompareConfig
) -> Scored:
    """Open a row's classifier, and let it answer the held-out texts."""
    classifier = in_label_order(model.open(threads_of(config), None), task.labels)
    tokens = config.tokens_per_batch
    found = answers(classifier, task.dev, tokens_per_batch=tokens)
    others = {
        name: answers(classifier, other.dev, tokens_per_batch=tokens)
        for name, other in further.items()
    }
    encode, lengths = classifier.encode, None
    if isinstance(encode, Tokenize):
        read = TextLengths.of(encode.counts(task.dev.examples), encode.max_length)
        lengths = LengthsRead(max_length=encode.max_length, held_out=read, windows=not encode.cuts)
    problem, labels = classifier.problem, classifier.labels
    return Scored(
        task,
        further,
        problem,
        labels,
        encode,
        classifier.parameters,
        answers=found,
        further=others,
        lengths=lengths,
        reliability=reliability_of(problem, found.outputs, task.dev, labels),
    )


@dataclass(frozen=True)
class Cascade:
    """A timed cascade, and its answers to the held-out texts."""

    model: TimedModel
    scored: Scored
    artifacts: tuple[Artifact, Artifact]
    findings: CascadeFindings

    def row(self, row: ComparisonRow) -> ComparisonRow:
        """Return the row of the cascade, based on its small model's row."""
        small, strong = self.artifacts
        sizes = measure_size(strong, None)
        digests = (each.digest for each in self.artifacts)
        found = {
            "digest": hashlib.sha256(" ".join(digests).encode()).hexdigest(),
            "parent": None,
            "kind": "cascade",
            "runtime": None,
            "stage": "cascade",
            "precision": small.card.precision
            if small.card.precision == strong.card.precision
            else f"{small.card.precision}, {strong.card.precision}",
            "size": Size(
                parameters=self.scored.parameters,
                model_size_bytes=row.size.model_size_bytes + sizes.model_size_bytes,
                artifact_size_bytes=row.size.artifact_size_bytes + sizes.artifact_size_bytes,
            ),
            "parity": None,
            "calibration": None,
            "pruned": None,
            "lineage": (*ancestors(small), *ancestors(strong)),
            "cascade": self.findings,
        }
        return row.model_copy(update=found)


def cascade_row(
    pair: tuple[Artifact, Artifact],
    models: Sequence[TimedModel],
    scored: Sequence[Scored],
    task: Task,
    further: Mapping[str, Task],
    config: CompareConfig,
) -> Cascade:
    """Choose the threshold of a cascade on validation texts, and answer the held-out texts."""
    rows = [
        next(place for place, model in enumerate(models) if model.artifact == each.path.resolve())
        for each in pair
    ]
    small, strong = (models[row] for row in rows)
    tokens, problem = config.tokens_per_batch, task.problem
    apart: list[Answered] = []
    held_out: list[dict[str, Answered]] = []
    for model, row in zip((small, strong), rows, strict=True):
        classifier = in_label_order(model.open(threads_of(config), None), task.labels)
        found = answers(classifier, task.selection, tokens_per_batch=tokens)
        apart.append(Answered.of(found, classifier))
        to_texts = {task.name: scored[row].answers, **scored[row].further}
        held_out.append({name: Answered.of(own, classifier) for name, own in to_texts.items()})
    names = (small.name, strong.name)
    findings = chosen(names, apart[0], apart[1], task.selection, task)
    both = {
        name: own.then(held_out[1][name], problem, findings.threshold).answers
        for name, own in held_out[0].items()
    }
    mixed = both.pop(task.name)
    passed_on = float((held_out[0][task.name].confidence < findings.threshold).mean())
    then = PassedOn(artifact=strong.artifact, runtime=strong.runtime, threshold=findings.threshold)
    name = f"{small.name}, then {strong.name}"
    return Cascade(
        model=small.model_copy(update={"name": name, "then": then}),
        scored=Scored(
            task,
            further,
            problem,
            task.labels,
            scored[rows[0]].encode,
            sum(scored[row].parameters for row in rows),
            answers=mixed,
            further=both,
        ),
        artifacts=pair,
        findings=findings.model_copy(update={"passed_on": passed_on}),
    )


def row_of(
    artifact: Artifact,
    model: TimedModel,
    scored: Scored,
    first: Scored,
    latency: Latency,
    config: CompareConfig,
) -> ComparisonRow:
    """Return a row with its times, and its differences from the first row."""
    task, predictions = scored.task, scored.answers.predictions
    change = differing = None
    if scored is not first:
        change = scored.change_over(first, config.seed)
        differing = disagreements(task, first.answers, scored.answers, config.disagreements)
    card, findings = artifact.card, artifact.card.findings
    checked_in = findings.quantization.runtime if findings.quantization else DEFAULT_RUNTIME
    # the card's parity is for the runtime of its check
    was_checked = card.kind != "onnx" or model.runtime == checked_in
    return ComparisonRow(
        name=model.name,
        digest=artifact.digest,
        parent=card.parent.digest if card.parent else None,
        kind=card.kind,
        runtime=runtime_of(artifact, model.runtime),
        family=card.family,
        stage=card.stage,
        precision=card.precision,
        seed=card.seed,
        size=measure_size(artifact, scored.parameters),
        score=scored.score,
        scores=scored.scores,
        reliability=scored.reliability,
        calibration=_calibration(artifact),
        change=change,
        latency=latency,
        parity=findings.parity if was_checked else None,
        lengths=scored.lengths,
        constant=scored.constant,
        further=scored.further_scores,
        pruned=_pruned_heads(artifact),
        lineage=ancestors(artifact),
        confusion=confusion(task, predictions),
        disagreements=differing,
        sensitivity=findings.quantization.sensitivity if findings.quantization else None,
        products=findings.quantization.product_check if findings.quantization else None,
    )


def _calibration(artifact: Artifact) -> str | None:
    if (own := artifact.card.task.calibration) is None:
        return None
    return own.method if artifact.has_own_calibration else f"{own.method}, inherited"


def ancestors(artifact: Artifact) -> tuple[Ancestor, ...]:
    """Return an artifact and its ancestors, for a report."""
    found = []
    for each in lineage(artifact):
        if isinstance(each, str):
            found.append(Ancestor(place=each, missing=True))
            continue
        card = each.card
        own = card.findings.calibration if each.has_own_calibration else None
        found.append(
            Ancestor(
                place=each.place,
                digest=each.digest,
                parent=card.parent.digest if card.parent else None,
                stage=card.stage,
                kind=card.kind,
                precision=card.precision,
                config=card.config,
                source=card.task.source,
                calibrated_by=own.method if own else None,
                calibrated_on=own.source if own else {},
                versions=card.versions,
            )
        )
    return tuple(found)


def _pruned_heads(artifact: Artifact) -> PrunedHeads | None:
    """Return the remaining heads of a pruned model, also of its export or 8-bit graph."""
    made_of = (each for each in lineage(artifact) if isinstance(each, Artifact))
    model = next((each for each in made_of if each.card.kind == "torch"), artifact)
    if not (pruning := model.card.findings.pruning):
        return None
    importance = pruning.rounds[0].head_importance
    remaining = pruning.rounds[-1].remaining_heads
    if not (importance and remaining):
        return None
    return PrunedHeads(
        layers=pruning.layers or range(len(importance)), importance=importance, kept=remaining
    )


def confusion(task: Task, predictions: Sequence[Any]) -> tuple[Confused, ...] | None:
    """Return counts of predicted labels for each true label, the most frequent first; None for
    kinds of problems without a single label per text."""
    if task.problem_type != SINGLE_LABEL.name:
        return None
    pairs = zip(task.dev.label_ids, predictions, strict=True)
    counts = Counter((int(truth), int(own)) for truth, own in pairs if is_labelled(truth))
    return tuple(
        Confused(truth=truth, predicted=own, texts=texts)
        for (truth, own), texts in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )


def disagreements(
    task: Task, first: Answers, own: Answers, count: int
) -> tuple[Disagreement, ...] | None:
    """Return the held-out texts on which two models differ most, the largest distance first.

    Texts with the same prediction are left out, except for numbers.

    Args:
        task: task of the texts.
        first: answers of the first row.
        own: answers of another row.
        count: largest number of texts.
    """
    problem = task.problem
    if problem.gives_vectors:
        return None
    apart = []
    for row, (ours, theirs) in enumerate(zip(own.outputs, first.outputs, strict=True)):
        if ours.logits.shape != theirs.logits.shape:  # spans of other windows
            continue
        distance = problem.divergence(theirs.logits, ours.logits)
        if np.isfinite(distance) and distance > 0:
            apart.append((distance, row))
    found: list[Disagreement] = []
    for distance, row in sorted(apart, key=lambda each: (-each[0], each[1])):
        if len(found) == count:
            break
        example, target = task.dev.examples[row], task.dev.label_ids[row]
        before, after = (
            shown(problem.by_names(answers.predictions[row], task.labels))
            for answers in (first, own)
        )
        if before == after and problem.names_labels:
            continue
        truth = shown(problem.by_names(target, task.labels)) if is_labelled(target) else ""
        text = problem.separator.join(example)
        found.append(
            Disagreement(
                text=text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...",
                truth=truth,
                first=before,
                own=after,
                distance=distance,
            )
        )
    return tuple(found)
