"""Shared parts of classifiers over a table of word vectors, which read each text apart.

transformers knows neither of them; see text_spans for the texts of a pair.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from bertender.core.errors import ModelError

__all__ = ["TableClassifier", "TableConfig"]


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
