"""Candidates: every chain that the settings allow, as data.

A candidate is a start, a depth, what pruning cuts, and a way to quantize. What it is made of is
all that its bytes and its time depend on; what it learns decides its score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.core.config import Record

__all__ = ["Candidate", "Start", "all_candidates"]

DEPTHS = (1, 2, 3, 4, 6, 12)


class Start(Record):
    """An encoder that a student takes its first layers from."""

    name: str
    layers: int = Field(description="all that it has")
    encoder: str | None = Field(None, description="None: the teacher's own layers")


class Candidate(Record):
    """A chain of steps, from the teacher to a quantized model."""

    start: Start
    layers: int
    heads: float = Field(description="share of the heads to cut")
    ffn: float = Field(description="share of the feed-forward neurons to cut")
    vocab: bool = Field(description="whether the vocabulary is cut to what the texts need")
    scheme: str

    @property
    def name(self) -> str:
        """A name for tables and folders."""
        return f"{self.shape_name}-{self.scheme}"

    @property
    def shape_name(self) -> str:
        """The name without the scheme: of what is trained."""
        cuts = [f"{part}-{100 * share:g}" for part, share in self._cuts() if share]
        vocab = ["vocab"] if self.vocab else []
        return "-".join([self.start.name, str(self.layers), *cuts, *vocab])

    @property
    def is_distilled(self) -> bool:
        """Whether a student is trained; the teacher itself is only pruned and quantized."""
        return self.start.encoder is not None or self.layers < self.start.layers

    @property
    def is_pruned(self) -> bool:
        """Whether anything is cut."""
        return bool(self.heads or self.ffn or self.vocab)

    @property
    def remaining(self) -> float:
        """The layers' weights that remain, in whole layers: a third is attention's."""
        return self.layers * ((1 - self.heads) / 3 + 2 * (1 - self.ffn) / 3)

    def _cuts(self) -> Iterator[tuple[str, float]]:
        yield "heads", self.heads
        yield "ffn", self.ffn


def all_candidates(
    starts: Sequence[Start], config: CompressConfig, *, vocab: bool = True
) -> list[Candidate]:
    """Return every candidate that the settings allow.

    Args:
        starts: what students may start from.
        config: depths, shares and schemes.
        vocab: whether the vocabulary of this task's models can be cut.
    """
    return [
        Candidate(start=start, layers=layers, heads=heads, ffn=ffn, vocab=cut, scheme=scheme)
        for start in starts
        for layers in _depths(start, config)
        for heads, ffn, cut, scheme in product(
            config.heads, config.ffn, (False, True) if vocab else (False,), config.schemes
        )
    ]


def _depths(start: Start, config: CompressConfig) -> list[int]:
    wanted = config.layers or (*DEPTHS, start.layers)
    return sorted({layers for layers in wanted if 1 <= layers <= start.layers})
