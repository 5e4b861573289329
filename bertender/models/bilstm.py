"""The BiLSTM classifier of Tang et al. 2019 (arXiv 1903.12136), which transformers does not know:
word embeddings, one LSTM in each direction, and two linear layers.

Each LSTM reads a text from one of its ends, and its state after the text's last token is taken,
so that logits depend neither on padding nor on neighbours in the batch. A packed sequence
would give the same, but not the same graph for every batch.

Two texts are read apart by the same weights (see text_spans), and their states h1 and h2 joined
as [h1, h2, h1 * h2, |h1 - h2|].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bertender.models.family import Fusion
from bertender.models.own_model import OwnModel
from bertender.models.table_classifier import TableClassifier, TableConfig
from bertender.models.text_spans import JOINED, Spans, joined, spans_of_pairs

__all__ = ["BILSTM", "BiLstmConfig", "BiLstmEncoder", "BiLstmForSequenceClassification"]


class BiLstmConfig(TableConfig):
    """The shape of a BiLSTM classifier; the defaults are the paper's."""

    # transformers knows no more than this of a type that it does not have
    model_type = "bertender-bilstm"

    def __init__(
        self,
        embedding_size: int = 300,
        hidden_size: int = 150,
        feed_forward_size: int = 200,
        **settings: Any,
    ) -> None:
        """Take the widths: `hidden_size` of the LSTM of each direction, `feed_forward_size`
        between the states and the logits.
        """
        self.embedding_size = embedding_size
        super().__init__(hidden_size=hidden_size, feed_forward_size=feed_forward_size, **settings)


class BiLstmEncoder(nn.Module):
    """Word embeddings, and an LSTM in each direction."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__()
        widths = config.embedding_size, config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.left_to_right = nn.LSTM(*widths, batch_first=True)
        self.right_to_left = nn.LSTM(*widths, batch_first=True)

    def forward(self, input_ids: torch.Tensor, spans: Spans) -> torch.Tensor:
        """Return the last state of each direction, (batch, 2 hidden), of tokens (batch, seq)."""
        starts, lengths = spans.starts[:, None], spans.lengths[:, None]
        longest: Any = spans.lengths.max()  # a tensor: a graph would keep the number for ever
        steps = torch.arange(longest, device=input_ids.device)[None]  # (1, longest)
        rightward = self._last_state(self.left_to_right, input_ids, starts + steps, lengths)
        leftward = self._last_state(
            self.right_to_left, input_ids, starts + lengths - 1 - steps, lengths
        )
        return torch.cat([rightward, leftward], dim=-1)

    def _last_state(
        self, lstm: nn.LSTM, input_ids: torch.Tensor, order: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Return the state after `lengths` tokens read in an order (batch, longest)."""
        # padding is read after the end of a text, and its states are left out
        tokens = input_ids.gather(1, order.clamp(0, input_ids.shape[1] - 1))
        states, _ = lstm(self.word_embeddings(tokens))  # (batch, longest, hidden)
        place = (lengths - 1)[:, :, None].expand(-1, 1, states.shape[-1])
        return torch.gather(states, 1, place)[:, 0]


class BiLstmForSequenceClassification(TableClassifier):
    """The encoder with a classifier over the labels."""

    config_class = BiLstmConfig
    called = "a BiLSTM"
    encoder: BiLstmEncoder

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__(config)
        width = JOINED[config.texts] * 2 * config.hidden_size
        self.encoder = BiLstmEncoder(config)
        self.dense = nn.Linear(width, config.feed_forward_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.feed_forward_size, config.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def features(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs on the states, (batch, feed_forward)."""
        return functional.relu(self.dense(self._states(input_ids, mask)))

    def _states(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the states of the texts, (batch, joined)."""
        if self.config.texts == 1:
            lengths = mask.sum(1)
            states: torch.Tensor = self.encoder(input_ids, Spans(lengths * 0, lengths))
            return states
        spans = Spans(*map(torch.cat, zip(*spans_of_pairs(input_ids, mask), strict=True)))
        return joined(*self.encoder(input_ids.repeat(2, 1), spans).chunk(2))


BILSTM = OwnModel(
    BiLstmConfig, BiLstmForSequenceClassification, fusion=Fusion(obstacle="it has no attention")
)
