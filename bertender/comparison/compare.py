"""The comparison of artifacts: measured once, saved as JSON.

All rows classify the same texts on the same machine. Changes and speedups are relative to the first
row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bertender.comparison.accuracy import constant_row, text_lengths, word_count
from bertender.comparison.cascade import check_cascade
from bertender.comparison.latency import drawn_texts, measure_models
from bertender.comparison.records import (
    CompareConfig,
    Comparison,
    ComparisonRow,
    Conditions,
    LatencyReport,
    Lengths,
    Rounds,
    speedup_over_processes,
    with_speedups_over_onnx_float32,
)
from bertender.comparison.rows import cascade_row, row_of, scored_row, timed_models
from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import ChosenOn
from bertender.core.machine import (
    FasterRuntime,
    RuntimeNote,
    check_load_now,
    environment,
    processor_name,
)
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, check_installed, check_used
from bertender.tasks.loading import scored_too
from bertender.tasks.task import Task, same_labels
from bertender.text.batch import Encode, Example


def compare(
    artifacts: Sequence[Artifact],
    task: Task,
    config: CompareConfig,
    *,
    cascade: tuple[Artifact, Artifact] | None = None,
) -> Comparison:
    """Measure artifacts against each other on a task's held-out split.

    Args:
        artifacts: artifacts to compare; the first is the reference.
        task: task with the `dev` split that all of them classify.
        config: settings of timings and batches.
        cascade: a small and a strong artifact of them, which form one more row.

    Raises:
        ConfigError: there are no artifacts, or no artifact for a runtime; an artifact is for
            another kind of problem, or reads more or fewer texts than an example has; or the kind
            has no cascade, or no texts to choose its threshold on.
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
    scored = [scored_row(model, task, further, config) for model in models]
    made = None
    if cascade is not None:
        made = cascade_row(cascade, models, scored, task, further, config)
        models, scored = [*models, made.model], [*scored, made.scored]
        of_rows.append(cascade[0])
    first = scored[0]
    asked = task.problem.asked(task.dev.examples)
    timed = measure_models(models, asked, config)
    assert timed.noise_floor is not None
    rows = []
    for artifact, model, own, latency in zip(of_rows, models, scored, timed.rows, strict=True):
        row = row_of(artifact, model, own, first, latency, config)
        rows.append(made.row(row) if made is not None and model is made.model else row)
    return Comparison(
        circumstances=_conditions(artifacts, task, config, timed, first.encode),
        rows=with_speedups_over_onnx_float32(rows, config.seed),
        constant=constant_row(task),
        noise_floor=timed.noise_floor,
        timed_lengths=_timed_lengths(first.encode, asked, config),
    )


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


def _conditions(
    artifacts: Sequence[Artifact],
    task: Task,
    config: CompareConfig,
    timed: LatencyReport,
    encode: Encode,
) -> Conditions:
    examples = task.problem.asked(task.dev.examples)
    words = [word_count(example) for example in examples]
    reads_tokens = bool(encode(examples[:1]).arrays)
    tokens = text_lengths(encode, examples) if reads_tokens else None
    return Conditions(
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
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
    return task.problem.places_are_labels or same_labels(record.labels, task.labels, task.problem)


def _check_labels(artifacts: Sequence[Artifact], task: Task) -> None:
    for artifact in artifacts:
        task.check_problem(artifact)
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
