"""The records of a comparison, and the figures computed from its raw samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from bertender.comparison.accuracy import TOKENS_PER_BATCH, ConstantRow
from bertender.core.artifact import Artifact
from bertender.core.config import Config, Record, parts_of, read_record
from bertender.core.errors import DataError
from bertender.core.findings import (
    ChosenOn,
    ConstantFindings,
    ParitySummary,
    ProductCheck,
    Reliability,
    SensitivityFindings,
    TextLengths,
)
from bertender.core.machine import Environment, MachineLoad, Speedup
from bertender.metrics.metric import AllScores, Change, Score
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, RuntimeName

RESAMPLES = 1000

Rounds = Sequence[Sequence[float]]
"""Milliseconds in a process, rounds x texts."""


class LatencyConfig(Config):
    """Settings of a timing: its size, and the number of threads."""

    panel: ClassVar[str] = "Timing"

    single_texts: int = Field(50, ge=1, description="texts timed one by one in a round")
    batch_size: int = Field(32, ge=1, description="texts of the timed batch, of mixed lengths")
    processes: int = Field(
        3,
        ge=1,
        description="repetitions in fresh processes, one for each engine; a speedup's interval is "
        "over them and their rounds; 1: once, in this process",
    )
    rounds: int = Field(4, ge=2, description="timed rounds of each process")
    warmup_rounds: int = Field(1, ge=0, description="whole rounds before the first timed one")
    warmup_texts: int = Field(5, ge=0, description="untimed texts at the start of every turn")
    threads: int = Field(0, ge=0, description="of PyTorch and every runtime alike; 0: every core")
    seed: int = Field(0, ge=0, description="which texts are drawn")
    noisy: bool = Field(
        False, description="time on a busy machine as well, and mark the figures as noisy"
    )


class CompareConfig(LatencyConfig):
    """Settings of `compare`: timings, and batches for scoring."""

    panel: ClassVar[str] = "Timing"
    main: ClassVar[tuple[str, ...]] = ("runtime", "threads", "batch_size", "processes", "noisy")

    runtime: Annotated[tuple[RuntimeName, ...], BeforeValidator(parts_of)] = Field(
        (DEFAULT_RUNTIME,),
        min_length=1,
        description="runtimes of onnx artifacts by commas, each a row where it suits: "
        + ", ".join(RUNTIMES),
    )
    tokens_per_batch: int = Field(
        TOKENS_PER_BATCH, ge=1, description="most tokens of a batch while scoring"
    )
    disagreements: int = Field(
        10,
        ge=0,
        description="texts to save for each row, those on which it is furthest from the first; 0 "
        "for none, where texts must not leave this machine",
    )


class Percentiles(Record):
    """Percentiles of one row's samples, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


