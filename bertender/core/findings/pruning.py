"""Findings of a pruning: what was cut, what remained, and its scores."""

from __future__ import annotations

from pydantic import Field

from bertender.core.findings.part import Part
from bertender.core.machine_load import MachineLoad
from bertender.core.speedup import Speedup

__all__ = [
    "LatencyFindings",
    "LatencyLoad",
    "LatencyTimes",
    "PartTimes",
    "PruningFindings",
    "PruningRound",
    "RescaledPart",
    "VocabularyFindings",
    "VocabularyReading",
]


class RescaledPart(Part):
    """Effect of rescaling one part of a layer on its output."""

    layer: int
    part: str
    error_before: float = Field(
        description="squared distance to the unpruned model's output, over its own square"
    )
    error_after: float


class PruningRound(Part):
    """Heads and neurons that remained after a round. Scores are on the texts to choose by."""

    heads: tuple[int, ...] = Field(description="how many remain, by layer")
    neurons: tuple[int, ...] = Field(description="how many remain, by layer")
    score_after_cut: float = Field(description="before recovery or rescaling")
    score: float
    head_importance: tuple[tuple[float, ...], ...] | None = Field(
        None, description="layers x heads before the cut; None where heads were not compared"
    )
    remaining_heads: tuple[tuple[int, ...], ...] | None = Field(
        None, description="numbers of the heads in the unpruned model, by layer"
    )
    rescaled: tuple[RescaledPart, ...] | None = None


class VocabularyReading(Part):
    """Figures of a tokenizer on some texts."""

    entries: int = Field(description="of the vocabulary")
    pieces_per_text: float
    unknown: float = Field(description="share of the tokens that are unknown")


class VocabularyFindings(Part):
    """Figures of held-out texts before and after the vocabulary was cut."""

    before: VocabularyReading
    after: VocabularyReading
    whole_words: float | None = Field(
        None, description="share of the words whose tokens all stay; None in older cards"
    )


class LatencyLoad(Part):
    """Batches that are timed."""

    texts: int = Field(ge=1, description="of a batch")
    tokens: int = Field(ge=1, description="of each text")
    threads: int = Field(ge=1, description="of PyTorch")


class PartTimes(Part):
    """A part of a layer with a number of heads or neurons: a time each round."""

    count: int
    rounds_ms: tuple[float, ...]


class LatencyTimes(Part):
    """Times of a layer's parts by their size, and of everything else together."""

    load: LatencyLoad
    cpu_model: str
    attention: tuple[PartTimes, ...] = Field(description="by heads, up to the norm behind it")
    feed_forward: tuple[PartTimes, ...] = Field(description="by neurons, up to the norm behind it")
    rest_ms: tuple[float, ...] = Field(description="of a run outside the layers, a turn each")
    machine_load: MachineLoad | None = Field(
        None, description="while it was timed; of earlier tables not recorded"
    )


class LatencyFindings(Part):
    """Speed that a pruned model should reach, and its measured speed."""

    target: float = Field(description="how many times as fast")
    predicted: float = Field(description="by the table")
    measured: Speedup
    table: LatencyTimes


class PruningFindings(Part):
    """Findings of a pruning."""

    unpruned: float = Field(description="score of the unpruned model on the texts to choose by")
    rounds: tuple[PruningRound, ...] = Field(min_length=1)
    layers: tuple[int, ...] | None = Field(None, description="that remain, where some were dropped")
    vocabulary: VocabularyFindings | None = None
    latency: LatencyFindings | None = None
