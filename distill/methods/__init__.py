"""METHODS and GENERAL_METHODS: how to distil on a task and on a corpus, one paper a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.table import LazyTable, Place

if TYPE_CHECKING:  # a row imports PyTorch, naming one does not
    from distill.methods.method import Method

__all__ = ["GENERAL_METHODS", "METHODS"]

METHODS: LazyTable[Method] = LazyTable(
    "distillation method",
    {
        "albert": Place(
            "distill.methods.albert:ALBERT",
            "soft and hard labels and hidden cosine on a student of one shared layer",
        ),
        "bilstm": Place(
            "distill.methods.bilstm:BILSTM",
            "logits as they are, for a BiLSTM student over the teacher's word pieces",
        ),
        "distilbert": Place(
            "distill.methods.distilbert:DISTILBERT",
            "soft labels, hard labels and hidden-state cosine on a DistilBERT student",
        ),
        "hard": Place(
            "distill.methods.hard:HARD",
            "the control: the distilbert student, trained on labels alone",
        ),
        "internal": Place(
            "distill.methods.internal:INTERNAL",
            "attention and [CLS] states layer upon layer from the lowest, then soft, hard labels",
        ),
        "internal-all": Place(
            "distill.methods.internal:INTERNAL_ALL",
            "attention and [CLS] states of all layers at once, with soft and hard labels",
        ),
        "internal-progressive": Place(
            "distill.methods.internal:INTERNAL_PROGRESSIVE",
            "as `internal`, with one layer at a time: those below are not matched any more",
        ),
        "minibert": Place(
            "distill.methods.minibert:MINIBERT",
            "soft and hard labels, of texts or of words, for a BERT of 3 layers x 256",
        ),
        "minilm": Place(
            "distill.methods.minilm:MINILM",
            "attention and value relations of the teacher's last layer, then labels",
        ),
        "minilm-v2": Place(
            "distill.methods.minilm:MINILM_V2",
            "query, key and value relations of the teacher's last layer, then labels",
        ),
        "mobilebert": Place(
            "distill.methods.mobilebert:MOBILEBERT",
            "hidden states and attention of one layer after another, then soft and hard labels",
        ),
        "mobilebert-tiny": Place(
            "distill.methods.mobilebert:MOBILEBERT_TINY",
            "as `mobilebert`, with two feed-forward parts a layer and a light attention",
        ),
        "pd": Place(
            "distill.methods.pd:PD",
            "soft labels alone, for a compact student that was pre-trained on its own",
        ),
        "pkd": Place(
            "distill.methods.pkd:PKD",
            "soft and hard labels, and patience: [CLS] states of every k-th teacher layer",
        ),
        "small-vocab": Place(
            "distill.methods.small_vocab:SMALL_VOCAB",
            "labels, for a narrow student with a small vocabulary that a general stage made",
        ),
        "theseus": Place(
            "distill.methods.theseus:THESEUS",
            "the teacher's layers are replaced by chance, more and more; labels alone",
        ),
        "theseus-constant": Place(
            "distill.methods.theseus:THESEUS_CONSTANT",
            "half of the teacher's layers are replaced by chance, then all; labels alone",
        ),
        "tinybert": Place(
            "distill.methods.tinybert:TINYBERT",
            "hidden states and attention scores of evenly spread layers, then soft labels",
        ),
    },
)
"""On a task."""

GENERAL_METHODS: LazyTable[Method] = LazyTable(
    "distillation method",
    {
        "distilbert": Place(
            "distill.methods.distilbert:DISTILBERT_GENERAL",
            "soft labels over the vocabulary, masked words and hidden-state cosine",
        ),
        "minilm": Place(
            "distill.methods.minilm:MINILM_GENERAL",
            "attention and value relations of the teacher's last layer",
        ),
        "minilm-v2": Place(
            "distill.methods.minilm:MINILM_V2_GENERAL",
            "query, key and value relations of the teacher's last layer",
        ),
        "mobilebert": Place(
            "distill.methods.mobilebert:MOBILEBERT_GENERAL",
            "hidden states and attention of one layer after another, then masked words",
        ),
        "mobilebert-tiny": Place(
            "distill.methods.mobilebert:MOBILEBERT_TINY_GENERAL",
            "as `mobilebert`, with two feed-forward parts a layer and a light attention",
        ),
        "small-vocab": Place(
            "distill.methods.small_vocab:SMALL_VOCAB_GENERAL",
            "masked words in a small vocabulary, beside a copy of the teacher that learns it too",
        ),
        "tinybert": Place(
            "distill.methods.tinybert:TINYBERT_GENERAL",
            "hidden states and attention scores of evenly spread layers",
        ),
    },
)
"""Those that also distil an encoder into a smaller one on plain text, before any task."""
