"""The losses of distillation: functions of student and teacher tensors, with masks.

Every mask is (batch, seq), 1 for a real token and 0 for padding, and no loss changes with what
stands where it is 0. No gradient flows into a teacher. Sums are taken in float32 at least.
"""

from __future__ import annotations

from bertender.training.label_losses import (
    NO_LABEL,
    hard_labels,
    logit_mse,
    soft_cross_entropy,
    soft_labels,
    token_soft_labels,
    vocabulary_labels,
)
from distill.losses.attention import attention_divergence, attention_mse, relation_divergence
from distill.losses.states import (
    hidden_cosine,
    hidden_mean_mse,
    hidden_mse,
    hidden_variance_difference,
    normalised_hidden_mse,
    normalised_sentence_mse,
    sentence_cosine,
)
from distill.losses.weights import weight_mse

__all__ = [
    "NO_LABEL",
    "attention_divergence",
    "attention_mse",
    "hard_labels",
    "hidden_cosine",
    "hidden_mean_mse",
    "hidden_mse",
    "hidden_variance_difference",
    "logit_mse",
    "normalised_hidden_mse",
    "normalised_sentence_mse",
    "relation_divergence",
    "sentence_cosine",
    "soft_cross_entropy",
    "soft_labels",
    "token_soft_labels",
    "vocabulary_labels",
    "weight_mse",
]
