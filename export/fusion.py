"""Fused attention in a graph: which models can have it, and whether a graph has it.

ONNX Runtime's own optimizer finds layers by the pattern in which PyTorch wrote them. Heads are
counted in each layer by itself, so that pruned models with uneven heads are fused like others.
"""

from __future__ import annotations

import onnxruntime
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.findings import GraphFindings
from bertender.models.families import family_name
from bertender.models.fusions import FUSIONS, NEVER_SEEN

__all__ = ["check_fusible", "prepare_for_fusion", "require_fused_attention"]

ATTENTION_OPERATORS = ("Attention", "MultiHeadAttention")


def prepare_for_fusion(model: PreTrainedModel) -> None:
    """Bring a model, which `check_fusible` has passed, to the form that the optimizer knows."""
    FUSIONS[family_name(model.config)].prepare(model)


def check_fusible(model: PreTrainedModel) -> None:
    """Raise ModelError where no attention of a model's family can be fused."""
    row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
    if row.obstacle:
        raise _not_fused(model.config, row.obstacle)


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
