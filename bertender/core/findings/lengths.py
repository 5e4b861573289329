"""Findings on texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from bertender.core.findings.part import Part

__all__ = ["LengthFindings", "TextLengths"]


class TextLengths(Part):
    """How many of some texts are longer than a model reads, and the longest of all."""

    texts: int
    longer: int = Field(description="how many have more tokens than the model reads")
    longest: int = Field(description="tokens of the longest text")

    @classmethod
    def of(cls, counts: Sequence[int], max_length: int) -> Self:
        """Count those of more than `max_length` tokens.

        Args:
            counts: tokens of each text, uncut.
            max_length: that the model reads.
        """
        longer = sum(count > max_length for count in counts)
        return cls(texts=len(counts), longer=longer, longest=max(counts, default=0))

    def in_words(self, kind: str, max_length: int) -> str:
        """Return a line about texts of a kind, such as "held-out", that were truncated."""
        return (
            f"{self.longer} of {self.texts} {kind} texts are longer than {max_length} tokens and "
            f"were cut; the longest has {self.longest}"
        )


class LengthFindings(Part):
    """Lengths of the texts that a model was trained and scored on."""

    max_length: int = Field(description="tokens that the model reads of a text")
    training: TextLengths
    held_out: TextLengths

    def lines(self) -> list[str]:
        """Return a line for the training texts, and one for the others, where some were cut."""
        kinds = {"training": self.training, "held-out": self.held_out}
        return [
            lengths.in_words(kind, self.max_length)
            for kind, lengths in kinds.items()
            if lengths.longer
        ]
