"""Weights from one architecture to another by the rows of FAMILIES, and heads on a student."""

from __future__ import annotations

import copy

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
    """Return the word embeddings of a row of FAMILIES, (vocab, width)."""
    return weight_of(model.base_model, family_of(model).word_embeddings)


def factors(table: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best two factors of a table (rows, width): (rows, rank) and (rank, width).

    Eckart and Young 1936: no product of such factors has a smaller squared error.
    """
    left, values, right = torch.linalg.svd(table.float(), full_matrices=False)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]


def position_table(teacher: PreTrainedModel, family: Family) -> torch.Tensor:
    """Return the positions (positions, hidden) with the first token type added to each.

    They are zeros where attention alone knows positions: the table is there, and never learned.
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
    """Return how many tokens the teacher has positions for."""
    first = family_of(teacher).first_position(teacher.config)
    return int(teacher.config.max_position_embeddings - first)


def token_types_of(teacher: PreTrainedModel) -> int:
    """Return how many token types a student with the teacher's tokenizer needs.

    One where the teacher knows none: its tokenizer gives none, and a graph that reads them could
    not be run.
    """
    return max(getattr(teacher.config, "type_vocab_size", 0) or 0, 1)


def masked_language_model(student: PreTrainedModel, teacher: PreTrainedModel) -> PreTrainedModel:
    """Return a student's encoder under a masked-language-model head with the teacher's weights.

    Parts of the head that have another shape in the student start untrained, word scores too
    where it has a vocabulary of its own. The decoder is a table of its own where the teacher's is
    one, of the same shape; else it is the table of word embeddings.

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
        bias, learned = model.get_parameter(own.bias), teacher.get_parameter(source.bias)
        if bias.shape == learned.shape:
            bias.copy_(learned)
        if not config.tie_word_embeddings:
            copied = _copy_fitting(teacher.get_output_embeddings(), model.get_output_embeddings())
            model.config.tie_word_embeddings = not copied
    model.tie_weights()
    return model


def with_head(student: PreTrainedModel, head: Head) -> PreTrainedModel:
    """Return a student under a head of a problem type: methods build students that label texts.

    Raises:
        ModelError: the student is of a class of bertender's own, which labels texts alone.
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
    """Copy the student's encoder; its pooler stays behind, which the model's class lacks."""
    weights = student.base_model.state_dict()
    model.base_model.load_state_dict(
        {name: weights[name] for name in model.base_model.state_dict()}
    )


def _copy_fitting(source: nn.Module, target: nn.Module) -> bool:
    """Copy the weights of a module where every one of them has the same shape; return whether."""
    weights = source.state_dict()
    shapes = {name: weight.shape for name, weight in weights.items()}
    fitting = shapes == {name: weight.shape for name, weight in target.state_dict().items()}
    if fitting:
        target.load_state_dict(weights)
    return fitting
