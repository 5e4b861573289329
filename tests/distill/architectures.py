"""Tiny teachers of every architecture that is promised, each with a tokenizer of its own kind.

The tokenizers are built here: word pieces, byte-level BPE and unigram, with each kind's own special
tokens and side of padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AlbertTokenizerFast,
    AutoConfig,
    AutoModel,
    DebertaV2TokenizerFast,
    GPT2TokenizerFast,
    MPNetTokenizerFast,
    PreTrainedTokenizerFast,
    Qwen2TokenizerFast,
    RobertaTokenizerFast,
    T5TokenizerFast,
    XLMRobertaTokenizerFast,
    XLNetTokenizerFast,
)

from tests.toy_models import LONGEST, SHAPES
from tests.toys import FRUIT, TOOLS, tiny_tokenizer

__all__ = ["ARCHITECTURES", "Architecture", "save_teacher"]

WORDS = (*FRUIT, *TOOLS, "number")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Architecture:
    """A tiny encoder, decoder or both, and what tokenises for it."""

    shape: Mapping[str, Any]
    tokenizer: Callable[[], PreTrainedTokenizerFast]


def _template(single: str, pair: str) -> Callable[[Tokenizer], None]:
    """Return what makes a tokenizer put special tokens around texts, and number the segments."""

    def apply(tokenizer: Tokenizer) -> None:
        names = [name for name in {*single.split(), *pair.split()} if not name.startswith("$")]
        tokens = sorted({name.partition(":")[0] for name in names})
        tokens = [(piece, tokenizer.token_to_id(piece)) for piece in tokens]
        tokenizer.post_processor = processors.TemplateProcessing(single, pair, tokens)

    return apply


def _unigram(specials: Sequence[str], template: Callable[[Tokenizer], None]) -> Tokenizer:
    """A unigram tokenizer of whole toy words and single letters."""
    tokens = [(special, 0.0) for special in specials]
    tokens += [(f"\N{LOWER ONE EIGHTH BLOCK}{word}", -1.0) for word in WORDS]
    tokens += [(letter, -5.0) for letter in (*LETTERS, "\N{LOWER ONE EIGHTH BLOCK}")]
    tokenizer = Tokenizer(models.Unigram(tokens, unk_id=list(specials).index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(specials))
    template(tokenizer)
    return tokenizer


def _bytes(specials: Sequence[str]) -> Tokenizer:
    """A byte-level BPE tokenizer trained on the toy words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 50, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _gpt2() -> PreTrainedTokenizerFast:
    return GPT2TokenizerFast(tokenizer_object=_bytes(["<|endoftext|>"]))


def _qwen3() -> PreTrainedTokenizerFast:
    """As of its chat models: padding has a token of its own, and texts get no end token."""
    tokens = _bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    return Qwen2TokenizerFast(tokenizer_object=tokens, **ends)


def _roberta() -> PreTrainedTokenizerFast:
    tokenizer = _bytes(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends)
    return RobertaTokenizerFast(tokenizer_object=tokenizer)


def _t5() -> PreTrainedTokenizerFast:
    template = _template("$A </s>", "$A </s> $B </s>")
    tokens = _unigram(["<pad>", "</s>", "<unk>"], template)
    return T5TokenizerFast(tokenizer_object=tokens, extra_ids=0)


def _xlnet() -> PreTrainedTokenizerFast:
    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    template = _template("$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2")
    return XLNetTokenizerFast(tokenizer_object=_unigram(specials, template))


def _albert() -> PreTrainedTokenizerFast:
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    return AlbertTokenizerFast(tokenizer_object=_unigram(specials, BETWEEN_BRACKETS))


def _deberta() -> PreTrainedTokenizerFast:
    tokens = _unigram(["[PAD]", "[CLS]", "[SEP]", "<unk>", "[MASK]"], BETWEEN_BRACKETS)
    return DebertaV2TokenizerFast(tokenizer_object=tokens, unk_token="<unk>")


def _xlm_roberta() -> PreTrainedTokenizerFast:
    template = _template("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    tokens = _unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], template)
    return XLMRobertaTokenizerFast(tokenizer_object=tokens)


def _mpnet() -> PreTrainedTokenizerFast:
    """Word pieces with the ids of special tokens that MPNet's code has in it: pad is 1."""
    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    others = [piece for piece in tiny_tokenizer().get_vocab() if not piece.startswith("[")]
    vocabulary = {piece: place for place, piece in enumerate((*specials, *sorted(others)))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(specials))
    _template("<s> $A </s>", "<s> $A </s> </s> $B </s>")(tokenizer)
    return MPNetTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


BETWEEN_BRACKETS = _template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")

ARCHITECTURES: Mapping[str, Architecture] = {
    "albert": Architecture(SHAPES["albert"], _albert),
    "bert": Architecture(SHAPES["bert"], tiny_tokenizer),
    "camembert": Architecture(SHAPES["camembert"], _xlm_roberta),
    "deberta-v2": Architecture(SHAPES["deberta-v2"], _deberta),
    "distilbert": Architecture(SHAPES["distilbert"], tiny_tokenizer),
    "electra": Architecture(SHAPES["electra"], tiny_tokenizer),
    "gpt2": Architecture({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LONGEST}, _gpt2),
    "mobilebert": Architecture(SHAPES["mobilebert"], tiny_tokenizer),
    "modernbert": Architecture(SHAPES["modernbert"], tiny_tokenizer),
    "mpnet": Architecture(SHAPES["mpnet"], _mpnet),
    "qwen3": Architecture(
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 64,
            "max_position_embeddings": LONGEST,
            "bos_token_id": None,
        },
        _qwen3,
    ),
    "roberta": Architecture({**SHAPES["roberta"], "type_vocab_size": 1}, _roberta),
    "t5": Architecture(
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        _t5,
    ),
    "xlm-roberta": Architecture({**SHAPES["xlm-roberta"], "type_vocab_size": 1}, _xlm_roberta),
    "xlnet": Architecture({"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, _xlnet),
}


def save_teacher(name: str, folder: Path, kind: Any = AutoModel) -> Path:
    """A plain folder with a model and its tokenizer, as one gets it from a hub.

    Args:
        name: a row of ARCHITECTURES.
        folder: where to.
        kind: the class of the model, without a head by default.
    """
    torch.manual_seed(5)
    row = ARCHITECTURES[name]
    tokenizer = row.tokenizer()
    config = AutoConfig.for_model(name, **row.shape, vocab_size=len(tokenizer))
    kind.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
