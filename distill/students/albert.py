"""(goes into methods.albert by hand)"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AlbertConfig, AlbertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers
from bertender.models.family import Family, copy_weights
from distill.students.student import (
    StudentShape,
    check_absolute_positions,
    check_not_factorised,
    check_widths,
    plain_family,
)
from distill.students.weights import (
    factors,
    position_table,
    positions_of,
    token_types_of,
    weight_of,
)

EMBEDDING_SIZE = 128
"""ALBERT's own, for every width."""


def albert_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> AlbertForSequenceClassification:
    """Build an ALBERT that runs one layer `shape.layers` times.

    Args:
        teacher: a sequence classifier of a family with plain layers.
        shape: `layers`, how often the layer runs, and `teacher_layers` to average, all by default.

    Raises:
        ModelError: the teacher's layers are of another kind, its embeddings narrower than these,
            or its positions distances; or the shape asks for another width.
    """
    family = plain_family(teacher)
    check_widths(teacher, shape, "an ALBERT student", "tinybert")
    check_not_factorised(teacher, "an ALBERT student")
    check_absolute_positions(teacher, "an ALBERT student")
    sources = _averaged_layers(teacher, shape)
    student = AlbertForSequenceClassification(_config(teacher, family, shape.layers))
    with torch.no_grad():
        _factorise_embeddings(teacher, student, family)
        mean = _average([family.layer_weights(layer) for layer in sources])
        copy_weights(mean, FAMILIES["albert"].layer_weights(encoder_layers(student)[0]))
    return student


def _averaged_layers(teacher: PreTrainedModel, shape: StudentShape) -> list[nn.Module]:
    layers = encoder_layers(teacher)
    chosen = shape.layers_of_start(len(layers)) or tuple(range(len(layers)))
    if not all(0 <= layer < len(layers) for layer in chosen):
        raise ModelError(
            f"teacher_layers={chosen}: give layers between 0 and {len(layers) - 1}, or leave it "
            "out to average all of them."
        )
    return [layers[layer] for layer in chosen]


def _config(teacher: PreTrainedModel, family: Family, layers: int) -> AlbertConfig:
    source = teacher.config
    return AlbertConfig(
        vocab_size=source.vocab_size,
        embedding_size=min(EMBEDDING_SIZE, source.hidden_size),
        hidden_size=source.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=source.num_attention_heads,
        intermediate_size=family.feed_forward.channels(encoder_layers(teacher)[0]),
        hidden_act=getattr(source, "hidden_act", None) or source.activation,
        max_position_embeddings=positions_of(teacher),
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        layer_norm_eps=getattr(source, "layer_norm_eps", 1e-12),
        pad_token_id=source.pad_token_id,
        type_vocab_size=token_types_of(teacher),
        id2label=source.id2label,
        label2id=source.label2id,
    )


def _factorise_embeddings(
    teacher: PreTrainedModel, student: PreTrainedModel, family: Family
) -> None:
    """Cut the word table into factors; positions go through the inverse of the second one."""
    own, target = FAMILIES["albert"], student.base_model
    words = weight_of(teacher.base_model, family.word_embeddings)
    narrow, widening = factors(words, student.config.embedding_size)
    weight_of(target, own.word_embeddings).copy_(narrow)
    mapping = target.get_submodule("encoder.embedding_hidden_mapping_in")
    weight_of(target, "encoder.embedding_hidden_mapping_in").copy_(widening.T)
    assert isinstance(mapping, nn.Linear)
    mapping.bias.zero_()
    assert own.position_embeddings is not None
    positions = position_table(teacher, family) @ torch.linalg.pinv(widening)
    weight_of(target, own.position_embeddings).copy_(positions)
    assert own.token_type_embeddings is not None
    weight_of(target, own.token_type_embeddings).zero_()  # position_table holds the first one


def _average(layers: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the means of the weights of several layers."""
    return {name: torch.stack([each[name] for each in layers]).mean(0) for name in layers[0]}
