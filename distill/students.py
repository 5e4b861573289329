"""Students: smaller models initialised from a teacher's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.core.errors import ModelError
from bertender.core.families import FAMILIES, Family, encoder_layers, family_of

__all__ = [
    "LAYER_PARTS",
    "StudentBuilder",
    "StudentShape",
    "alternating_layers",
    "any_width_student",
    "distilbert_student",
    "first_layers",
    "first_layers_student",
    "plain_family",
    "position_table",
    "positions_of",
    "refuse_widths",
    "shorter_student",
    "weight_of",
]

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


def first_layers(teacher_layers: int, student_layers: int) -> tuple[int, ...]:
    """Choose the teacher's first layers, as PKD and BERT-of-Theseus do."""
    return tuple(range(student_layers))


@dataclass(frozen=True)
class StudentShape:
    """How large a student is; None is the teacher's own."""

    layers: int
    hidden_size: int | None = None
    heads: int | None = None
    feed_forward_size: int | None = None
    teacher_layers: tuple[int, ...] | None = None
    """The teacher layers to start from; None leaves the choice to the builder."""

    @property
    def widths(self) -> dict[str, int]:
        """The widths that were given, by the names of their settings."""
        given = {
            "hidden_size": self.hidden_size,
            "heads": self.heads,
            "feed_forward_size": self.feed_forward_size,
        }
        return {name: width for name, width in given.items() if width is not None}


StudentBuilder = Callable[[PreTrainedModel, StudentShape], PreTrainedModel]


def distilbert_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> DistilBertForSequenceClassification:
    """Build a DistilBERT from a teacher's embeddings and some of its layers.

    Args:
        teacher: a sequence classifier of a family with plain layers.
        shape: `layers`, and `teacher_layers` to start from, alternating ones by default.

    A student of full depth gives the teacher's hidden states, up to what the class cannot hold:
    relative positions (MPNet), and another epsilon in layer norms than 1e-12 (RoBERTa has 1e-5).

    Raises:
        ModelError: the teacher has fewer layers, layers of another kind, or embeddings of another
            width than its layers; or the shape asks for another width.
    """
    family = plain_family(teacher)
    chosen = _chosen_layers(teacher, shape, alternating_layers)
    refuse_widths(shape, "a DistilBERT student", "tinybert")
    student = DistilBertForSequenceClassification(_student_config(teacher, family, shape.layers))
    with torch.no_grad():
        _copy_embeddings(teacher, student, family)
        for source, target in zip(chosen, encoder_layers(student), strict=True):
            _copy_layer(encoder_layers(teacher)[source], target, family, FAMILIES["distilbert"])
    return student


def shorter_student(
    teacher: PreTrainedModel,
    shape: StudentShape,
    choose: Callable[[int, int], tuple[int, ...]] = alternating_layers,
) -> PreTrainedModel:
    """Build a model of the teacher's own class with fewer layers, and all else the teacher's.

    Raises:
        ModelError: the teacher has fewer layers, or layers of its own kind; or the shape asks for
            another width.
    """
    family = plain_family(teacher)
    chosen = _chosen_layers(teacher, shape, choose)
    refuse_widths(shape, "a shorter copy of the teacher", "tinybert")
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = shape.layers
    student: PreTrainedModel = type(teacher)(config)
    weights = {
        key: value for key, value in teacher.state_dict().items() if f"{family.layers}." not in key
    }
    student.load_state_dict(weights, strict=False)
    for source, target in zip(chosen, encoder_layers(student), strict=True):
        _copy(encoder_layers(teacher)[source], target)
    return student


