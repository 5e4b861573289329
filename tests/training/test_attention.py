"""Attention in a training step: which kernel computes it, and that both have one gradient."""

from __future__ import annotations

import pytest
import torch
from torch.backends.cuda import flash_sdp_enabled, math_sdp_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertender.training.steps import SHORT_TOKENS, attention_of


@pytest.mark.parametrize(("tokens", "flash"), [(SHORT_TOKENS, False), (SHORT_TOKENS + 1, True)])
def test_short_batches_do_without_flash_attention_on_a_cpu(tokens: int, flash: bool) -> None:
    assert flash_sdp_enabled()
    with attention_of({"input_ids": torch.zeros(2, tokens, dtype=torch.long)}):
        assert (flash_sdp_enabled(), math_sdp_enabled()) == (flash, True)
    assert flash_sdp_enabled()


def test_a_gpu_chooses_its_own() -> None:
    with attention_of({"input_ids": torch.zeros(2, 8, dtype=torch.long, device="meta")}):
        assert flash_sdp_enabled()


def test_both_kernels_have_the_same_gradient() -> None:
    torch.manual_seed(0)
    drawn = torch.randn(3, 2, 4, 16, 8)  # query, key, value; texts x heads x tokens x width
    gradients = []
    flash = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    for context in (attention_of({"input_ids": torch.zeros(2, 16)}), flash):
        parts = drawn.clone().requires_grad_()
        with context:
            attended = torch.nn.functional.scaled_dot_product_attention(*parts)
        attended.square().sum().backward()
        gradients.append(parts.grad)
    torch.testing.assert_close(*gradients)
