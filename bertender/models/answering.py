"""Models of transformers that answer questions, with the logits of a token side by side.

Their head is one linear layer with two outputs a token, as that of a model that tags words is.
transformers returns its columns apart, as the logits of starts and of ends. Here they are there as
`logits` (batch, seq, 2) too, so that whatever reads the logits of tokens reads these.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ModelError

HEADS = ("qa_outputs", "classifier")
"""Names of the head's layer, in ModernBERT the second."""


class AnsweringModel(PreTrainedModel):
    """A model that answers questions, and returns `logits` besides."""


@functools.cache
def answering_class(origin: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a class of transformers with logits of both columns; it is saved by the same name."""
    if issubclass(origin, AnsweringModel):
        return origin
    whole: Any = origin.forward

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        heard = []
        hook = head_of(self).register_forward_hook(lambda *call: heard.append(call[2]))
        try:
            outputs = whole(self, *arguments, **named)
        finally:
            hook.remove()
        outputs["logits"] = heard[0]
        return outputs

    forward.__signature__ = inspect.signature(whole)  # type: ignore[attr-defined]
    own = {"forward": forward, "__module__": origin.__module__}
    made: type[PreTrainedModel] = type(origin.__name__, (AnsweringModel, origin), own)
    return made


def answering(model: PreTrainedModel) -> PreTrainedModel:
    """Let a model of transformers that answers questions return `logits` besides, in place.

    Raises:
        ModelError: its head has another form.
    """
    head_of(model)
    origin: Any = type(model)
    model.__class__ = answering_class(origin)
    return model


def head_of(model: PreTrainedModel) -> nn.Linear:
    """Return the layer with the two logits of a token, or raise ModelError."""
    for name in HEADS:
        layer = getattr(model, name, None)
        if isinstance(layer, nn.Linear) and layer.out_features == 2:
            return layer
    raise ModelError(
        f"the head of a {type(model).__name__} is not one layer with two outputs a token "
        f"({' or '.join(HEADS)}), and no other form is known. Give a model of another "
        "architecture, such as bert, roberta or electra."
    )
