"""FUSIONS: families whose attention ONNX Runtime can run as one operator, and their preparation.

ONNX Runtime's own optimizer finds layers by the pattern in which PyTorch wrote them. Heads are
counted in each layer by itself, so that pruned models with uneven heads are fused like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnxruntime
import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.distilbert.modeling_distilbert import MultiHeadSelfAttention

from bertender.core.errors import ModelError
from bertender.core.findings import GraphFindings
from bertender.models.families import FAMILIES, family_name

__all__ = ["FUSIONS", "Fusion", "prepare_for_fusion", "require_fused_attention"]

ATTENTION_OPERATORS = ("Attention", "MultiHeadAttention")


class _SummedMask(MultiHeadSelfAttention):
    """DistilBERT's attention with its mask added, as in BERT, where it fills scores in.

    The optimizer no longer recognises masks that are filled in. After the softmax both are equal.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        head_mask: torch.Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return the contexts (batch, seq, hidden) of tokens; mask is (batch, seq)."""
        width = self.attention_head_size
        shape = (query.shape[0], -1, self.n_heads, width)
        queries, keys, values = (
            layer(query).view(shape).transpose(1, 2)  # (batch, heads, seq, head_dim)
            for layer in (self.q_lin, self.k_lin, self.v_lin)
        )
        hidden = (1.0 - mask[:, None, None, :].to(query.dtype)) * torch.finfo(query.dtype).min
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(width) + hidden
        contexts = (scores.softmax(-1) @ values).transpose(1, 2).contiguous()
        joined = contexts.view(query.shape[0], -1, self.n_heads * width)
        return (self.out_lin(joined),)


def _as_it_is(model: PreTrainedModel) -> None:
    return None


def _sum_masks(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention):
            module.__class__ = _SummedMask


@dataclass(frozen=True)
class Fusion:
    """A row of FUSIONS."""

    obstacle: str = ""
    """Why no attention of this family can be fused; empty where it can."""
    prepare: Callable[[PreTrainedModel], None] = _as_it_is
    """Brings a model, before its graph is written, to a form whose pattern is known."""


PREPARATIONS: Mapping[str, Callable[[PreTrainedModel], None]] = {"distilbert": _sum_masks}
"""A family -> what brings its models to a form whose pattern is known, where that is needed."""

FUSIONS: Mapping[str, Fusion] = {
    "bertender-bilstm": Fusion(obstacle="it has no attention"),
    **{
        name: Fusion(row.fusion_obstacle, PREPARATIONS.get(name, _as_it_is))
        for name, row in FAMILIES.items()
    },
}
"""A family, of a pruned model its former one -> how its attention becomes one operator."""


def prepare_for_fusion(model: PreTrainedModel) -> None:
    """Bring a model to the form that the optimizer knows.

    Raises:
        ModelError: no attention of its family can be fused.
    """
    row = FUSIONS.get(family_name(model.config), Fusion("no pattern is known for its layers"))
    if row.obstacle:
        raise _not_fused(model.config, row.obstacle)
    row.prepare(model)


def require_fused_attention(model: PreTrainedModel, graph: GraphFindings) -> None:
    """Raise ModelError where a graph has no fused attention."""
    if any(name in graph.fused for name in ATTENTION_OPERATORS):
        return
    written = model.config._attn_implementation
    cause = (
        f"its attention, written as {written!r} by transformers {transformers.__version__}, is not "
        f"a pattern that onnxruntime {onnxruntime.__version__} recognises"
    )
    raise _not_fused(model.config, cause)


def _not_fused(config: PretrainedConfig, cause: str) -> ModelError:
    fusible = ", ".join(name for name, row in sorted(FUSIONS.items()) if not row.obstacle)
    return ModelError(
        f"--optimize fused finds no attention to fuse in a {config.model_type!r} model, at least "
        f"1 is required: {cause}. Use --optimize basic, or a family that is fused: {fusible}."
    )
