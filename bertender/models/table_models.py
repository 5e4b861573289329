"""Classifiers over a table of word vectors, which read each text apart: static and BiLSTM.

transformers knows neither. Where the first text of a pair ends is read from the tokens: every
tokenizer of FAMILIES ends an example with the separator that also stands between its texts. A
separator that a user writes into a text of a pair is taken for that one. Two texts are read by the
same weights, and their vectors u and v joined as [u, v, u * v, |u - v|].
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from bertender.core.errors import ModelError

JOINED = {1: 1, 2: 4}
"""Texts of an example -> how many vectors of a text's width the classifier reads."""


class Spans(NamedTuple):
    """Positions of a text in each example."""

    starts: torch.Tensor
    """(batch,)"""
    lengths: torch.Tensor
    """(batch,), at least 1"""


def joined(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return two texts' vectors (batch, width) as [u, v, u * v, |u - v|], (batch, 4 width)."""
    return torch.cat([first, second, first * second, (first - second).abs()], dim=-1)


def spans_of_pairs(input_ids: torch.Tensor, mask: torch.Tensor) -> tuple[Spans, Spans]:
    """Return both texts of pairs, each with the separator that ends it and without what is before.

    BERT writes [CLS] a [SEP] b [SEP] and RoBERTa <s> a </s></s> b </s>.
    """
    lengths = mask.sum(1)
    separator = input_ids.gather(1, lengths[:, None] - 1)
    separators = (input_ids == separator) & (mask > 0)  # (batch, seq)
    end = separators.int().argmax(1)
    after = (end + 1).clamp(max=input_ids.shape[1] - 1)
    doubled = separators.gather(1, after[:, None])[:, 0] & (after + 1 < lengths)
    second = torch.minimum(end + 1 + doubled.long(), lengths - 1)
    first = torch.minimum(torch.ones_like(end), lengths - 1)  # of one token, that one
    return Spans(first, end.clamp(min=1)), Spans(second, lengths - second)


class TableConfig(PretrainedConfig):
    """The shape of such a classifier."""

    num_hidden_layers = 0
    """There are no layers whose hidden states another model could be matched with, and no heads."""
    num_attention_heads = 0

    def __init__(
        self,
        vocab_size: int = 30_522,
        hidden_size: int = 256,
        feed_forward_size: int = 256,
        dropout: float = 0.1,
        texts: int = 1,
        **settings: Any,
    ) -> None:
        """Take the widths, of the texts' vectors and of the layer behind them, and `texts`, 1 or 2
        of an example.
        """
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.feed_forward_size = feed_forward_size
        self.dropout = dropout
        self.texts = texts
        self.opens_with = "bertender"
        self.pad_token_id: int | None = settings.get("pad_token_id")
        super().__init__(**settings)


class TableClassifier(PreTrainedModel):
    """An encoder with `word_embeddings`, and `dropout` and `classifier` over its features."""

    base_model_prefix = "encoder"
    called: ClassVar[str]
    """The name for messages."""
    encoder: nn.Module
    dropout: nn.Module
    classifier: nn.Module

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> SequenceClassifierOutput:
        """Return the logits (batch, labels).

        Args:
            input_ids: (batch, seq), of at least one token each, padding behind them.
            attention_mask: (batch, seq), 1 for a real token; all are without it.
            output_hidden_states: refused, because there are none.

        Raises:
            ModelError: hidden states are asked for.
        """
        if output_hidden_states:
            raise ModelError(
                f"{self.called} has no hidden states of layers: compare its logits alone."
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        features = self.dropout(self.features(input_ids, mask))
        return SequenceClassifierOutput(logits=self.classifier(features))

    def features(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return what the classifier reads of the texts, (batch, width)."""
        raise NotImplementedError

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of word vectors."""
        table: nn.Module = self.encoder.get_submodule("word_embeddings")
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace this table of word vectors by another."""
        assert isinstance(value, nn.Embedding)
        self.encoder.set_submodule("word_embeddings", value)

    def _init_weights(self, module: nn.Module) -> None:
        # PyTorch's own, instead of the narrow normals that transformers draws for encoders
        if isinstance(module, nn.Linear | nn.LSTM | nn.Embedding):
            module.reset_parameters()


NO_WEIGHT = -1e4
"""Of tokens without a part in the mean; float16 holds it, and its sigmoid is exactly 0."""
LEAST_SUM = 1e-5
"""Instead of the weights' sum where a text has no token with a part: its mean is 0 then."""


class StaticConfig(TableConfig):
    """The shape of a static classifier: `hidden_size` of the vectors, `feed_forward_size` between
    the mean and the logits, 0 for a linear head.
    """

    # transformers knows no more than this of a type that it does not have
    model_type = "bertender-static"

    # transformers 5 gives a config without one an __init__ of its annotated settings
    def __init__(self, **settings: Any) -> None:
        """Take the settings of a `TableConfig`."""
        super().__init__(**settings)


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
    """A static classifier: one vector and one weight a token.

        u = sum(w[t] * v[t]) / sum(w[t]) over the tokens t of a text, and a linear or
        one-hidden-layer head on u

    No token changes another one's vector, so that a text costs as many look-ups as it has tokens.
    Weights are sigmoids of learned numbers: they are positive, and one that starts at log(a / p)
    starts as a / (a + p). Special tokens have `NO_WEIGHT`, whose sigmoid and its gradient are 0, so
    that no training gives them a part; padding has none by the mask.
    """

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
        self.classifier = nn.Linear(hidden or width, config.num_labels or 0)
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
    """The BiLSTM classifier of Tang et al. 2019 (arXiv 1903.12136): word embeddings, one LSTM in
    each direction, and two linear layers.

    Each LSTM reads a text from one of its ends, and its state after the text's last token is taken,
    so that logits depend neither on padding nor on neighbours in the batch. A packed sequence
    would give the same, but not the same graph for every batch.
    """

    config_class = BiLstmConfig
    called = "a BiLSTM"
    encoder: BiLstmEncoder

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__(config)
        width = JOINED[config.texts] * 2 * config.hidden_size
        self.encoder = BiLstmEncoder(config)
        self.dense = nn.Linear(width, config.feed_forward_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.feed_forward_size, config.num_labels or 0)
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
