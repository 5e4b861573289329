"""The records of a comparison: what `measure.compare` fills in and `bertender.report` shows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from bertender.core.config import Record, parts_of
from bertender.core.environment import Environment
from bertender.core.findings import ConstantFindings, TextLengths
from bertender.measure.accuracy import TOKENS_PER_BATCH
from bertender.measure.constant import ConstantRow
from bertender.measure.latency_records import Latency, LatencyConfig, of_one_process
from bertender.measure.load import MachineLoad
from bertender.measure.parity import ParitySummary
from bertender.measure.samples import Speedup
from bertender.measure.size import Size
from bertender.metrics.records import Change
from bertender.metrics.scores import Score
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, RuntimeName
from bertender.tasks.task import ChosenOn

__all__ = [
    "CompareConfig",
    "Comparison",
    "ComparisonRow",
    "Conditions",
    "Lengths",
    "LengthsRead",
    "PrunedHeads",
]


class CompareConfig(LatencyConfig):
    """Settings of `compare`: the timings, and the batches of the scoring."""

    runtime: Annotated[tuple[RuntimeName, ...], BeforeValidator(parts_of)] = Field(
        (DEFAULT_RUNTIME,),
        min_length=1,
        description="runtimes of onnx artifacts by commas, each a row where it suits: "
        + ", ".join(RUNTIMES),
    )
    tokens_per_batch: int = Field(
        TOKENS_PER_BATCH, ge=1, description="most tokens of a batch while scoring"
    )


class Lengths(Record):
    """Lengths of the texts, in words and in tokens of the first row's tokenizer."""

    mean_words: float
    max_words: int
    mean_tokens: float | None = Field(description="None when the first row reads words")
    max_tokens: int | None


class LengthsRead(Record):
    """How a row reads long texts."""

    max_length: int = Field(description="tokens that it reads of a text")
    held_out: TextLengths


class Conditions(Record):
    """Under what a comparison was measured: enough to judge it, or to measure it again."""

    measured_at: str = Field(description="date and time, UTC, ISO 8601")
    environment: Environment
    threads: int = Field(description="of PyTorch and every runtime alike")
    batch_texts: int = Field(description="texts in a timed batch")
    task: str
    metric: str
    labels: tuple[str, ...]
    n: int = Field(description="held-out examples that every row classified")
    task_fingerprint: str = Field(description="sha256 of the task's data")
    lengths: Lengths
    config: Annotated[CompareConfig, BeforeValidator(of_one_process)]
    load: MachineLoad | None = Field(
        None, description="while the rows were timed; None in files that do not record it"
    )
    chosen_on: tuple[ChosenOn, ...] | None = Field(
        None,
        description="where the settings of the rows were chosen; more than one where rows differ, "
        "empty where no row records it, as finished models do not; None in files that do not "
        "record it",
    )


class PrunedHeads(Record):
    """Remaining heads of a pruned model, and the importance of all heads before."""

    layers: tuple[int, ...] = Field(description="numbers of the layers that were not dropped")
    importance: tuple[tuple[float, ...], ...] = Field(description="a row each of these, of heads")
    kept: tuple[tuple[int, ...], ...] = Field(description="numbers of the remaining heads")


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
        description="row of RUNTIMES that ran it; None where it is not onnx, and in files that do "
        "not record it, which ONNX Runtime ran",
    )
    family: str
    stage: str
    precision: str
    seed: int
    size: Size
    score: Score
    change: Change | None = Field(description="against the first row; None in the first row")
    latency: Latency = Field(description="with raw samples, and the speedup over the first row")
    speedup_over_onnx_float32: Speedup | None = Field(
        None,
        description="over the row of the same model in ONNX Runtime float32, the change of runtime "
        "left out; None where the table has no such row",
    )
    parity: ParitySummary | None = Field(description="with its parent, from the card; else None")
    lengths: LengthsRead | None = Field(
        None,
        description="of the texts in the row's own tokens; None where it reads words, and in files "
        "that do not record it",
    )
    constant: ConstantFindings | None = Field(
        None,
        description="where it predicts one label for all held-out texts; None in files that do not "
        "record it, too",
    )
    pruned: PrunedHeads | None = Field(
        None, description="of a model whose heads were pruned, and of its export; else None"
    )


class Comparison(Record):
    """Artifacts compared. `model_dump_json` and `model_validate_json` keep all of it."""

    circumstances: Conditions
    rows: tuple[ComparisonRow, ...]
    constant: ConstantRow | None = Field(
        None, description="what needs no model; None in files that do not record it"
    )
    noise_floor: Latency | None = Field(
        None,
        description="the first row timed a second time, as a row of its own: its speedup is what "
        "chance alone makes; None where it was not",
    )
