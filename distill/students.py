"""Students: smaller models initialised from a teacher's weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.families import FAMILIES, Family, encoder_layers, family_of

__all__ = ["alternating_layers", "distilbert_student"]

PUBLISHED_LAYERS = {(12, 6): (0, 2, 4, 7, 9, 11)}

LAYER_PARTS = (
    "query",
    "key",
    "value",
    "attention_output",
    "attention_norm",
    "ffn_in",
    "ffn_out",
    "ffn_norm",
)


def alternating_layers(teacher_layers: int, student_layers: int) -> tuple[int, ...]:
    """Choose evenly alternating teacher layers, the last among them (6 -> 3: 1, 3, 5).

    12 -> 6 takes those of the published DistilBERT checkpoint, whose authors chose otherwise.
    """
    alternating = tuple(
        (index + 1) * teacher_layers // student_layers - 1 for index in range(student_layers)
    )
    return PUBLISHED_LAYERS.get((teacher_layers, student_layers), alternating)


def distilbert_student(
    teacher: PreTrainedModel, layers: int, chosen: tuple[int, ...] | None = None
) -> DistilBertForSequenceClassification:
    """Build a DistilBERT of `layers` layers from a teacher's embeddings and layers.

    Args:
        teacher: a sequence classifier of any row of FAMILIES.
        layers: depth of the student.
        chosen: teacher layers (from 0) to start from; None takes alternating ones.

    A student of full depth gives the teacher's hidden states, up to what the class cannot hold:
    relative positions (MPNet), and another epsilon in layer norms than 1e-12 (RoBERTa has 1e-5).

    Raises:
        ModelError: the teacher has fewer layers, or embeddings of another width than its layers.
    """
    family = family_of(teacher)
    depth = len(encoder_layers(teacher))
    chosen = chosen or alternating_layers(depth, layers)
    _refuse_impossible(depth, layers, chosen)
    student = DistilBertForSequenceClassification(_student_config(teacher, family, layers))
    with torch.no_grad():
        _copy_embeddings(teacher, student, family)
        for source, target in zip(chosen, encoder_layers(student), strict=True):
            _copy_layer(encoder_layers(teacher)[source], target, family)
    return student


def _refuse_impossible(depth: int, layers: int, chosen: tuple[int, ...]) -> None:
    if layers > depth:
        raise ModelError(
            f"layers={layers}: the teacher has only {depth}. Choose 1 to {depth} (half is usual)."
        )
    if len(chosen) != layers or not all(0 <= layer < depth for layer in chosen):
        raise ModelError(
            f"teacher_layers={chosen}: give {layers} layers between 0 and {depth - 1}, "
            "or leave it out to take alternating ones."
        )


def _student_config(teacher: PreTrainedModel, family: Family, layers: int) -> DistilBertConfig:
    source = teacher.config
    width = _weight(teacher.base_model, family.word_embeddings).shape[1]
    if width != source.hidden_size:
        raise ModelError(
            f"the teacher's embeddings are {width} wide and its layers {source.hidden_size}; "
            "a DistilBERT student needs both equal. Choose a teacher without factorised embeddings."
        )
    return DistilBertConfig(
        vocab_size=source.vocab_size,
        max_position_embeddings=source.max_position_embeddings - family.first_position(source),
        n_layers=layers,
        n_heads=source.num_attention_heads,
        dim=source.hidden_size,
        hidden_dim=_weight(encoder_layers(teacher)[0], family.ffn_in).shape[0],
        activation=getattr(source, "hidden_act", None) or source.activation,
        pad_token_id=source.pad_token_id,
        id2label=source.id2label,
        label2id=source.label2id,
    )


def _copy_embeddings(teacher: PreTrainedModel, student: PreTrainedModel, family: Family) -> None:
    source, target = teacher.base_model, student.base_model
    own = FAMILIES["distilbert"]
    _weight(target, own.word_embeddings).copy_(_weight(source, family.word_embeddings))
    first = family.first_position(teacher.config)
    positions = _weight(source, family.position_embeddings)[first:].clone()
    if family.token_type_embeddings:
        positions += _weight(source, family.token_type_embeddings)[0]
    _weight(target, own.position_embeddings).copy_(positions)
    _copy(source.get_submodule(family.embedding_norm), target.get_submodule(own.embedding_norm))


def _copy_layer(source: nn.Module, target: nn.Module, family: Family) -> None:
    for part in LAYER_PARTS:
        _copy(
            source.get_submodule(getattr(family, part)),
            target.get_submodule(getattr(FAMILIES["distilbert"], part)),
        )


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _weight(module: nn.Module, path: str) -> torch.Tensor:
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight
