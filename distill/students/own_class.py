"""Students of the teacher's own class with fewer layers, and BERTs of any width."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import encoder_layers, family_of
from distill.students.student import StudentShape, check_widths, chosen_layers, shortened_family
from distill.students.weights import copy_module, positions_of, token_types_of


def shorter_student(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a model of the teacher's own class with fewer layers, and all else the teacher's.

    Raises:
        ModelError: the teacher has fewer layers, or layers of its own kind; or the shape asks for
            another width.
    """
    family = shortened_family(teacher)
    chosen = chosen_layers(teacher, shape)
    check_widths(teacher, shape, "a shorter copy of the teacher", "tinybert")
    config = copy.deepcopy(teacher.config)
    config.update({**_settings_of(teacher, chosen), "num_hidden_layers": shape.layers})
    student: PreTrainedModel = type(teacher)(config)
    weights = {
        key: value for key, value in teacher.state_dict().items() if f"{family.layers}." not in key
    }
    student.load_state_dict(weights, strict=False)
    for source, target in zip(chosen, encoder_layers(student), strict=True):
        copy_module(encoder_layers(teacher)[source], target)
    return student


def _settings_of(teacher: PreTrainedModel, chosen: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the settings that a copy of some layers needs, or raise ModelError."""
    family, config = family_of(teacher), teacher.config
    settings = family.settings_of_layers(config, chosen)
    if settings is None:
        raise ModelError(
            f"teacher_layers={chosen}: a {config.model_type!r} model of these layers alone would "
            "compute them in another way than the teacher. Give others, such as "
            f"{family.nearest_layers(config, chosen)}, or leave it out."
        )
    return settings


def any_width_student(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a BERT of any depth and width over the teacher's vocabulary, or over its own.

    A student as wide as its teacher, with its vocabulary, is its `shorter_student`. Any other
    starts from random weights: it should then learn on much text, or from a general stage.

    Raises:
        ModelError: the heads do not divide the width, there are layers to start from that are
            of another width, or the teacher is not a row of FAMILIES.
    """
    if shape.tokenizer is None and not shape.other_widths(teacher):
        return shorter_student(teacher, shape)
    if shape.teacher_layers:
        raise ModelError(
            f"teacher_layers={shape.teacher_layers}: a student of another width, or of another "
            "vocabulary, starts from random weights, not from layers. Leave it out."
        )
    config, source, positions = BertConfig(), teacher.config, positions_of(teacher)
    width, heads = (
        shape.hidden_size or source.hidden_size,
        shape.heads or source.num_attention_heads,
    )
    if width % heads:
        raise ModelError(
            f"hidden_size={width} is not a multiple of heads={heads}. Choose heads to divide it."
        )
    own = shape.tokenizer
    config.update(
        {
            "vocab_size": len(own) if own else source.vocab_size,
            "hidden_size": width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": heads,
            "intermediate_size": shape.feed_forward_size or 4 * width,
            "max_position_embeddings": positions,
            # its own tokenizer tells the texts of a pair apart, even if the teacher's does not
            "type_vocab_size": max(token_types_of(teacher), 2 if own else 1),
            "pad_token_id": own.pad_token_id if own else source.pad_token_id,
            "id2label": source.id2label,
            "label2id": source.label2id,
        }
    )
    return BertForSequenceClassification(config)
