"""(goes into methods.distilbert by hand)"""

from __future__ import annotations

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedModel

from bertender.models.families import FAMILIES, encoder_layers, family_of, has_relative_positions
from bertender.models.family import Family
from distill.students.own_class import shorter_student
from distill.students.student import (
    StudentShape,
    check_not_factorised,
    check_widths,
    chosen_layers,
    is_factorised,
    plain_family,
)
from distill.students.weights import (
    copy_layer,
    copy_module,
    position_table,
    positions_of,
    weight_of,
)

LARGEST_EPSILON = 1e-5
"""Of a teacher's layer norms that one of 1e-12 stands for: RoBERTa's, next to variances of 0.1."""


def distilbert_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> DistilBertForSequenceClassification:
    """Build a DistilBERT from a teacher's embeddings and some of its layers.

    Args:
        teacher: a sequence classifier of a family with plain layers.
        shape: `layers`, and `teacher_layers` to start from, else those of `start_layers`.

    A student of full depth gives the teacher's hidden states, up to what the class cannot hold
    (see `_has_more`), a larger epsilon in layer norms than 1e-12 (RoBERTa has 1e-5), and the second
    token type of pairs.

    Raises:
        ModelError: the teacher has fewer layers, layers of another kind, or embeddings of another
            width than its layers; or the shape asks for another width.
    """
    family = plain_family(teacher)
    chosen = chosen_layers(teacher, shape)
    check_widths(teacher, shape, "a DistilBERT student", "tinybert")
    check_not_factorised(teacher, "a DistilBERT student")
    student = DistilBertForSequenceClassification(_student_config(teacher, family, shape.layers))
    with torch.no_grad():
        _copy_embeddings(teacher, student, family)
        for source, target in zip(chosen, encoder_layers(student), strict=True):
            copy_layer(encoder_layers(teacher)[source], target, family, FAMILIES["distilbert"])
    return student


def _student_config(teacher: PreTrainedModel, family: Family, layers: int) -> DistilBertConfig:
    source = teacher.config
    return DistilBertConfig(
        vocab_size=source.vocab_size,
        max_position_embeddings=positions_of(teacher),
        n_layers=layers,
        n_heads=source.num_attention_heads,
        dim=source.hidden_size,
        hidden_dim=family.feed_forward.channels(encoder_layers(teacher)[0]),
        activation=getattr(source, "hidden_act", None) or source.activation,
        pad_token_id=source.pad_token_id,
        id2label=source.id2label,
        label2id=source.label2id,
    )


def _copy_embeddings(teacher: PreTrainedModel, student: PreTrainedModel, family: Family) -> None:
    source, target = teacher.base_model, student.base_model
    own = FAMILIES["distilbert"]
    assert own.position_embeddings is not None
    weight_of(target, own.word_embeddings).copy_(weight_of(source, family.word_embeddings))
    weight_of(target, own.position_embeddings).copy_(position_table(teacher, family))
    copy_module(
        source.get_submodule(family.embedding_norm), target.get_submodule(own.embedding_norm)
    )


def distilbert_or_copy(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a DistilBERT, or a shorter copy of a teacher that has more than the class can hold.

    Without their relative positions, MPNet's layers give other states: a copy of six scored more.
    """
    copies = family_of(teacher).shorter_copies and _has_more(teacher)
    return (shorter_student if copies else distilbert_student)(teacher, shape)


def _has_more(teacher: PreTrainedModel) -> bool:
    """Return whether a teacher has something in its layers or embeddings that DistilBERT lacks."""
    config = teacher.config
    return (
        not family_of(teacher).plain_layers
        or has_relative_positions(config)
        or is_factorised(teacher)
        or getattr(config, "layer_norm_eps", 0.0) > LARGEST_EPSILON
        or bool(getattr(config, "is_decoder", False))  # each token attends to those before it
    )
