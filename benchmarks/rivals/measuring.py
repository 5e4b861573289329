"""Measures RIVALS: what they predict, then their times in turns, a process for each row."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.environments import python_of
from benchmarks.rivals.libraries import RIVALS, Rival
from benchmarks.rivals.records import RivalBenchmark, RivalResults, RivalRow
from bertender.comparison.compare import row_names
from bertender.comparison.latency import (
    ROOT,
    LineProcess,
    TakeTurn,
    Turn,
    drawn_texts,
    line_process,
    threads_of,
    time_in_turns,
)
from bertender.comparison.records import LatencyConfig, LatencyReport
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.core.progress import progress_bar, track
from bertender.metrics.scores import score
from bertender.tasks.task import Task

__all__ = ["Contest", "Entry", "entries_of"]

FloatArray = npt.NDArray[np.float64]

BATCH = 32
"""Examples of a call while predicting."""
TRIES = 2
"""Of a row that fails while it is timed: memory may be short once."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "true",
}


@dataclass(frozen=True)
class Entry:
    """A rival and an artifact that it reads."""

    name: str
    rival: str
    artifact: Artifact

    @property
    def row(self) -> Rival:
        """The row of RIVALS."""
        return RIVALS[self.rival]

    @property
    def precision(self) -> str:
        """The precision that it is set to compute in."""
        return self.row.computes_in(self.artifact.card.precision)


def entries_of(rivals: Sequence[str], artifacts: Sequence[Artifact]) -> list[Entry]:
    """Return an entry for each rival and artifact that it reads, in the order of the rivals.

    Raises:
        ConfigError: two artifacts have one name.
    """
    names = dict(zip((each.path for each in artifacts), row_names(artifacts), strict=True))
    if len({*names.values()}) < len(artifacts):
        raise ConfigError("two artifacts have one name: give each folder a name of its own.")
    entries = []
    for rival in rivals:
        read = [each for each in artifacts if each.card.kind == RIVALS[rival].reads]
        for artifact in read:
            name = rival if len(read) == 1 else f"{rival} {names[artifact.path]}"
            entries.append(Entry(name, rival, artifact))
    return entries


class _RowError(Exception):
    """A row has failed while it was opened or timed."""

    def __init__(self, name: str, error: ModelError) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


@contextmanager
def _of_row(name: str) -> Iterator[None]:
    """Name the row of an error that is raised in the block."""
    try:
        yield
    except ModelError as error:
        raise _RowError(name, error) from error