def first_layers_student(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a `shorter_student` of the teacher's first layers."""
    return shorter_student(teacher, shape, first_layers)


def any_width_student(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a BERT of any depth and width over the teacher's vocabulary.

    A student as wide as its teacher is its `shorter_student`. A narrower one starts from random
    weights: it should then learn on much text, or from a general stage.

    Raises:
        ModelError: the heads do not divide the width.
    """
    if not shape.widths:
        return shorter_student(teacher, shape)
    config, source = BertConfig(), teacher.config
    width, heads = shape.hidden_size or source.hidden_size, shape.heads or _heads(source)
    if width % heads:
        raise ModelError(
            f"hidden_size={width} is no multiple of heads={heads}. Choose heads that divide it."
        )
    config.update(
        {
            "vocab_size": source.vocab_size,
            "hidden_size": width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": heads,
            "intermediate_size": shape.feed_forward_size or 4 * width,
            "max_position_embeddings": positions_of(teacher),
            "type_vocab_size": max(getattr(source, "type_vocab_size", 0) or 0, 1),
            "pad_token_id": source.pad_token_id,
            "id2label": source.id2label,
            "label2id": source.label2id,
        }
    )
    return BertForSequenceClassification(config)


def plain_family(teacher: PreTrainedModel) -> Family:
    """Return the family of a teacher whose layers another class can take, or raise ModelError."""
    family = family_of(teacher)
    if not family.plain_layers:
        plain = sorted(name for name, row in FAMILIES.items() if row.plain_layers)
        raise ModelError(
            f"the layers of a {teacher.config.model_type!r} teacher are of its own kind, so that "
            f"no student can start from them. Choose a method whose students start anew and give "
            f"a hidden_size (tinybert, minilm), or a teacher of these: {', '.join(plain)}."
        )
    return family


def _chosen_layers(
    teacher: PreTrainedModel, shape: StudentShape, choose: Callable[[int, int], tuple[int, ...]]
) -> tuple[int, ...]:
    depth = len(encoder_layers(teacher))
    chosen = shape.teacher_layers or choose(depth, shape.layers)
    _refuse_impossible(depth, shape.layers, chosen)
    return chosen


def refuse_widths(shape: StudentShape, what: str, instead: str) -> None:
    """Raise ModelError where a student that keeps its teacher's width is asked for another."""
    if shape.widths:
        given = ", ".join(f"{name}={width}" for name, width in shape.widths.items())
        raise ModelError(
            f"{given}: {what} is as wide as its teacher. Leave it out, or choose a method whose "
            f"students have a width of their own, such as {instead}."
        )


def _heads(config: PretrainedConfig) -> int:
    return int(config.num_attention_heads)


def positions_of(teacher: PreTrainedModel) -> int:
    """Return how many tokens the teacher has positions for."""
    config = teacher.config
    return int(config.max_position_embeddings - family_of(teacher).first_position(config))


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
    width = weight_of(teacher.base_model, family.word_embeddings).shape[1]
    if width != source.hidden_size:
        raise ModelError(
            f"the teacher's embeddings are {width} wide and its layers {source.hidden_size}; "
            "a DistilBERT student needs both equal. Choose a teacher without factorised embeddings."
        )
    return DistilBertConfig(
        vocab_size=source.vocab_size,
        max_position_embeddings=positions_of(teacher),
        n_layers=layers,
        n_heads=source.num_attention_heads,
        dim=source.hidden_size,
        hidden_dim=weight_of(encoder_layers(teacher)[0], family.ffn_in).shape[0],
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
    _copy(source.get_submodule(family.embedding_norm), target.get_submodule(own.embedding_norm))


def position_table(teacher: PreTrainedModel, family: Family) -> torch.Tensor:
    """Return the positions (positions, hidden) with the first token type added to each."""
    assert family.position_embeddings is not None
    source, first = teacher.base_model, family.first_position(teacher.config)
    positions = weight_of(source, family.position_embeddings)[first:].clone()
    if family.token_type_embeddings:
        positions += weight_of(source, family.token_type_embeddings)[0]
    return positions


def _copy_layer(source: nn.Module, target: nn.Module, family: Family, own: Family) -> None:
    for part in LAYER_PARTS:
        _copy(
            source.get_submodule(getattr(family, part)),
            target.get_submodule(getattr(own, part)),
        )


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def weight_of(module: nn.Module, path: str) -> torch.Tensor:
    """Return the weight of a part of a module."""
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight
