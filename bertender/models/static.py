"""A static classifier, which transformers does not know: one vector and one weight a token.

    u = sum(w[t] * v[t]) / sum(w[t]) over the tokens t of a text, and a linear or
    one-hidden-layer head on u

No token changes another one's vector, so that a text costs as many look-ups as it has tokens.
Weights are sigmoids of learned numbers: they are positive, and one that starts at log(a / p)
starts as a / (a + p). Special tokens have `NO_WEIGHT`, whose sigmoid and its gradient are 0, so
that no training gives them a part; padding has none by the mask.

Two texts are read apart by the same table (see text_spans), and their means u and v joined as
[u, v, u * v, |u - v|].
"""

from __future__ import annotations

import torch
from torch import nn

from bertender.models.family import Fusion
from bertender.models.own_model import OwnModel
from bertender.models.table_classifier import TableClassifier, TableConfig
from bertender.models.text_spans import JOINED, Spans, joined, spans_of_pairs

__all__ = [
    "NO_WEIGHT",
    "PER_TOKEN",
    "STATIC",
    "StaticConfig",
    "StaticEncoder",
    "StaticForSequenceClassification",
]

NO_WEIGHT = -1e4
"""Of tokens without a part in the mean; float16 holds it, and its sigmoid is exactly 0."""
PER_TOKEN = ("encoder.word_weights",)
"""Weights with one row a token, besides the table of vectors."""
LEAST_SUM = 1e-5
"""Instead of the weights' sum where a text has no token with a part: its mean is 0 then."""


class StaticConfig(TableConfig):
    """The shape of a static classifier: `hidden_size` of the vectors, `feed_forward_size` between
    the mean and the logits, 0 for a linear head.
    """

    # transformers knows no more than this of a type that it does not have
    model_type = "bertender-static"


class StaticEncoder(nn.Module):
    """The table of vectors, and the weights."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.word_weights = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, input_ids: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """Return the mean (batch, hidden) of the tokens (batch, seq) that have a part, 1 or 0."""
        vectors = self.word_embeddings(input_ids)  # (batch, seq, hidden)
        weights = self.word_weights[input_ids].sigmoid() * parts.to(vectors.dtype)  # (batch, seq)
        total = weights.sum(1, keepdim=True).clamp(min=LEAST_SUM)
        mean: torch.Tensor = (vectors * weights[:, :, None]).sum(1) / total
        return mean


class StaticForSequenceClassification(TableClassifier):
    """The encoder with a classifier over the labels."""

    config_class = StaticConfig
    called = "a static model"
    encoder: StaticEncoder

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        width = JOINED[config.texts] * config.hidden_size
        self.encoder = StaticEncoder(config)
        hidden = config.feed_forward_size
        self.dense: nn.Module = nn.Linear(width, hidden) if hidden else nn.Identity()
        self.activation: nn.Module = nn.ReLU() if hidden else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(hidden or width, config.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def features(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs on the means, (batch, width)."""
        features: torch.Tensor = self.activation(self.dense(self._means(input_ids, mask)))
        return features

    def _means(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the means of the texts, (batch, joined)."""
        if self.config.texts == 1:
            mean: torch.Tensor = self.encoder(input_ids, mask)
            return mean
        both = spans_of_pairs(input_ids, mask)
        return joined(*(self.encoder(input_ids, _parts(spans, mask)) for spans in both))


def _parts(spans: Spans, mask: torch.Tensor) -> torch.Tensor:
    """Return which tokens (batch, seq) belong to a text."""
    places = torch.arange(mask.shape[1], device=mask.device)[None]  # (1, seq)
    starts, ends = spans.starts[:, None], (spans.starts + spans.lengths)[:, None]
    return (places >= starts) & (places < ends) & (mask > 0)


STATIC = OwnModel(
    StaticConfig,
    StaticForSequenceClassification,
    per_token=PER_TOKEN,
    fusion=Fusion(obstacle="it has no attention"),
)
