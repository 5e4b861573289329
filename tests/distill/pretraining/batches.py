"""Random batches, and what is pre-trained on them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig

from bertender.training.examples import TensorBatch
from distill.pretraining.objectives import PretrainingModule
from distill.pretraining.pretrain import TRAINING_MODULES
from distill.pretraining.segment_pairs import (
    NEXT_SENTENCE,
    SENTENCE_ORDER,
    SENTENCE_STRUCTURE,
)
from tests.toy_models import BERT_SHAPE, VOCABULARY
from tests.toys import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LENGTH = 48
WHOLE_WORDS = ("mlm+sop", "phrase", "span", "wwm")
"""Objectives that ask for all pieces of a word together."""


def batch_of(rows: int = 64) -> TensorBatch:
    """Random pieces between [CLS] and [SEP], with a [SEP] in the middle, some rows padded."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, VOCABULARY, (rows, LENGTH), generator=generator)
    ids[:, 0], ids[:, 20], ids[:, -1] = (
        TOKENIZER.cls_token_id,
        TOKENIZER.sep_token_id,
        TOKENIZER.sep_token_id,
    )
    ids[::2, 40:] = TOKENIZER.pad_token_id
    labels = torch.randint(0, 2, (rows,), generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": (ids != TOKENIZER.pad_token_id).long(),
        "token_type_ids": (torch.arange(LENGTH) > 20).long().expand(rows, -1),
        NEXT_SENTENCE: labels,
        SENTENCE_ORDER: labels,
        SENTENCE_STRUCTURE: torch.arange(rows) % 3,
    }


def pretraining_module_of(name: str, **changes: Any) -> PretrainingModule:
    torch.manual_seed(0)
    kind = TRAINING_MODULES[name]
    shape = BertConfig(**{**BERT_SHAPE, "vocab_size": VOCABULARY, "pad_token_id": 0, **changes})
    return kind(kind.untrained(shape))


def objective_of(name: str, seed: int = 0, share: float = 0.15) -> Any:
    return TRAINING_MODULES[name].objective(TOKENIZER, share, seed)
