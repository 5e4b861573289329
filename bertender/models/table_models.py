"""Classifiers over a table of word vectors, which encode each text separately: static and BiLSTM.

transformers has neither. The end of the first text of a pair is found in the tokens: tokenizers of
FAMILIES end an example with the separator that also comes between its texts. A separator inside a
text of a pair is taken for that one. Both texts are encoded with the same weights, and their
vectors u and v are joined as [u, v, u * v, |u - v|].
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
"""Number of vectors that the classifier reads, by texts per example."""


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
    """Return the spans of both texts of pairs, each with its end separator, without tokens before.

    BERT has [CLS] a [SEP] b [SEP] and RoBERTa <s> a </s></s> b </s>.
    """
    lengths = mask.sum(1)
    separator = input_ids.gather(1, lengths[:, None] - 1)
    separators = (input_ids == separator) & (mask > 0)  # (batch, seq)
    end = separators.int().argmax(1)
    after = (end + 1).clamp(max=input_ids.shape[1] - 1)
    doubled = separators.gather(1, after[:, None])[:, 0] & (after + 1 < lengths)
    second = torch.minimum(end + 1 + doubled.long(), lengths - 1)
    first = torch.minimum(torch.ones_like(end), lengths - 1)  # a single token is kept
    return Spans(first, end.clamp(min=1)), Spans(second, lengths - second)


class TableConfig(PretrainedConfig):
    """Config of a classifier over a table of word vectors."""

    num_hidden_layers = 0
    """There are no layers, whose hidden states could be compared, and no heads."""
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
        """Take the widths of text vectors and the next layer, and `texts` per example (1 or 2)."""
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.feed_forward_size = feed_forward_size
        self.dropout = dropout
        self.texts = texts
        self.opens_with = "bertender"
        self.pad_token_id: int | None = settings.get("pad_token_id")
        super().__init__(**settings)


class TableClassifier(PreTrainedModel):
    """A classifier with a table of word vectors: `dropout` and `classifier` over its features."""

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
            input_ids: (batch, seq), at least one token each, padded on the right.
            attention_mask: (batch, seq), 1 for a real token; None if all are real.
            output_hidden_states: refused, since there are none.

        Raises:
            ModelError: hidden states are requested.
        """
        if output_hidden_states:
            raise ModelError(
                f"{self.called} has no hidden states of layers: compare its logits alone."
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        features = self.dropout(self.features(input_ids, mask))
        return SequenceClassifierOutput(logits=self.classifier(features))

    def features(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the features of the texts for the classifier, (batch, width)."""
        raise NotImplementedError

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of word vectors."""
        table: nn.Module = self.encoder.get_submodule("word_embeddings")
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table of word vectors."""
        assert isinstance(value, nn.Embedding)
        self.encoder.set_submodule("word_embeddings", value)

    def _init_weights(self, module: nn.Module) -> None:
        # PyTorch's initialisation, instead of the narrow normals of transformers
        if isinstance(module, nn.Linear | nn.LSTM | nn.Embedding):
            module.reset_parameters()


NO_WEIGHT = -1e4
"""Weight of tokens left out of the mean: within float16, with a sigmoid of exactly 0."""
LEAST_SUM = 1e-5
"""Least sum of weights in a division, for texts without counted tokens, whose mean is 0."""


class StaticConfig(TableConfig):
    """Config of a static classifier: `hidden_size` of the vectors, and `feed_forward_size` between
    the mean and the logits, 0 for a linear head.
    """

    # transformers needs only this for a type that it does not have
    model_type = "bertender-static"

    # without an __init__, transformers 5 generates one from annotated settings
    def __init__(self, **settings: Any) -> None:
        """Take the settings of a `TableConfig`."""
        super().__init__(**settings)


class StaticEncoder(nn.Module):
    """The token vectors and weights of a static classifier."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.word_weights = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, input_ids: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean (batch, hidden) of tokens with a 1 in `parts` (batch, seq)."""
        vectors = self.word_embeddings(input_ids)  # (batch, seq, hidden)
        weights = self.word_weights[input_ids].sigmoid() * parts.to(vectors.dtype)  # (batch, seq)
        total = weights.sum(1, keepdim=True).clamp(min=LEAST_SUM)
        mean: torch.Tensor = (vectors * weights[:, :, None]).sum(1) / total
        return mean


class StaticForSequenceClassification(TableClassifier):
    """A static classifier: one vector and one weight per token.

        u = sum(w[t] * v[t]) / sum(w[t]) over the tokens t of a text, and a linear or
        one-hidden-layer head on u

    Tokens do not interact, so that a text costs one look-up per token. Weights are sigmoids of
    learned numbers, thus positive; a number of log(a / p) gives the weight a / (a + p). Special
    tokens have `NO_WEIGHT`, whose sigmoid and gradient are 0, so that training never includes them;
    the mask excludes padding.
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
        """Return the hidden layer's outputs for the means, (batch, width)."""
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
    """Return the mask of tokens (batch, seq) that belong to a text."""
    places = torch.arange(mask.shape[1], device=mask.device)[None]  # (1, seq)
    starts, ends = spans.starts[:, None], (spans.starts + spans.lengths)[:, None]
    return (places >= starts) & (places < ends) & (mask > 0)


class BiLstmConfig(TableConfig):
    """Config of a BiLSTM classifier; the defaults are the paper's."""

    # transformers needs only this for a type that it does not have
    model_type = "bertender-bilstm"

    def __init__(
        self,
        embedding_size: int = 300,
        hidden_size: int = 150,
        feed_forward_size: int = 200,
        **settings: Any,
    ) -> None:
        """Take the widths: `hidden_size` of the LSTM in each direction, and `feed_forward_size`
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
        longest: Any = spans.lengths.max()  # a tensor, since a graph would fix a number
        steps = torch.arange(longest, device=input_ids.device)[None]  # (1, longest)
        rightward = self._last_state(self.left_to_right, input_ids, starts + steps, lengths)
        leftward = self._last_state(
            self.right_to_left, input_ids, starts + lengths - 1 - steps, lengths
        )
        return torch.cat([rightward, leftward], dim=-1)

    def _last_state(
        self, lstm: nn.LSTM, input_ids: torch.Tensor, order: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Return the state after `lengths` tokens, read in `order` (batch, longest)."""
        # padding comes after the end of a text, and its states are left out
        tokens = input_ids.gather(1, order.clamp(0, input_ids.shape[1] - 1))
        states, _ = lstm(self.word_embeddings(tokens))  # (batch, longest, hidden)
        place = (lengths - 1)[:, :, None].expand(-1, 1, states.shape[-1])
        return torch.gather(states, 1, place)[:, 0]


class BiLstmForSequenceClassification(TableClassifier):
    """The BiLSTM classifier of Tang et al. 2019 (arXiv 1903.12136): word embeddings, one LSTM in
    each direction, and two linear layers.

    Each LSTM reads a text from one end, and its state after the last token is used, so that logits
    do not depend on padding or other texts of the batch. A packed sequence would give the same, but
    cannot be exported for all batches.
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
        """Return the hidden layer's outputs for the states, (batch, feed_forward)."""
        return functional.relu(self.dense(self._states(input_ids, mask)))

    def _states(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the states of the texts, (batch, joined)."""
        if self.config.texts == 1:
            lengths = mask.sum(1)
            states: torch.Tensor = self.encoder(input_ids, Spans(lengths * 0, lengths))
            return states
        spans = Spans(*map(torch.cat, zip(*spans_of_pairs(input_ids, mask), strict=True)))
        return joined(*self.encoder(input_ids.repeat(2, 1), spans).chunk(2))
