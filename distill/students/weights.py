"""Copying weights between architectures of FAMILIES, and heads for students."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from bertender.core.errors import ModelError
from bertender.models.families import family_of, has_distances_alone
from bertender.models.family import Family
from bertender.models.own_models import TABLE_MODELS, with_logits
from bertender.training.heads.head import Head


def weight_of(module: nn.Module, path: str) -> torch.Tensor:
    """Return the weight of a part of a module."""
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight


def word_table(model: PreTrainedModel) -> torch.Tensor:
    """Return the word embeddings of a model of an architecture in FAMILIES, (vocab, width)."""
    return weight_of(model.base_model, family_of(model).word_embeddings)


def factors(table: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best two factors of a table (rows, width): (rows, rank) and (rank, width).

    Eckart and Young 1936: no product of such factors has a smaller squared error.
    """
    left, values, right = torch.linalg.svd(table.float(), full_matrices=False)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]


def position_table(teacher: PreTrainedModel, family: Family) -> torch.Tensor:
    """Return the position embeddings (positions, hidden), with the first token type added to each.

    Positions are zero where only attention uses positions: their table exists but is untrained.
    """
    assert family.position_embeddings is not None
    source, first = teacher.base_model, family.first_position(teacher.config)
    positions = weight_of(source, family.position_embeddings)[first:].clone()
    if has_distances_alone(teacher.config):
        positions.zero_()
    if family.token_type_embeddings:
        positions += weight_of(source, family.token_type_embeddings)[0]
    return positions


def positions_of(teacher: PreTrainedModel) -> int:
    """Return the number of positions of the teacher."""
    first = family_of(teacher).first_position(teacher.config)
    return int(teacher.config.max_position_embeddings - first)


def token_types_of(teacher: PreTrainedModel) -> int:
    """Return the number of token types that a student with the teacher's tokenizer needs.

    It is one where the teacher has none: the tokenizer gives no token types, and an exported graph
    that reads them could not run.
    """
    return max(getattr(teacher.config, "type_vocab_size", 0) or 0, 1)


def inherited_settings(start: PreTrainedModel) -> dict[str, Any]:
    """Return the settings of a student with its start's vocabulary, positions and labels."""
    config = start.config
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": positions_of(start),
        "pad_token_id": config.pad_token_id,
        "id2label": config.id2label,
        "label2id": config.label2id,
    }


def masked_language_model(student: PreTrainedModel, teacher: PreTrainedModel) -> PreTrainedModel:
    """Return a student's encoder with a masked-language-model head and the teacher's head weights.

    Parts of the head with another shape in the student start untrained, and with an own vocabulary
    the decoder's bias does. The decoder is untied where the teacher's is untied and has the same
    shape; else it is tied to the word embeddings.

    Args:
        student: a model with any head.
        teacher: a masked language model.
    """
    config = copy.deepcopy(student.config)
    config.tie_word_embeddings = teacher.config.tie_word_embeddings
    model: PreTrainedModel = AutoModelForMaskedLM.from_config(config)
    _load_encoder(model, student)
    own, source = (family_of(each).language_head for each in (model, teacher))
    with torch.no_grad():
        for theirs, ours in zip(source.parts, own.parts, strict=False):
            _copy_fitting(teacher.get_submodule(theirs), model.get_submodule(ours))
        if own.bias and source.bias:
            bias, learned = model.get_parameter(own.bias), teacher.get_parameter(source.bias)
            if bias.shape == learned.shape:
                bias.copy_(learned)
        if not config.tie_word_embeddings:
            copied = _copy_fitting(teacher.get_output_embeddings(), model.get_output_embeddings())
            model.config.tie_word_embeddings = not copied
    model.tie_weights()
    return model


def with_head(student: PreTrainedModel, head: Head) -> PreTrainedModel:
    """Return a student with the head of a problem type, since methods build students for texts.

    Raises:
        ModelError: the student's class is bertender's own, which labels only texts.
    """
    if head.auto_class is AutoModelForSequenceClassification:
        return student
    if student.config.model_type in TABLE_MODELS:
        raise ModelError(
            f"a {student.config.model_type!r} student labels texts alone. Choose a method whose "
            "students are of a class of transformers, such as minibert."
        )
    model = with_logits(head.auto_class.from_config(student.config), head.auto_class)
    if isinstance(student, type(model)):
        return student
    _load_encoder(model, student)
    return model


def _load_encoder(model: PreTrainedModel, student: PreTrainedModel) -> None:
    """Copy the student's encoder, except the pooler, which the model's class lacks."""
    weights = student.base_model.state_dict()
    model.base_model.load_state_dict(
        {name: weights[name] for name in model.base_model.state_dict()}
    )


def _copy_fitting(source: nn.Module, target: nn.Module) -> bool:
    """Copy the weights of a module if all shapes agree; return whether they do."""
    weights = source.state_dict()
    shapes = {name: weight.shape for name, weight in weights.items()}
    fitting = shapes == {name: weight.shape for name, weight in target.state_dict().items()}
    if fitting:
        target.load_state_dict(weights)
    return fitting
