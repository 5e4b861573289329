"""Multiple-choice heads as sequence classification heads with one output.

A model `...ForMultipleChoice` reads each choice with its question, and its head gives the pair one
score. The head of `...ForSequenceClassification` with one output computes the same function of the
same weights, in evaluation mode; CHOICE_HEADS maps the names of its layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from bertender.core.errors import ModelError

SAME: Mapping[str, str] = {}
"""Pooler, dropout and one linear layer, under the same names."""
POOLER_FIRST = {"{base}.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
"""The pooler (a linear layer and tanh over the first token) belongs to the other head."""

CHOICE_HEADS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("albert", "bert", "deberta-v2", "distilbert", "mobilebert"), SAME),
    **dict.fromkeys(("camembert", "mpnet", "roberta", "xlm-roberta"), POOLER_FIRST),
    "electra": {
        "sequence_summary.summary.": "classifier.dense.",
        "classifier.": "classifier.out_proj.",
    },
}
"""By model type: prefixes of weights in both heads; `{base}` is the encoder."""


def check_choice_head(model_type: str, source: str) -> None:
    """Raise ModelError for a model type whose multiple-choice head is not in CHOICE_HEADS."""
    if model_type not in CHOICE_HEADS:
        raise ModelError(
            f"{source} scores choices by the head of a {model_type!r} model, which has no equal "
            "that gives a text one value, as far as was compared. Known: "
            f"{', '.join(sorted(CHOICE_HEADS))}."
        )


def scorer_of(choices: PreTrainedModel) -> PreTrainedModel:
    """Return a multiple-choice model as a sequence classification model with one output.

    Raises:
        ModelError: the weights do not fit the other head.
    """
    from transformers import AutoModelForSequenceClassification

    config: Any = copy.deepcopy(choices.config)
    config.num_labels = 1
    scorer: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    renamed = {
        before.format(base=choices.base_model_prefix): after
        for before, after in CHOICE_HEADS[config.model_type].items()
    }
    weights = {}
    for name, weight in choices.state_dict().items():
        start = next((each for each in renamed if name.startswith(each)), "")
        weights[renamed.get(start, "") + name.removeprefix(start)] = weight
    wrong = scorer.load_state_dict(weights, strict=False)
    if wrong.missing_keys or wrong.unexpected_keys:
        differing = ", ".join((*wrong.missing_keys, *wrong.unexpected_keys))
        raise ModelError(
            f"a {type(choices).__name__} has other weights here than were compared: {differing}. "
            "Use the versions of constraints.txt."
        )
    scorer.eval()
    return scorer
