"""Telling the attention of a layer that it has other heads than its model was built with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

__all__ = ["Pruning", "bert_heads", "distilbert_heads", "mpnet_heads"]


def bert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads where BERT has it."""
    attention.num_attention_heads = len(heads)
    attention.all_head_size = len(heads) * size


def distilbert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads where DistilBERT has it."""
    attention.n_heads = len(heads)
    attention.dim = len(heads) * size


def mpnet_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """MPNet's bias by distance has all first heads, in every layer; each layer takes its own."""
    bert_heads(attention, heads, size)
    attention.register_forward_pre_hook(partial(_of_heads, heads=list(heads)), with_kwargs=True)


def _of_heads(
    attention: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, heads: list[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an attention with the position bias (batch, heads, seq, seq) of some
    heads; also where none is given."""
    call = inspect.signature(attention.forward).bind(*arguments, **keywords)
    if (bias := call.arguments.get("position_bias")) is not None:
        call.arguments["position_bias"] = bias[:, heads]
    return call.args, call.kwargs


@dataclass(frozen=True)
class Pruning:
    """How the layers of an architecture come to differ in their heads and neurons."""

    set_heads: Callable[[nn.Module, Sequence[int], int], None] = bert_heads
    """(attention module, numbers of its heads before any cut, head_dim) tells it which it has"""
    width: str = "intermediate_size"
    """The setting of the config that says how many neurons each layer has."""
