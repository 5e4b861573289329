"""Vocabulary pruning: only the tokens of some texts and all single characters remain.

A text whose tokens all remain is tokenised and classified as before. Other texts are split into
smaller tokens, down to characters.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.findings import VocabularyFindings, VocabularyReading
from bertender.models.families import FAMILIES, family_name
from bertender.models.own_models import OWN_MODELS
from bertender.text.batch import batched

NOT_OF_A_TOKENIZER = frozenset(
    {"added_tokens_decoder", "name_or_path", "tokenizer_file", "vocab_file"}
)
"""Settings of a tokenizer that have token ids, or the tokenizer's source."""
TEXTS_AT_ONCE = 1000
OF_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


@dataclass(frozen=True)
class RemainingTokens:
    """A pruned tokenizer, and the ids of its tokens before pruning."""

    tokenizer: PreTrainedTokenizerFast
    rows: tuple[int, ...]
    """Former ids of the remaining tokens, in order."""


def read(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> VocabularyReading:
    """Return how a tokenizer splits texts, without special tokens."""
    texts = list(texts)
    counts = _counted(tokenizer, texts)
    total = sum(counts.values())
    return VocabularyReading(
        entries=len(tokenizer),
        pieces_per_text=total / max(len(texts), 1),
        unknown=counts[tokenizer.unk_token_id] / max(total, 1),
    )


def whole_words(
    tokenizer: PreTrainedTokenizerBase, tokens: RemainingTokens, texts: Iterable[str]
) -> float:
    """Return the share of the words of texts whose tokens all remain.

    Args:
        tokenizer: unpruned tokenizer.
        tokens: remaining tokens.
        texts: texts, split into words by the tokenizer's pre-tokenizer; without any, it is 0.
    """
    kept, total, broken = set(tokens.rows), 0, 0
    for batch in batched(filter(None, texts), TEXTS_AT_ONCE):
        for text in tokenizer(batch, add_special_tokens=False, verbose=False).encodings or ():
            total += len({*text.word_ids})
            words = zip(text.word_ids, text.ids, strict=True)
            broken += len({word for word, token in words if token not in kept})
    return 1 - broken / total if total else 0.0


def needed_tokens(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    floor: int = 1,
    size: int | None = None,
) -> RemainingTokens:
    """Return a tokenizer with the tokens that occur in texts, characters and special tokens.

    Args:
        tokenizer: a fast tokenizer: WordPiece, unigram or BPE.
        texts: texts whose tokens remain.
        floor: fewest occurrences of a remaining token.
        size: most entries of the vocabulary; the most frequent remain.

    Raises:
        ModelError: the tokenizer is of another kind.
        DataError: there are no texts.
        ConfigError: the tokens that always remain are more than `size`.
    """
    described = _TokenizerFile.of(tokenizer)
    described.check_gaps()
    counts = _counted(tokenizer, texts)
    if not counts:
        raise DataError("no texts to count tokens in. Give some.")
    often = [token for token, count in counts.most_common() if count >= floor]
    special = set(tokenizer.all_special_ids)

    def first(count: int) -> list[int]:
        return described.closed({*often[:count], *special})

    most = len(often)
    if size is not None:
        always = len(first(0))
        if always > size:
            raise ConfigError(
                f"vocab_size={size}: single characters and special tokens are {always} entries, "
                f"and always stay. Give {always} or more."
            )
        most = bisect_right(range(most + 1), size, key=lambda count: len(first(count))) - 1
    rows = first(most)
    return RemainingTokens(described.rebuilt(rows), tuple(rows))


def least_entries(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of entries that always remain: single characters and special tokens.

    Raises:
        ModelError: the tokenizer cannot be pruned.
    """
    return len(_TokenizerFile.of(tokenizer).closed(set(tokenizer.all_special_ids)))


def cut_vocabulary(model: PreTrainedModel, tokens: RemainingTokens) -> None:
    """Cut a model's embedding tables to the remaining tokens, in place.

    Raises:
        ModelError: the architecture counts positions from the padding id, which would change.
    """
    old = model.get_input_embeddings()
    assert isinstance(old, nn.Embedding)
    numbers = {row: number for number, row in enumerate(tokens.rows)}
    check_padding_stays(model, tokens)
    rows = torch.tensor(tokens.rows, device=old.weight.device)
    table = old.weight.detach()[rows]
    padding = None if old.padding_idx is None else numbers.get(old.padding_idx)
    model.set_input_embeddings(nn.Embedding.from_pretrained(table.clone(), False, padding))
    own = OWN_MODELS.get(model.config.model_type)
    for path in own.per_token if own else ():
        module, _, weight = path.rpartition(".")
        remaining = model.get_parameter(path).detach()[rows].clone()
        setattr(model.get_submodule(module), weight, nn.Parameter(remaining))
    model.config.vocab_size = len(tokens.rows)
    for name in OF_SPECIAL_TOKENS:
        if (number := getattr(model.config, name, None)) is not None:
            setattr(model.config, name, numbers.get(number))


def cut_and_read(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: RemainingTokens,
    held_out: Iterable[str],
) -> VocabularyFindings:
    """Cut a model's vocabulary in place; return how held-out texts are tokenised before and after.

    Raises:
        ModelError: see `cut_vocabulary`.
    """
    cut_vocabulary(model, tokens)
    texts = list(held_out)
    before, after = (read(each, texts) for each in (tokenizer, tokens.tokenizer))
    whole = whole_words(tokenizer, tokens, texts)
    return VocabularyFindings(before=before, after=after, whole_words=whole)


def check_padding_stays(model: PreTrainedModel, tokens: RemainingTokens) -> None:
    """Raise ModelError where the model counts positions from the padding id, which would change."""
    family, padding = FAMILIES.get(family_name(model.config)), model.config.pad_token_id
    if family is None or padding is None or family.first_position(model.config) == 0:
        return
    if tokens.rows[padding : padding + 1] != (padding,):
        raise ModelError(
            f"the padding of this {model.config.model_type!r} model is token {padding}, from which "
            "its positions are counted, and tokens before it would go. Its vocabulary cannot be "
            "pruned."
        )


def _counted(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[int]:
    """Count the tokens of texts."""
    counts: Counter[int] = Counter()
    for batch in batched(filter(None, texts), TEXTS_AT_ONCE):
        tokens = tokenizer(batch, add_special_tokens=False, verbose=False)
        for ids in tokens["input_ids"]:
            counts.update(ids)
    return counts


class _TokenizerFile:
    """A tokenizer.json of WordPiece, with the relations of its tokens."""

    mark = "##"
    """Prefix of tokens that is not part of their text."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, description: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.description = description
        self.model: dict[str, Any] = description["model"]

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase) -> _TokenizerFile:
        """Read the tokenizer.json of a tokenizer.

        Raises:
            ModelError: there is no tokenizer.json, or its kind is not in KINDS.
        """
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ModelError(
                f"the tokenizer ({type(tokenizer).__name__}) has no tokenizer.json, so that its "
                "tokens cannot be pruned. Give a model with one."
            )
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        name = description["model"]["type"]
        if name not in KINDS:
            raise ModelError(
                f"a tokenizer of kind {name!r} cannot be pruned. Kinds that can: "
                f"{', '.join(KINDS)}."
            )
        return KINDS[name](tokenizer, description)

    def tokens(self) -> list[str]:
        """Return the tokens in the order of their numbers."""
        vocabulary = self.model["vocab"]
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def parts(self) -> Mapping[str, list[str]]:
        """Return the parts that each token is merged from, where tokens are merged."""
        return {}

    def kept(self, rows: list[int]) -> dict[str, Any]:
        """Return the model of tokenizer.json with only these tokens, renumbered in order."""
        tokens = self.tokens()
        return {**self.model, "vocab": {tokens[row]: number for number, row in enumerate(rows)}}

    def check_gaps(self) -> None:
        """Raise ModelError where the numbers of the tokens have gaps."""
        vocabulary = self.model["vocab"]
        if isinstance(vocabulary, dict) and {*vocabulary.values()} != {*range(len(vocabulary))}:
            raise ModelError(
                "the numbers of the tokenizer's tokens have gaps (perhaps from a duplicate line of "
                "its vocabulary), so that it cannot be pruned. Save it again without them."
            )

    def closed(self, used: set[int]) -> list[int]:
        """Return the remaining ids, including characters, added tokens, and parts of tokens."""
        tokens, end = self.tokens(), self.model.get("end_of_word_suffix") or ""
        numbers = {token: number for number, token in enumerate(tokens)}
        added = {token["id"] for token in self.description["added_tokens"]}
        characters = {
            number
            for number, token in enumerate(tokens)
            if len(token.removeprefix(self.mark).removesuffix(end)) <= 1
            or token.startswith("<0x")  # a byte token
        }
        parts = self.parts()
        waiting = [tokens[number] for number in used if number < len(tokens)]
        remaining = used | added | characters
        while waiting:
            for part in parts.get(waiting.pop(), ()):
                if numbers[part] not in remaining:
                    remaining.add(numbers[part])
                    waiting.append(part)
        return sorted(remaining)

    def rebuilt(self, rows: list[int]) -> PreTrainedTokenizerFast:
        """Return the tokenizer with only some tokens, renumbered in the same order."""
        numbers = {row: number for number, row in enumerate(rows)}
        count = len(self.tokens())
        self.description["model"] = self.kept([row for row in rows if row < count])
        for token in self.description["added_tokens"]:
            token["id"] = numbers[token["id"]]
        _renumber(self.description["post_processor"] or {}, numbers)
        settings = {
            name: value
            for name, value in self.tokenizer.init_kwargs.items()
            if name not in NOT_OF_A_TOKENIZER and not name.endswith("_file")
        }
        # settings may have changed after loading
        settings["model_max_length"] = self.tokenizer.model_max_length
        backend = Tokenizer.from_str(json.dumps(self.description))
        return type(self.tokenizer)(tokenizer_object=backend, **settings)


class _Unigram(_TokenizerFile):
    mark = "▁"

    def tokens(self) -> list[str]:
        return [token for token, _ in self.model["vocab"]]

    def kept(self, rows: list[int]) -> dict[str, Any]:
        unknown = self.model["unk_id"]
        return {
            **self.model,
            "vocab": [self.model["vocab"][row] for row in rows],
            "unk_id": None if unknown is None else rows.index(unknown),
        }


class _BytePairs(_TokenizerFile):
    mark = "Ġ"

    def merges(self) -> list[list[str]]:
        """Return the pairs that are merged, in order."""
        return [
            merge.split(" ") if isinstance(merge, str) else list(merge)
            for merge in self.model["merges"]
        ]

    def parts(self) -> Mapping[str, list[str]]:
        """Return the parts of each token, by every merge that makes it."""
        parts: dict[str, list[str]] = {}
        for pair in self.merges():
            parts.setdefault("".join(pair), []).extend(pair)
        return parts

    def kept(self, rows: list[int]) -> dict[str, Any]:
        smaller = super().kept(rows)
        vocabulary = smaller["vocab"].keys()
        merges = [pair for pair in self.merges() if {*pair, "".join(pair)} <= vocabulary]
        return {**smaller, "merges": merges}


KINDS: Mapping[str, type[_TokenizerFile]] = {
    "WordPiece": _TokenizerFile,
    "Unigram": _Unigram,
    "BPE": _BytePairs,
}
"""Kinds by the type in tokenizer.json."""


def _renumber(processor: dict[str, Any], numbers: Mapping[int, int]) -> None:
    """Renumber the special tokens around texts."""
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [numbers[number] for number in token["ids"]]
    for name in ("cls", "sep"):
        if name in processor:
            token, number = processor[name]
            processor[name] = [token, numbers[number]]
    for part in processor.get("processors", ()):
        _renumber(part, numbers)
