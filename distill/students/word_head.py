"""The head of a student: methods build students that label texts, and a tagger labels words."""

from __future__ import annotations

from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.own_models import OWN_MODELS
from bertender.training.heads import Head

__all__ = ["with_head"]


def with_head(student: PreTrainedModel, head: Head) -> PreTrainedModel:
    """Return a model with the student's encoder; its head is new where it is not one already.

    Raises:
        ModelError: the student is of a class of bertender's own, which labels texts alone.
    """
    if not head.per_token:
        return student
    if student.config.model_type in OWN_MODELS:
        raise ModelError(
            f"a {student.config.model_type!r} student labels texts and cannot tag words. Choose a "
            "method whose students are of a class of transformers, such as minibert."
        )
    tagger: PreTrainedModel = head.auto_class.from_config(student.config)
    if isinstance(student, type(tagger)):
        return student
    own = tagger.base_model.state_dict()
    encoder = student.base_model.state_dict()  # with a pooler, which taggers do not have
    tagger.base_model.load_state_dict({name: encoder[name] for name in own})
    return tagger
