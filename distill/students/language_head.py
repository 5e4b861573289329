"""Students that predict words: an encoder under a masked-language-model head from its teacher."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from bertender.models.families import family_of

__all__ = ["masked_language_model"]


def masked_language_model(student: PreTrainedModel, teacher: PreTrainedModel) -> PreTrainedModel:
    """Return a student's encoder under a head with the teacher's weights.

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
    names = set(model.base_model.state_dict())  # which has no pooler
    weights = student.base_model.state_dict()
    model.base_model.load_state_dict({key: weights[key] for key in names})
    own, source = (family_of(each).language_head for each in (model, teacher))
    with torch.no_grad():
        for theirs, ours in zip(source.parts, own.parts, strict=False):
            _copy_fitting(teacher.get_submodule(theirs), model.get_submodule(ours))
        bias, taught = model.get_parameter(own.bias), teacher.get_parameter(source.bias)
        if bias.shape == taught.shape:
            bias.copy_(taught)
        if not config.tie_word_embeddings:
            copied = _copy_fitting(teacher.get_output_embeddings(), model.get_output_embeddings())
            model.config.tie_word_embeddings = not copied
    model.tie_weights()
    return model


def _copy_fitting(source: nn.Module, target: nn.Module) -> bool:
    """Copy the weights of a module where every one of them has the same shape; return whether."""
    weights = source.state_dict()
    shapes = {name: weight.shape for name, weight in weights.items()}
    fitting = shapes == {name: weight.shape for name, weight in target.state_dict().items()}
    if fitting:
        target.load_state_dict(weights)
    return fitting
