"""OBJECTIVES: what a pre-training run minimises, by name; one objective a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import UnknownNameError
from bertender.core.training import Objective
from distill.objectives.masked_language_model import MaskedLanguageModel, masked_model

__all__ = ["OBJECTIVES", "PretrainingObjective", "objective_named"]


@dataclass(frozen=True)
class PretrainingObjective:
    """A row of OBJECTIVES."""

    summary: str
    paper: str
    model: Callable[[PretrainedConfig], PreTrainedModel]
    objective: Callable[[PreTrainedTokenizerBase, float, int], Objective]
    """(tokenizer, share of tokens to predict, seed) -> objective"""


OBJECTIVES: Mapping[str, PretrainingObjective] = {
    "mlm": PretrainingObjective(
        summary="predict masked tokens, masked anew in every epoch",
        paper="Devlin et al. 2018, arXiv 1810.04805; dynamic masking of Liu et al. 2019",
        model=masked_model,
        objective=MaskedLanguageModel,
    ),
}


def objective_named(name: str) -> PretrainingObjective:
    """Return a row of OBJECTIVES, or raise UnknownNameError with the nearest name."""
    if name not in OBJECTIVES:
        raise UnknownNameError("pre-training objective", name, OBJECTIVES)
    return OBJECTIVES[name]
