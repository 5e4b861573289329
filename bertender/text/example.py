"""An example before any tokenizer."""

from __future__ import annotations

__all__ = ["Example"]

Example = tuple[str, ...]
"""The texts of one example: one, or two for a pair; of a task that labels words, the words."""