class Latency(Record):
    """One classifier's times. Times by process are raw; everything else is computed from them."""

    name: str
    single: Percentiles = Field(description="one text at its natural length, tokenised and run")
    batch: Percentiles = Field(description="one batch, padded to its longest, tokenised and run")
    texts_per_second: float = Field(description="texts of all timed batches over their time")
    speedup: Speedup = Field(description="over the first row: single texts, by medians of rounds")
    single_ms: tuple[tuple[tuple[float, ...], ...], ...] = Field(
        description="raw: processes x rounds x texts"
    )
    batch_ms: tuple[tuple[float, ...], ...] = Field(
        description="raw: processes x rounds, a batch each"
    )

    @property
    def batch_rounds_ms(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Batch times in the shape of single texts: processes x rounds x 1."""
        return tuple(tuple((value,) for value in rounds) for rounds in self.batch_ms)


class LatencyReport(Record):
    """Interleaved measurements and their settings."""

    config: LatencyConfig
    threads: int = Field(description="that `config.threads` resolved to")
    batch_texts: int = Field(description="texts in a batch; fewer than asked in a small split")
    rows: tuple[Latency, ...]
    noise_floor: Latency | None = Field(
        None, description="the first row, opened and timed a second time; None where it was not"
    )
    load: MachineLoad = Field(description="of the busiest process")


def percentiles(samples_ms: npt.NDArray[np.float64]) -> Percentiles:
    """Return the 50th, 95th and 99th percentile of some times."""
    p50, p95, p99 = np.percentile(samples_ms, [50, 95, 99])
    return Percentiles(p50_ms=float(p50), p95_ms=float(p95), p99_ms=float(p99))


def speedup(reference_ms: Rounds, candidate_ms: Rounds, seed: int = 0) -> Speedup:
    """Return the median over rounds of the ratio of round medians, and its bootstrap interval.

    Args:
        reference_ms: rounds x texts of the reference.
        candidate_ms: the same rounds of the candidate.
        seed: seed of the resampled rounds.
    """
    return speedup_over_processes([reference_ms], [candidate_ms], seed)


def speedup_over_processes(
    reference_ms: Sequence[Rounds], candidate_ms: Sequence[Rounds], seed: int = 0
) -> Speedup:
    """Return the median over processes of `speedup` in each, and its bootstrap interval.

    Resamples draw processes first, then rounds within them, since all rounds of a process share its
    luck (memory layout, thread placement). Resamples of so few processes spread too little, by the
    root of (n - 1) / n: the interval is widened by that factor.

    Args:
        reference_ms: processes x rounds x texts of the reference.
        candidate_ms: the same for the candidate.
        seed: seed of the resampled processes and rounds.
    """
    ratios = np.array(
        [
            np.median(reference, axis=1) / np.median(candidate, axis=1)
            for reference, candidate in zip(reference_ms, candidate_ms, strict=True)
        ]
    )  # (processes, rounds)
    value = float(np.median(np.median(ratios, axis=1)))
    count, rounds = ratios.shape
    generator = np.random.default_rng(seed)
    processes = generator.integers(0, count, (RESAMPLES, count))
    draws = generator.integers(0, rounds, (RESAMPLES, count, rounds))
    resampled = ratios[processes[:, :, None], draws]  # (resamples, processes, rounds)
    spread = np.median(np.median(resampled, axis=2), axis=1) / value  # (resamples,)
    widened = spread ** math.sqrt(count / (count - 1)) if count > 1 else spread
    low, high = np.percentile(value * widened, [2.5, 97.5])
    return Speedup(value=value, low=float(low), high=float(high))


class Size(Record):
    """Size of a model on disk, from its card."""

    parameters: int | None = Field(description="None where the card does not hold it")
    model_size_bytes: int = Field(description="weights and graph alone")
    artifact_size_bytes: int = Field(description="with tokenizer and configs: what is deployed")

    @property
    def millions(self) -> float | None:
        """The parameters in millions."""
        return None if self.parameters is None else self.parameters / 1e6


def measure_size(artifact: Artifact, parameters: int | None) -> Size:
    """Return the sizes of an artifact; `parameters` is None if unknown."""
    card = artifact.card
    return Size(
        parameters=parameters,
        model_size_bytes=card.model_size_bytes,
        artifact_size_bytes=sum(record.size_bytes for record in card.files.values()),
    )


class Lengths(Record):
    """Lengths of the texts, in words and in tokens of the first row's tokenizer."""

    mean_words: float
    max_words: int
    mean_tokens: float | None = Field(description="None when the first row reads words")
    max_tokens: int | None


class LengthsRead(Record):
    """Lengths of the texts as a row's model reads them."""

    max_length: int = Field(description="tokens that it reads of a text, or of a window")
    held_out: TextLengths
    windows: bool = Field(False, description="longer ones are read in windows, and not cut")


class Conditions(Record):
    """Conditions of a comparison: enough to judge it, or to repeat it."""

    measured_at: str = Field(description="date and time, UTC, ISO 8601")
    environment: Environment
    threads: int = Field(description="of PyTorch and every runtime alike")
    batch_texts: int = Field(description="texts in a timed batch")
    task: str
    metric: str
    labels: tuple[str, ...]
    n: int = Field(description="held-out examples that every row classified")
    task_fingerprint: str = Field(description="sha256 of the task's data")
    source: dict[str, Any] = Field(description="settings of the task")
    lengths: Lengths
    config: CompareConfig
    load: MachineLoad = Field(description="while the rows were timed")
    chosen_on: tuple[ChosenOn, ...] = Field(
        description="where the settings of the rows were chosen; more than one where rows differ, "
        "empty where no row records it, as finished models do not",
    )


class PrunedHeads(Record):
    """Remaining heads of a pruned model, and the importance of all heads before."""

    layers: tuple[int, ...] = Field(description="numbers of the layers that were not dropped")
    importance: tuple[tuple[float, ...], ...] = Field(description="a row each of these, of heads")
    kept: tuple[tuple[int, ...], ...] = Field(description="numbers of the remaining heads")


class Ancestor(Record):
    """An ancestor of a row's artifact, or that artifact."""

    place: str = Field(description="path, or hub name; of one that is missing, why")
    missing: bool = False
    digest: str = ""
    parent: str | None = Field(None, description="digest of the one that it was made from")
    stage: str = ""
    kind: str = ""
    precision: str = ""
    config: dict[str, Any] = Field(default_factory=dict, description="settings of its stage")
    source: dict[str, Any] = Field(default_factory=dict, description="settings of its task")
    calibrated_by: str | None = Field(None, description="method; None of a calibration inherited")
    calibrated_on: dict[str, Any] = Field(
        default_factory=dict, description="settings of the task of that calibration"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="of the libraries")


class Confused(Record):
    """Texts with one true label and one predicted label."""

    truth: int = Field(description="number of the label")
    predicted: int
    texts: int


class Disagreement(Record):
    """A held-out text on which a row differs from the first row."""

    text: str = Field(description="the beginning of it, where it is long")
    truth: str
    first: str = Field(description="prediction of the first row")
    own: str
    distance: float = Field(
        description="of the outputs: KL divergence of the first row's probabilities from the row's,"
        " or the squared difference of numbers"
    )


class CascadeFindings(Record):
    """A small model, a strong one for texts on which it is not confident, and the threshold."""

    small: str = Field(description="row of the small model")
    strong: str
    threshold: float = Field(description="probability of its least probable decision about a text")
    chosen_on: int = Field(description="validation texts that the threshold was chosen on")
    score: float = Field(description="of the cascade on these")
    strong_score: float = Field(description="of the strong model on these")
    passed_on: float = Field(description="share of the held-out texts that the strong one answers")


class ComparisonRow(Record):
    """One artifact, measured."""

    name: str
    digest: str
    parent: str | None = Field(
        None, description="digest of what it was made from; None where that is not recorded"
    )
    kind: str
    runtime: str | None = Field(
        None,
        description="row of RUNTIMES that ran it; None where it is not onnx",
    )
    family: str
    stage: str
    precision: str
    seed: int
    size: Size
    score: Score
    scores: AllScores = Field(description="by every metric of the problem type, and of each label")
    reliability: Reliability | None = Field(
        None, description="of its probabilities on the held-out texts; None where there are none"
    )
    cascade: CascadeFindings | None = Field(
        None, description="where two models answer; None of one model"
    )
    calibration: str | None = Field(
        None,
        description="the method of its calibration, and of an inherited one that it is; None "
        "without one",
    )
    change: Change | None = Field(
        description="against the first row; None in the first row, and where a score is undefined"
    )
    latency: Latency = Field(description="with raw samples, and the speedup over the first row")
    speedup_over_onnx_float32: Speedup | None = Field(
        None,
        description="over the row of the same model in ONNX Runtime float32, the change of runtime "
        "left out; None where the table has no such row",
    )
    parity: ParitySummary | None = Field(description="with its parent, from the card; else None")
    lengths: LengthsRead | None = Field(
        None,
        description="of the texts in the row's own tokens; None where it reads words",
    )
    constant: ConstantFindings | None = Field(
        None, description="where it predicts one label for all held-out texts"
    )
    further: dict[str, Score] = Field(
        default_factory=dict,
        description="on the held-out texts of other tasks, as MNLI's mismatched ones, by task",
    )
    pruned: PrunedHeads | None = Field(
        None, description="of a model whose heads were pruned, and of its export; else None"
    )
    lineage: tuple[Ancestor, ...] = Field(
        description="the row's artifact, then those it was made from"
    )
    confusion: tuple[Confused, ...] | None = Field(
        None, description="by label; None where a text has not one label"
    )
    disagreements: tuple[Disagreement, ...] | None = Field(
        None, description="the largest first; None in the first row, and of vectors"
    )
    sensitivity: SensitivityFindings | None = Field(
        None, description="of products to 8 bits, from the card; None where it was not measured"
    )
    products: ProductCheck | None = Field(
        None, description="of quantized products, from the card; None of other models"
    )


class Comparison(Record):
    """A comparison of artifacts. `model_dump_json` and `model_validate_json` round-trip all of
    it."""

    circumstances: Conditions
    rows: tuple[ComparisonRow, ...]
    constant: ConstantRow = Field(description="what needs no model")
    noise_floor: Latency = Field(
        description="the first row timed a second time, as a row of its own: its speedup is what "
        "chance alone makes",
    )
    timed_lengths: tuple[tuple[tuple[int, ...], ...], ...] = Field(
        description="of the single texts that were timed, processes x rounds x texts: tokens of "
        "the first row, words where it reads words",
    )


def read_comparison(path: Path) -> Comparison:
    """Return a saved comparison.

    Raises:
        DataError: the file cannot be read, or is not a comparison.
    """
    try:
        return read_record(Comparison, path)
    except ValueError as reason:
        raise DataError(
            f"{path} is not a saved comparison ({reason}). Give a file of "
            "`bertender compare --out`."
        ) from None


def onnx_float32_of(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """Return the first float32 graph among the rows that is the same model as `row`, or None.

    This is the row itself, the graph that it was quantized from, the graph that it was exported to,
    or another export of its source model (8 bits straight from PyTorch, float16). A student is not
    the same model as its parent, the teacher.
    """
    graphs = [
        each
        for each in rows
        if (each.kind, each.precision) == ("onnx", "float32")
        and each.runtime in (None, DEFAULT_RUNTIME)
    ]
    related: tuple[Callable[[ComparisonRow], bool], ...] = (
        lambda graph: graph.digest == row.digest,
        lambda graph: graph.digest == row.parent,
        lambda graph: graph.parent == row.digest,
        lambda graph: (
            row.kind == "onnx" and graph.parent is not None and graph.parent == row.parent
        ),
    )
    return next((graph for is_same in related for graph in graphs if is_same(graph)), None)


def with_speedups_over_onnx_float32(
    rows: Sequence[ComparisonRow], seed: int
) -> tuple[ComparisonRow, ...]:
    """Return the rows, each with its speedup over its own float32 graph if there is such a row.

    A change of runtime, from PyTorch to ONNX Runtime, is worth about as much as a change of the
    model; this speedup excludes it.
    """
    made = []
    for row in rows:
        if graph := onnx_float32_of(row, rows):
            over = speedup_over_processes(graph.latency.single_ms, row.latency.single_ms, seed)
            row = row.model_copy(update={"speedup_over_onnx_float32": over})
        made.append(row)
    return tuple(made)
