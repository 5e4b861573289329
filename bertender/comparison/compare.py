"""The comparison of artifacts: measured once, saved as JSON.

All rows classify the same texts on the same machine. Changes and speedups are relative to the first
row.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertender.comparison.accuracy import (
    Answers,
    all_scores,
    answers,
    constant_row,
    found_constant,
    score_by,
    text_lengths,
    word_count,
)
from bertender.comparison.calibration import reliability_of
from bertender.comparison.cascade import Answered, check_cascade, chosen
from bertender.comparison.latency import (
    PassedOn,
    TimedModel,
    drawn_texts,
    measure_models,
    threads_of,
)
from bertender.comparison.predictions import confusion, disagreements
from bertender.comparison.records import (
    Ancestor,
    CascadeFindings,
    CompareConfig,
    Comparison,
    ComparisonRow,
    Conditions,
    Latency,
    LatencyReport,
    Lengths,
    LengthsRead,
    PrunedHeads,
    Rounds,
    Size,
    measure_size,
    speedup_over_processes,
    with_speedups_over_onnx_float32,
)
from bertender.core.artifact import Artifact, lineage
from bertender.core.card import TaskRecord
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import ChosenOn, ConstantFindings, Reliability, TextLengths
from bertender.core.machine import (
    FasterRuntime,
    RuntimeNote,
    check_load_now,
    environment,
    processor_name,
)
from bertender.metrics import paired_change
from bertender.metrics.metric import AllScores, Change, LabelSet, Score
from bertender.models.classifier import in_label_order
from bertender.models.runtimes import (
    DEFAULT_RUNTIME,
    RUNTIMES,
    check_installed,
    check_used,
    preferred,
    runtime_of,
    suits,
)
from bertender.tasks.loading import scored_too
from bertender.tasks.task import Task, same_labels
from bertender.text.batch import Encode, Example, Tokenize


def compare(
    artifacts: Sequence[Artifact],
    task: Task,
    config: CompareConfig,
    *,
    measured_at: str | None = None,
    cascade: tuple[Artifact, Artifact] | None = None,
) -> Comparison:
    """Measure artifacts against each other on a task's held-out split.

    Args:
        artifacts: artifacts to compare; the first is the reference.
        task: task with the `dev` split that all of them classify.
        config: settings of timings and batches.
        measured_at: date and time to record; None for the current time.
        cascade: a small and a strong artifact of them, which form one more row.

    Raises:
        ConfigError: there are no artifacts, or no artifact for a runtime; an artifact reads more
            or fewer texts than an example has; or the kind of problem has no cascade, or no texts
            to choose its threshold on.
        RuntimeMissingError: a runtime is not installed.
        ModelError: an artifact's labels are not the task's, in any order, or its logits are not
            finite.
        MachineBusyError: other work disturbs the times, and the config does not allow noisy ones.
    """
    if not artifacts:
        raise ConfigError("no artifacts: give at least one, the reference first.")
    check_installed(*config.runtime)
    check_used(artifacts, *config.runtime)
    _check_labels(artifacts, task)
    if cascade is not None:
        check_cascade(task.problem, task)
    if not config.noisy:
        check_load_now()
    further = scored_too(task)
    models = timed_models(artifacts, config.runtime)
    at_path = {each.path.resolve(): each for each in artifacts}
    of_rows = [at_path[model.artifact] for model in models]
    scored = [_scored(model, task, further, config) for model in models]
    made = None
    if cascade is not None:
        made = _cascade(cascade, models, scored, task, further, config)
        models, scored = [*models, made.model], [*scored, made.scored]
        of_rows.append(cascade[0])
    first = scored[0]
    changes = [None, *(_change(first, other, task, config) for other in scored[1:])]
    asked = task.problem.asked(task.dev.examples)
    timed = measure_models(models, asked, config)
    assert timed.noise_floor is not None
    rows = []
    for artifact, model, own, change, latency in zip(
        of_rows, models, scored, changes, timed.rows, strict=True
    ):
        row = _row(artifact, model, own, change, latency)
        if made is not None and model is made.model:
            row = made.row(row)
        found = {
            "confusion": confusion(task, own.answers.predictions),
            "disagreements": None
            if own is first
            else disagreements(task, first.answers, own.answers, config.disagreements),
        }
        rows.append(row.model_copy(update=found))
    measured_at = measured_at or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Comparison(
        circumstances=_conditions(artifacts, task, config, timed, first.encode, measured_at),
        rows=with_speedups_over_onnx_float32(rows, config.seed),
        constant=constant_row(task),
        noise_floor=timed.noise_floor,
        timed_lengths=_timed_lengths(first.encode, asked, config),
    )


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


@dataclass(frozen=True)
class _Scored:
    """Scores of a row, whose classifier is closed before the next one is opened."""

    encode: Encode
    lengths: LengthsRead | None
    parameters: int
    scores: AllScores
    score: Score
    answers: Answers
    constant: ConstantFindings | None
    further: Mapping[str, Answers]
    """Answers to the held-out texts of other tasks."""
    further_scores: dict[str, Score]
    reliability: Reliability | None


def _scored(
    model: TimedModel, task: Task, further: Mapping[str, Task], config: CompareConfig
) -> _Scored:
    classifier = in_label_order(model.open(threads_of(config), None), task.labels)
    tokens = config.tokens_per_batch
    problem, labels = classifier.problem, classifier.labels
    found = answers(classifier, task.dev, tokens_per_batch=tokens)
    scores = all_scores(problem, labels, task.dev, task.metric, found.predictions, found.outputs)
    others = {
        name: answers(classifier, other.dev, tokens_per_batch=tokens)
        for name, other in further.items()
    }
    encode, lengths = classifier.encode, None
    if isinstance(encode, Tokenize):
        read = TextLengths.of(encode.counts(task.dev.examples), encode.max_length)
        lengths = LengthsRead(max_length=encode.max_length, held_out=read, windows=not encode.cuts)
    return _Scored(
        encode=encode,
        lengths=lengths,
        parameters=classifier.parameters,
        scores=scores,
        score=scores.of(task.metric),
        answers=found,
        constant=found_constant(task, task.dev, found.predictions),
        further=others,
        further_scores=_further_scores(task, further, others),
        reliability=reliability_of(problem, found.outputs, task.dev, labels),
    )


def _further_scores(
    task: Task, further: Mapping[str, Task], found: Mapping[str, Answers]
) -> dict[str, Score]:
    """Return the scores of answers to the held-out texts of other tasks."""
    return {
        name: score_by(task.metric, task.labels, other.dev, own.predictions, own.outputs)
        for name, other in further.items()
        for own in (found[name],)
    }


def _change(first: _Scored, other: _Scored, task: Task, config: CompareConfig) -> Change | None:
    """Return the gain of a row over the first; None where either score is undefined."""
    if first.score.undefined or other.score.undefined:
        return None
    predictions = first.answers.predictions, other.answers.predictions
    labels = LabelSet(len(task.labels), task.labels)
    return paired_change(task.metric, task.dev.label_ids, *predictions, labels, seed=config.seed)


@dataclass(frozen=True)
class _Cascade:
    """A timed cascade, and its answers to the held-out texts."""

    model: TimedModel
    scored: _Scored
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


def _cascade(
    pair: tuple[Artifact, Artifact],
    models: Sequence[TimedModel],
    scored: Sequence[_Scored],
    task: Task,
    further: Mapping[str, Task],
    config: CompareConfig,
) -> _Cascade:
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
    labels = task.labels
    scores = all_scores(problem, labels, task.dev, task.metric, mixed.predictions, mixed.outputs)
    then = PassedOn(artifact=strong.artifact, runtime=strong.runtime, threshold=findings.threshold)
    name = f"{small.name}, then {strong.name}"
    return _Cascade(
        model=small.model_copy(update={"name": name, "then": then}),
        scored=_Scored(
            encode=scored[rows[0]].encode,
            lengths=None,
            parameters=sum(scored[row].parameters for row in rows),
            scores=scores,
            score=scores.of(task.metric),
            answers=mixed,
            constant=found_constant(task, task.dev, mixed.predictions),
            further=both,
            further_scores=_further_scores(task, further, both),
            reliability=None,
        ),
        artifacts=pair,
        findings=findings.model_copy(update={"passed_on": passed_on}),
    )


def _row(
    artifact: Artifact,
    model: TimedModel,
    scored: _Scored,
    change: Change | None,
    latency: Latency,
) -> ComparisonRow:
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


def _timed_lengths(
    encode: Encode, examples: Sequence[Example], config: CompareConfig
) -> list[list[list[int]]]:
    """Return the lengths of the single texts that `measure_models` draws."""
    lengths = dict(zip(examples, text_lengths(encode, examples), strict=True))
    rounds = range(config.warmup_rounds, config.warmup_rounds + config.rounds)
    return [
        [
            [lengths[example] for example in drawn_texts(examples, config, process, number)[0]]
            for number in rounds
        ]
        for process in range(config.processes)
    ]


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


def _conditions(
    artifacts: Sequence[Artifact],
    task: Task,
    config: CompareConfig,
    timed: LatencyReport,
    encode: Encode,
    measured_at: str,
) -> Conditions:
    examples = task.problem.asked(task.dev.examples)
    words = [word_count(example) for example in examples]
    reads_tokens = bool(encode(examples[:1]).arrays)
    tokens = text_lengths(encode, examples) if reads_tokens else None
    return Conditions(
        measured_at=measured_at,
        environment=environment(),
        threads=timed.threads,
        batch_texts=timed.batch_texts,
        task=task.name,
        metric=task.metric,
        labels=task.labels,
        n=len(task.dev),
        task_fingerprint=task.fingerprint(),
        source=dict(task.source),
        lengths=Lengths(
            mean_words=float(np.mean(words)),
            max_words=max(words),
            mean_tokens=float(np.mean(tokens)) if tokens else None,
            max_tokens=max(tokens) if tokens else None,
        ),
        config=config,
        load=timed.load,
        chosen_on=texts_chosen_on(artifacts),
    )


def texts_chosen_on(artifacts: Sequence[Artifact]) -> tuple[ChosenOn, ...]:
    """Return where the artifacts' settings were chosen: on validation texts, or on `dev`."""
    # a model without recorded data, such as an imported one, has no choices
    sources = [source for each in artifacts if (source := each.card.task.source)]
    shares = [source.get("select", 0.0) for source in sources]
    seen: dict[ChosenOn, bool] = {"dev": not all(shares), "selection": any(shares)}
    return tuple(name for name, is_there in seen.items() if is_there)


