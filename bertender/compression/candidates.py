"""Candidates: every chain that the settings allow, as data.

A candidate is a start, a depth, what pruning cuts, and a variant: how it is quantized and run. What
it is made of is all that its bytes and its time depend on; what it learns decides its score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.compression.variants import Variant, variants_of
from bertender.core.config import Record

__all__ = ["Candidate", "Start", "all_candidates"]

DEPTHS = (1, 2, 3, 4, 6, 12)


class Start(Record):
    """Where a student begins: with the first layers of an encoder, or as a kind without layers."""

    name: str
    layers: int = Field(description="all that it has; 0 of a kind without layers")
    encoder: str | None = Field(None, description="None: the teacher's own layers, or none")
    method: str | None = Field(
        None, description="of `bertender methods`; None: what the start has by default"
    )
    fewest_layers: int = Field(1, description="of a student of it")
    most_layers: int | None = Field(None, description="of a student of it; None: all that it has")
    least_entries: int = Field(0, description="of its vocabulary, that stay whatever is cut")


class Candidate(Variant):
    """A chain of steps, from the teacher to a quantized model.

    The variant's fields are its own, as saved reports have them.
    """

    start: Start
    layers: int
    heads: float = Field(description="share of the heads to cut")
    ffn: float = Field(description="share of the feed-forward neurons to cut")
    vocab: bool = Field(description="whether the vocabulary is cut to what the texts need")

    @property
    def name(self) -> str:
        """A name for tables and folders."""
        return f"{self.shape_name}-{self.variant_name}"

    @property
    def shape_name(self) -> str:
        """The name without the variant: of what is trained."""
        cuts = [f"{part}-{100 * share:g}" for part, share in self._cuts() if share]
        vocab = ["vocab"] if self.vocab else []
        depth = [str(self.layers)] if self.layers else []
        return "-".join([self.start.name, *depth, *cuts, *vocab])

    @property
    def is_distilled(self) -> bool:
        """Whether a student is trained; the teacher itself is only pruned and quantized."""
        start = self.start
        return start.encoder is not None or not start.layers or self.layers < start.layers

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
        config: depths, shares, schemes and runtimes.
        vocab: whether the vocabulary of this task's models can be cut.

    Raises:
        ConfigError: a scheme or a runtime that is named goes with none of the others.
    """
    variants = variants_of(config)
    return [
        Candidate(start=start, layers=layers, heads=heads, ffn=ffn, vocab=cut, **dict(variant))
        for start in starts
        for layers in _depths(start, config)
        for heads, ffn, cut, variant in product(
            config.heads if layers else (0.0,),
            config.ffn if layers else (0.0,),
            (False, True) if vocab else (False,),
            variants,
        )
    ]


def _depths(start: Start, config: CompressConfig) -> list[int]:
    if not start.layers:
        return [0]
    wanted = config.layers or (*DEPTHS, start.layers)
    deepest = start.layers if start.most_layers is None else start.most_layers
    return sorted({layers for layers in wanted if start.fewest_layers <= layers <= deepest})
