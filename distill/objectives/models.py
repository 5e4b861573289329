"""The models that pre-training builds, untrained, from the shape of a BERT."""

from __future__ import annotations

from typing import Any

from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForPreTraining,
    PreTrainedModel,
)

from distill.students.albert import EMBEDDING_SIZE

__all__ = ["albert_with_pooler", "bert", "bert_with_pooler", "electra"]

SHAPE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "pad_token_id",
)
"""Settings that ALBERT and ELECTRA share with the shape of a BERT, by their common names."""


def bert(shape: BertConfig) -> PreTrainedModel:
    """Build a BERT with a masked-language head."""
    return BertForMaskedLM(shape)


def bert_with_pooler(shape: BertConfig) -> PreTrainedModel:
    """Build a BERT with a masked-language head and a pooler."""
    return _with_pooler(BertForMaskedLM(shape))


def albert_with_pooler(shape: BertConfig) -> PreTrainedModel:
    """Build an ALBERT of one shared layer with a masked-language head and a pooler."""
    embedding_size = min(EMBEDDING_SIZE, shape.hidden_size)
    return _with_pooler(
        AlbertForMaskedLM(AlbertConfig(embedding_size=embedding_size, **_shared(shape)))
    )


def electra(shape: BertConfig) -> PreTrainedModel:
    """Build an ELECTRA discriminator whose embeddings are as wide as its layers."""
    config = ElectraConfig(embedding_size=shape.hidden_size, **_shared(shape))
    return ElectraForPreTraining(config)


def _with_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model the pooler that transformers leaves out under a masked-language head."""
    setattr(model, model.base_model_prefix, type(model.base_model)(model.config))
    model.tie_weights()
    return model


def _shared(shape: BertConfig) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in SHAPE}
