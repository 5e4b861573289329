"""How long batches take, by what earlier ones took, so that none is longer than callers wait."""

from __future__ import annotations

import math

__all__ = ["RunTime"]

WEIGHT = 0.2
"""Of the last batch in the average."""


class RunTime:
    """A running average of the seconds of a character.

    Texts are not tokenised yet when a batch is put together; their characters are known. The time
    of a batch that does not depend on its texts is in the average too, so that small batches allow
    fewer characters than there is time for.
    """

    def __init__(self) -> None:
        self.seconds_per_character = 0.0

    def measured(self, characters: int, seconds: float) -> None:
        """Learn from a batch."""
        if characters:
            change = seconds / characters - self.seconds_per_character
            self.seconds_per_character += change * (WEIGHT if self.seconds_per_character else 1.0)

    def characters_within(self, seconds: float) -> float:
        """Return how many characters are expected to take so long; no bound before any batch."""
        return seconds / self.seconds_per_character if self.seconds_per_character else math.inf
