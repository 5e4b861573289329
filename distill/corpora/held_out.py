"""Held-out passages of pre-training, and the loss on them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from bertender.text.batching import length_buckets
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.objective import Objective
from distill.corpora.corpus import HELD_OUT_EVERY

__all__ = ["HELD_OUT_EVERY", "held_out_loss", "part_of"]

HELD_OUT_STEP = 2**31
"""The step that held-out masks are drawn from: no training step comes so far."""
TOKENS_PER_BATCH = 8192


def part_of(passages: Iterable[str], *, held_out: bool, run: int = 1) -> Iterator[str]:
    """Yield the passages that are held out, or those that are not.

    Args:
        passages: an empty one ends a document; these are in both parts.
        held_out: which part.
        run: so many consecutive passages are held out together. Where it is more than one, an
            empty passage stands wherever some are missing, for what surrounds them is not
            consecutive any more.
    """
    number, gap = 0, False
    for passage in passages:
        if passage and (number // run % HELD_OUT_EVERY == 0) != held_out:
            gap = run > 1
        else:
            if gap and passage:
                yield ""
            gap = False
            yield passage
        number += bool(passage)


def held_out_loss(
    model: torch.nn.Module,
    objective: Objective,
    examples: TokenDataset,
    perplexity_of: str | None = None,
) -> dict[str, float]:
    """Return the loss on held-out rows and each of its parts, masked the same way every time.

    Args:
        model: what the objective runs.
        objective: the loss.
        examples: held-out rows.
        perplexity_of: the part whose exponential is returned as "perplexity"; None for none.
    """
    model.eval()
    means = _mean_parts(model, objective, examples)
    scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
    if perplexity_of is None:
        return scores
    return {**scores, "perplexity": math.exp(means[perplexity_of])}


def _mean_parts(
    model: torch.nn.Module, objective: Objective, examples: TokenDataset
) -> dict[str, float]:
    """Return each part of the loss, a mean over the batches by how many tokens they have."""
    batches = _batches(examples, next(model.parameters()).device)
    sums: dict[str, float] = defaultdict(float)
    tokens = 0
    for step, batch in enumerate(batches):
        with torch.inference_mode():
            parts = objective(model, batch, HELD_OUT_STEP + step)
        size = batch["input_ids"].numel()
        tokens += size
        for name, part in parts.items():
            sums[name] += float(part) * size
    return {name: total / tokens for name, total in sums.items()}


def _batches(examples: TokenDataset, device: torch.device) -> Iterator[TensorBatch]:
    """Yield the rows in batches of like length, on the device."""
    for bucket in length_buckets(examples.lengths, TOKENS_PER_BATCH):
        batch = examples.collate([examples[index] for index in bucket])
        yield {name: tensor.to(device) for name, tensor in batch.items()}
