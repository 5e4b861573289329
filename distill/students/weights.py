"""Taking weights from one architecture to another, by the rows of FAMILIES."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import family_of, has_distances_alone
from bertender.models.family import Family
from bertender.models.sublayers import copy_weights

__all__ = [
    "copy_layer",
    "copy_module",
    "factors",
    "position_table",
    "positions_of",
    "token_types_of",
    "weight_of",
]


def copy_layer(source: nn.Module, target: nn.Module, family: Family, own: Family) -> None:
    """Copy every part of a layer of one family into one of another."""
    copy_weights(family.layer_weights(source), own.layer_weights(target))


def copy_module(source: nn.Module, target: nn.Module) -> None:
    """Copy all weights of a module into one of the same shape."""
    target.load_state_dict(source.state_dict())


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
    family, config = family_of(teacher), teacher.config
    return int(config.max_position_embeddings - family.first_position(config))


def token_types_of(teacher: PreTrainedModel) -> int:
    """Return how many token types a student with the teacher's tokenizer needs.

    One where the teacher knows none: its tokenizer gives none, and a graph that reads them could
    not be run.
    """
    return max(getattr(teacher.config, "type_vocab_size", 0) or 0, 1)


def weight_of(module: nn.Module, path: str) -> torch.Tensor:
    """Return the weight of a part of a module."""
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight
