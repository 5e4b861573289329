"""Augmentation: how one text becomes another, and which texts of a pair are rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.augmentation.language_models import LanguageModel


__all__ = ["Augmentation", "Material", "Rewrite"]

Rewrite = Callable[[str, np.random.Generator], str]
"""(text, what to draw from) -> another text, or the same where nothing was drawn"""


@dataclass(frozen=True)
class Material:
    """Sources of an augmentation's words."""

    texts: tuple[str, ...]
    """Every distinct text that is to be rewritten."""
    teacher: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    """The teacher's."""
    language_model: LanguageModel | None = None
    bf16: bool = False
    """Compute in bf16, as the run that learns from the texts does."""


@dataclass(frozen=True)
class Augmentation:
    """A row of AUGMENTATIONS."""

    name: str
    summary: str
    paper: str
    rewriter: Callable[[Material], Rewrite]
    copies: int
    """Of each text, where the config gives no number."""
    pair_turns: tuple[tuple[bool, bool], ...] = ((True, True),)
    """Which texts of a pair a copy rewrites; the copies take the turns one after another."""
    asks_language_model: bool = False
    """It takes words from a masked language model where there is one."""
    writes_mask: bool = False
    """Its texts hold the teacher's mask token."""
