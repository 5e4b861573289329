"""(goes into methods.mobilebert by hand)"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import MobileBertConfig, MobileBertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, family_of
from bertender.models.family import Family
from distill.students.student import StudentShape
from distill.students.weights import (
    factors,
    position_table,
    positions_of,
    token_types_of,
    weight_of,
)

EMBEDDING_SIZE = 128
NARROWING = 4
"""How many times narrower than the hidden states the bottleneck is: 512 and 128 in the paper."""
FEED_FORWARD_FACTOR = 4
"""How many times wider than the bottleneck a feed-forward part is: 512 and 128 in the paper."""


FULL = {"use_bottleneck_attention": False, "key_query_shared_bottleneck": True}
LIGHT = {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False}


def mobilebert_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> MobileBertForSequenceClassification:
    """Build a MobileBERT over the teacher's vocabulary: four feed-forward parts a layer.

    The hidden states are as wide as the teacher's by default, the bottleneck
    a quarter of that, rounded up to a multiple of the heads, which are as many as the teacher's.
    The word table starts as the best narrow factor of the teacher's; where the widths agree, the
    embeddings as a whole start as near to the teacher's as a MobileBERT without layer norms can
    come. The layers start from random weights. A start that is such a MobileBERT itself is taken
    as it is, layers and all.

    Args:
        teacher: what to start from, a sequence classifier of a row of FAMILIES.
        shape: `feed_forward_size` is the width of each feed-forward part, four times the
            bottleneck by default.

    Raises:
        ModelError: the shape names layers to start from.
    """
    return _student(teacher, shape, num_feedforward_networks=4, **FULL)


def tiny_mobilebert_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> MobileBertForSequenceClassification:
    """Build a `mobilebert_student` with two feed-forward parts a layer and a light attention.

    Queries, keys and values read the bottleneck; in the larger one values read the hidden states,
    and queries and keys a bottleneck of their own.
    """
    return _student(teacher, shape, num_feedforward_networks=2, **LIGHT)


def _check_layers(shape: StudentShape) -> None:
    if shape.teacher_layers:
        raise ModelError(
            f"teacher_layers={shape.teacher_layers}: a MobileBERT student starts from its "
            "teacher's embeddings and from none of its layers. Leave it out."
        )


def _config(teacher: PreTrainedModel, shape: StudentShape, **kind: int) -> MobileBertConfig:
    source = teacher.config
    words = weight_of(teacher.base_model, family_of(teacher).word_embeddings)
    width = shape.hidden_size or source.hidden_size
    heads = shape.heads or source.num_attention_heads
    bottleneck = -(-width // (NARROWING * heads)) * heads
    return MobileBertConfig(
        vocab_size=source.vocab_size,
        embedding_size=min(EMBEDDING_SIZE, words.shape[1], width),
        hidden_size=width,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        intra_bottleneck_size=bottleneck,
        intermediate_size=shape.feed_forward_size or FEED_FORWARD_FACTOR * bottleneck,
        max_position_embeddings=positions_of(teacher),
        type_vocab_size=token_types_of(teacher),
        classifier_activation=False,  # the classifier reads [CLS] itself, as in the paper
        pad_token_id=source.pad_token_id,
        id2label=source.id2label,
        label2id=source.label2id,
        **kind,
    )


def _student(
    teacher: PreTrainedModel, shape: StudentShape, **kind: int
) -> MobileBertForSequenceClassification:
    _check_layers(shape)
    if isinstance(teacher, MobileBertForSequenceClassification) and _is_it(teacher, shape, kind):
        return copy.deepcopy(teacher)
    config = _config(teacher, shape, **kind)
    student = MobileBertForSequenceClassification(config)
    family, own = family_of(teacher), FAMILIES["mobilebert"]
    words = _centred(weight_of(teacher.base_model, family.word_embeddings))
    narrow, widening = factors(words, config.embedding_size)
    with torch.no_grad():
        table = weight_of(student.base_model, own.word_embeddings)
        table.copy_(narrow)
        table[config.pad_token_id] = 0  # a text's last token reads it as its right neighbour
        if widening.shape[1] == config.hidden_size:
            _start_hidden_states(teacher, student, family, widening)
    return student


def _is_it(
    model: MobileBertForSequenceClassification, shape: StudentShape, kind: Mapping[str, int]
) -> bool:
    """Return whether a MobileBERT is already of the kind and the shape that are asked for."""
    whole = {**kind, "num_hidden_layers": shape.layers}
    return not shape.other_widths(model) and all(
        getattr(model.config, name) == value for name, value in whole.items()
    )


def _start_hidden_states(
    teacher: PreTrainedModel,
    student: MobileBertForSequenceClassification,
    family: Family,
    widening: torch.Tensor,
) -> None:
    """Make the embeddings those of the teacher, as if its layer norm divided all by one number.

    A layer norm takes the mean away, divides by the standard deviation, and scales; the first is
    done in the tables here, the last two by the scale that MobileBERT has in its place.
    """
    words = _centred(weight_of(teacher.base_model, family.word_embeddings))
    positions = _positions(teacher, family)
    norm: Any = teacher.base_model.get_submodule(family.embedding_norm)
    embeddings = student.mobilebert.embeddings
    embeddings.embedding_transformation.weight.copy_(_in_the_centre(widening.T))
    embeddings.embedding_transformation.bias.zero_()
    embeddings.position_embeddings.weight.copy_(positions)
    embeddings.token_type_embeddings.weight.copy_(_token_types(teacher, family))
    embeddings.LayerNorm.weight.copy_(norm.weight / _mean_square(words, positions).sqrt())
    embeddings.LayerNorm.bias.copy_(
        torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    )


def _mean_square(words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the sums of every word with every position."""
    product = words.mean(0) * positions.mean(0)
    return words.square().mean() + positions.square().mean() + 2 * product.mean()


def _in_the_centre(weight: torch.Tensor) -> torch.Tensor:
    """Widen a weight (hidden, embedding) to the next, own and last token; the own one counts."""
    nothing = torch.zeros_like(weight)
    return torch.cat([nothing, weight, nothing], dim=1)


def _positions(teacher: PreTrainedModel, family: Family) -> torch.Tensor:
    """Return the positions with the first token type (positions, hidden), or zeros for none."""
    if family.position_embeddings is None:
        table = weight_of(teacher.base_model, family.word_embeddings)
        return table.new_zeros(positions_of(teacher), teacher.config.hidden_size)
    return _centred(position_table(teacher, family))


def _token_types(teacher: PreTrainedModel, family: Family) -> torch.Tensor:
    """Return how the token types differ from the first (types, hidden)."""
    if family.token_type_embeddings is None:
        return torch.zeros(1, teacher.config.hidden_size)
    types = _centred(weight_of(teacher.base_model, family.token_type_embeddings))
    return types - types[0]


def _centred(table: torch.Tensor) -> torch.Tensor:
    """Return vectors (rows, width) with a mean of 0 each."""
    return table - table.mean(-1, keepdim=True)