def _predicts(record: TaskRecord, task: Task) -> bool:
    """Return whether a model predicts the labels of a task; one of choices takes any number."""
    if record.problem_type != task.problem_type:
        return False
    return task.problem.places_are_labels or same_labels(record.labels, task.labels, task.problem)


def _check_labels(artifacts: Sequence[Artifact], task: Task) -> None:
    others = [
        f"{artifact.place} has {artifact.card.task.labels}, of task {artifact.card.task.name!r}"
        for artifact in artifacts
        if not _predicts(artifact.card.task, task)
    ]
    if others:
        raise ModelError(
            f"task {task.name!r} has labels {task.labels}, but {'; '.join(others)}. "
            "Compare artifacts of one task, and give that task."
        )
    for artifact in artifacts:
        task.check_columns(artifact)


Samples = Callable[[ComparisonRow], Sequence[Rounds]]


def runtime_note(comparison: Comparison) -> RuntimeNote | None:
    """Return the fastest rows of each runtime, for one text and for batches.

    Only rows with as many parameters as the first ONNX row are compared, so that runtimes differ
    but models do not, and only rows on the CPU; the ratio is between the best rows of each runtime.
    None for fewer than two runtimes, unknown sizes, or disturbed times.
    """
    conditions = comparison.circumstances
    on_cpu = {name: row for name, row in RUNTIMES.items() if not row.needs_gpu}
    onnx = [row for row in comparison.rows if row.runtime in on_cpu and row.size.parameters]
    rows = [row for row in onnx if row.size.parameters == onnx[0].size.parameters]
    if len({row.runtime for row in rows}) < 2 or conditions.config.noisy:
        return None
    versions = conditions.environment.versions
    packages = [on_cpu[name].package for name in sorted(on_cpu)]
    return RuntimeNote(
        measured_at=conditions.measured_at,
        processor=processor_name(conditions.environment),
        cores=conditions.environment.cores,
        threads=conditions.threads,
        task=conditions.task,
        parameters=rows[0].size.parameters or 0,
        versions={package: versions.get(package, "") for package in packages},
        uses=(
            _faster("one text", lambda row: row.latency.single_ms, rows),
            _faster(
                f"batches of {conditions.batch_texts}",
                lambda row: row.latency.batch_rounds_ms,
                rows,
            ),
        ),
    )


def _faster(use: str, samples: Samples, rows: Sequence[ComparisonRow]) -> FasterRuntime:
    first = rows[0]
    over_first = {
        row.name: speedup_over_processes(samples(first), samples(row)).value for row in rows
    }
    ranked = sorted(rows, key=lambda row: over_first[row.name], reverse=True)
    best = ranked[0]
    other = next(row for row in ranked if row.runtime != best.runtime)
    return FasterRuntime(
        use=use,
        runtime=RUNTIMES[best.runtime or DEFAULT_RUNTIME].title,
        row=f"{best.name} ({best.precision})",
        other_runtime=RUNTIMES[other.runtime or DEFAULT_RUNTIME].title,
        other_row=f"{other.name} ({other.precision})",
        speedup=speedup_over_processes(samples(other), samples(best)),
    )
