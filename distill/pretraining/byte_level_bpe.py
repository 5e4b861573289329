"""Byte-level byte-pair encoding, cased, as RoBERTa's (Liu et al. 2019, arXiv 1907.11692, 4.4)."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import ByteLevelBPETokenizer, processors
from transformers import RobertaTokenizerFast

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""The special tokens and the bytes."""


def train_byte_level_bpe(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> RobertaTokenizerFast:
    """Train a byte-level BPE vocabulary on a corpus; the same passages give the same one.

    The trainer sorts the bytes, whose number is fixed, before it merges, and takes the lower pair
    of numbers where counts tie: the order in which it meets words does not show.
    """
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        passages,
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    start, end = ((token, trainer.token_to_id(token)) for token in ("<s>", "</s>"))
    trainer.post_processor = processors.RobertaProcessing(
        sep=end, cls=start, add_prefix_space=False
    )
    return RobertaTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=max_length)
