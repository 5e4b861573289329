"""Rows of tokens for models that read each text of an example apart."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

CLS, SEP, PAD = 2, 3, 0
TOLERANCE = {"rtol": 0, "atol": 1e-6}


def words(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 60, (count,), generator=generator).tolist()


TEXTS = [[CLS, *words(count, count), SEP] for count in (7, 1, 0, 12, 3)]
A, B = words(6, 1), words(3, 2)
PAIRS = {
    "bert": ([CLS, *A, SEP, *B, SEP], [*A, SEP], [*B, SEP]),
    "roberta": ([CLS, *A, SEP, SEP, *B, SEP], [*A, SEP], [*B, SEP]),
    "no first text": ([CLS, SEP, *B, SEP], [SEP], [*B, SEP]),
    "no second text": ([CLS, *A, SEP, SEP], [*A, SEP], [SEP]),
    "no second text of roberta": ([CLS, *A, SEP, SEP, SEP], [*A, SEP], [SEP]),
    "one text alone": ([CLS, *A, SEP], [*A, SEP], [SEP]),
}
"""The tokens of a pair, and of each of its texts with the separator that ends it."""


def padded(rows: list[list[int]], longest: int = 0) -> dict[str, torch.Tensor]:
    longest = max(longest, *map(len, rows))
    ids = [row + [PAD] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def logits(model: PreTrainedModel, **batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(**batch).logits