class Contest:
    """Entries on the held-out texts of a task.

    Args:
        entries: the first that opens is the reference.
        task: of single texts or of pairs.
        benchmark: its settings.
        environments: folder of the environments of rivals.
    """

    def __init__(
        self, entries: Sequence[Entry], task: Task, benchmark: RivalBenchmark, environments: Path
    ) -> None:
        self.entries = {each.name: each for each in entries}
        self.task = task
        self.benchmark = benchmark
        self.environments = environments

    @property
    def config(self) -> LatencyConfig:
        """Settings of the timings."""
        return self.benchmark.config

    def predictions(self) -> RivalResults:
        """Open every entry and compare what it predicts; one that does not open is absent.

        Raises:
            ModelError: none opens.
        """
        rows: list[RivalRow] = []
        absent: dict[str, str] = {}
        reference: FloatArray | None = None
        with progress_bar("predict", len(self.entries)) as bar:
            for entry in self.entries.values():
                bar.note(entry.name)
                try:
                    versions, probabilities = self._predicted(entry)
                except ModelError as error:
                    absent[entry.name] = self._reason(error)
                else:
                    reference = probabilities if reference is None else reference
                    rows.append(self._row(entry, versions, probabilities, reference))
                bar.advance()
        if not rows:
            raise ModelError(f"no rival opens a model: {json.dumps(absent)}")
        return RivalResults(rows=tuple(rows), absent=absent, repetitions=())

    def timed(self, results: RivalResults) -> Iterator[RivalResults]:
        """Yield the results with each repetition that is missing, one after another.

        A repetition in which a row fails is made again. A row that fails twice in a run becomes
        absent, and the repetition is made without it.

        Raises:
            ModelError: the reference fails twice.
        """
        failures: Counter[str] = Counter()
        while len(results.repetitions) < self.config.processes:
            try:
                report = self._repetition(results)
            except _RowError as failed:
                failures[failed.name] += 1
                if failures[failed.name] < TRIES:
                    continue
                if failed.name == results.rows[0].name:
                    raise failed.error from None
                results = results.without(failed.name, self._reason(failed.error))
            else:
                repetitions = (*results.repetitions, report)
                results = results.model_copy(update={"repetitions": repetitions})
            yield results

    def _repetition(self, results: RivalResults) -> LatencyReport:
        """Time all rows in turns, in fresh processes."""
        names = [row.name for row in results.rows]
        names.append(names[0])  # timed twice: its ratio to itself is the noise floor
        texts, number = len(self.task.dev.examples), len(results.repetitions)
        with self._taking_turns(names, number) as take:
            report = time_in_turns(names, take, texts, self.config, process=number)
        *rows, again = report.rows
        return report.model_copy(update={"rows": tuple(rows), "noise_floor": again})

    @contextmanager
    def _taking_turns(self, names: Sequence[str], process: int) -> Iterator[TakeTurn]:
        """Open entries in a process each until the block ends; they share the texts of a round."""
        with ExitStack() as stack:
            opened = []
            for name in track(names, "open", len(names)):
                with _of_row(name):
                    opened.append(stack.enter_context(self._opened(self.entries[name]))[1])

            def take(row: int, number: int) -> Turn:
                singles, batch = drawn_texts(self.task.dev.examples, self.config, process, number)
                asked = {
                    "singles": singles,
                    "batch": batch,
                    "warmup": self.config.warmup_texts,
                }
                with _of_row(names[row]):
                    single_ms, batch_ms = json.loads(opened[row].ask(json.dumps(asked)))
                return Turn(tuple(single_ms), batch_ms)

            yield take

    @contextmanager
    def _opened(self, entry: Entry) -> Iterator[tuple[dict[str, str], LineProcess]]:
        """Open an entry in a process of its own; give the versions of its packages, too.

        Raises:
            ModelError: it cannot be installed, or cannot open the model.
        """
        row, threads = entry.row, threads_of(self.config)
        request = {
            "opens": row.opens,
            "folder": str(entry.artifact.path.resolve()),
            "threads": threads,
            "max_length": self.benchmark.max_length,
            "settings": dict(row.settings),
            "packages": row.packages,
        }
        counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
        with line_process(
            "benchmarks.rivals.worker",
            entry.name,
            python=python_of(row.requirements, self.environments, row.unwanted),
            variables={**OFFLINE, **counts},
        ) as process:
            yield json.loads(process.ask(json.dumps(request))), process

    def _predicted(self, entry: Entry) -> tuple[dict[str, str], FloatArray]:
        """Return the versions of an entry's packages, and its probabilities (examples, labels)."""
        examples = self.task.dev.examples
        rows: list[Any] = []
        with self._opened(entry) as (versions, process):
            for start in range(0, len(examples), BATCH):
                asked = {"predict": examples[start : start + BATCH]}
                rows += json.loads(process.ask(json.dumps(asked)))
        probabilities = np.array(rows, np.float64)
        wanted = (len(examples), len(self.task.labels))
        if probabilities.shape != wanted or not np.isfinite(probabilities).all():
            raise ModelError(
                f"{entry.name} predicts {probabilities.shape}, must be {wanted}, finite"
            )
        return versions, probabilities

    def _row(
        self,
        entry: Entry,
        versions: dict[str, str],
        probabilities: FloatArray,
        reference: FloatArray,
    ) -> RivalRow:
        labels = probabilities.argmax(axis=1)
        count = len(self.task.labels)
        return RivalRow(
            name=entry.name,
            rival=entry.rival,
            artifact=entry.artifact.name,
            precision=entry.precision,
            versions=versions,
            score=score("accuracy", self.task.dev.label_ids, labels, label_count=count),
            agreement=float((labels == reference.argmax(axis=1)).mean()),
            max_probability_difference=float(np.abs(probabilities - reference).max()),
        )

    def _reason(self, error: ModelError) -> str:
        """Return a message without the places of this machine."""
        reason = str(error)
        for entry in self.entries.values():
            reason = reason.replace(str(entry.artifact.path.resolve()), entry.artifact.name)
        for place, words in self._places().items():
            reason = reason.replace(str(place), words)
        return reason

    def _places(self) -> dict[str | Path, str]:
        """Return folders of this machine, the innermost first, and what to write for them."""
        return {
            self.environments.resolve(): "ENVIRONMENTS",
            sys.prefix: "PYTHON",
            ROOT: "bertender",
            tempfile.gettempdir(): "TEMPORARY",
            Path.home(): "HOME",
        }
