"""METHODS: how to distil on a task, and for some on a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertender.core.config import LazyTable, Place

if TYPE_CHECKING:
    from distill.methods.method import Method


@dataclass(frozen=True)
class MethodPlace(Place):
    """Where a method is written, and what is known of it before its module is imported."""

    on_corpus: str = ""
    """Summary of its phases on plain text, before any task; empty without `general`."""


class _GeneralMethods(LazyTable["Method"]):
    """The rows of METHODS that also distil on a corpus, as they do there."""

    def __getitem__(self, name: str) -> Method:
        return super().__getitem__(name).on_corpus


_PLACES = {
    "albert": MethodPlace(
        "distill.methods.albert:ALBERT",
        "soft and hard labels and hidden cosine on a student of one shared layer",
    ),
    "bilstm": MethodPlace(
        "distill.methods.bilstm:BILSTM",
        "logits as they are, for a BiLSTM student over the teacher's tokens",
    ),
    "distilbert": MethodPlace(
        "distill.methods.distilbert:DISTILBERT",
        "soft labels, hard labels and hidden-state cosine on a DistilBERT student",
        on_corpus="soft labels over the vocabulary, masked words and hidden-state cosine",
    ),
    "hard": MethodPlace(
        "distill.methods.hard:HARD",
        "the control: the distilbert student, trained on labels alone",
    ),
    "internal": MethodPlace(
        "distill.methods.internal:INTERNAL",
        "attention and [CLS] states layer upon layer from the lowest, then soft, hard labels",
    ),
    "internal-all": MethodPlace(
        "distill.methods.internal:INTERNAL_ALL",
        "attention and [CLS] states of all layers at once, with soft and hard labels",
    ),
    "internal-progressive": MethodPlace(
        "distill.methods.internal:INTERNAL_PROGRESSIVE",
        "as `internal`, with one layer at a time: those below are not matched any more",
    ),
    "minibert": MethodPlace(
        "distill.methods.minibert:MINIBERT",
        "soft and hard labels, of texts or of words, for a BERT of 3 layers x 256",
    ),
    "minilm": MethodPlace(
        "distill.methods.minilm:MINILM",
        "attention and value relations of the teacher's last layer, then labels",
        on_corpus="attention and value relations of the teacher's last layer",
    ),
    "minilm-v2": MethodPlace(
        "distill.methods.minilm:MINILM_V2",
        "query, key and value relations of the teacher's last layer, then labels",
        on_corpus="query, key and value relations of the teacher's last layer",
    ),
    "mobilebert": MethodPlace(
        "distill.methods.mobilebert:MOBILEBERT",
        "hidden states and attention of one layer after another, then soft and hard labels",
        on_corpus="hidden states and attention of one layer after another, then masked words",
    ),
    "mobilebert-tiny": MethodPlace(
        "distill.methods.mobilebert:MOBILEBERT_TINY",
        "as `mobilebert`, with two feed-forward parts a layer and a light attention",
        on_corpus="as `mobilebert`, with two feed-forward parts a layer and a light attention",
    ),
    "pd": MethodPlace(
        "distill.methods.pd:PD",
        "soft labels alone, for a compact student that was pre-trained on its own",
    ),
    "pkd": MethodPlace(
        "distill.methods.pkd:PKD",
        "soft and hard labels, and patience: [CLS] states of every k-th teacher layer",
    ),
    "small-vocab": MethodPlace(
        "distill.methods.small_vocab:SMALL_VOCAB",
        "labels, for a narrow student with a small vocabulary that a general stage made",
        on_corpus="masked words in a small vocabulary, next to a teacher's copy that learns it too",
    ),
    "static": MethodPlace(
        "distill.methods.static:STATIC",
        "logits as they are, for a table of vectors over the teacher's tokens",
    ),
    "theseus": MethodPlace(
        "distill.methods.theseus:THESEUS",
        "the teacher's layers are replaced by chance, more and more; labels alone",
    ),
    "theseus-constant": MethodPlace(
        "distill.methods.theseus:THESEUS_CONSTANT",
        "half of the teacher's layers are replaced by chance, then all; labels alone",
    ),
    "tinybert": MethodPlace(
        "distill.methods.tinybert:TINYBERT",
        "hidden states and attention scores of evenly spread layers, then soft labels",
        on_corpus="hidden states and attention scores of evenly spread layers",
    ),
}

METHODS: LazyTable[Method] = LazyTable("distillation method", _PLACES)
"""On a task."""

GENERAL_METHODS = _GeneralMethods(
    "distillation method",
    {
        name: Place(place.path, place.on_corpus)
        for name, place in _PLACES.items()
        if place.on_corpus
    },
)
"""Those that also distil an encoder into a smaller one on plain text, before any task."""
