"""Which kernel computes attention in a training step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.nn.attention import SDPBackend, sdpa_kernel

from bertender.training.examples import TensorBatch

__all__ = ["attention_of"]

SHORT_TOKENS = 128
"""Up to about this length, on a CPU, the gradient of torch's flash attention takes longer than that
of plain products and a softmax."""


def attention_of(batch: TensorBatch) -> AbstractContextManager[None]:
    """Return a context in which torch leaves out flash attention if a batch's texts are short.

    Flash attention saves the memory of a matrix a head, tokens x tokens, which is little for these.
    On a CPU torch does not choose it anyway where attention has dropout, and models that compute
    attention themselves never do.
    """
    tokens = batch["input_ids"]
    if tokens.device.type == "cpu" and tokens.shape[-1] <= SHORT_TOKENS:
        return sdpa_kernel(SDPBackend.MATH)
    return nullcontext()
