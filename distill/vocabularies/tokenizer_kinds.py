"""The kinds of tokenizers whose tokens can be pruned: how they hang together in tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ModelError

__all__ = ["KINDS", "Kind", "check_gaps", "closed", "described", "fast_tokenizer", "rebuilt"]

NOT_OF_A_TOKENIZER = frozenset(
    {"added_tokens_decoder", "name_or_path", "tokenizer_file", "vocab_file"}
)
"""Settings that number the tokens of a tokenizer or state where it came from."""

TokenizerModel = dict[str, Any]
"""The `model` of a tokenizer.json."""


@dataclass(frozen=True)
class Kind:
    """A row of KINDS: how the tokens of one kind of tokenizer hang together."""

    tokens: Callable[[TokenizerModel], list[str]]
    """Its tokens in the order of their numbers."""
    mark: str
    """Prefix of tokens that does not count as a character of theirs."""
    parts: Callable[[TokenizerModel], Mapping[str, list[str]]]
    """The parts that each token is merged from, where tokens are merged."""
    keep: Callable[[TokenizerModel, list[int]], TokenizerModel]
    """(model, numbers that stay, in order) -> the model with these alone"""


def fast_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """Return the tokenizer, or raise ModelError for one without a tokenizer.json."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"the tokenizer ({type(tokenizer).__name__}) has no tokenizer.json, so that its tokens "
            "cannot be pruned. Give a model with one."
        )
    return tokenizer


def described(tokenizer: PreTrainedTokenizerFast) -> tuple[dict[str, Any], Kind]:
    """Return a tokenizer's tokenizer.json, and its row of KINDS."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    name = description["model"]["type"]
    if name not in KINDS:
        raise ModelError(
            f"a tokenizer of kind {name!r} cannot be pruned. Kinds that can: {', '.join(KINDS)}."
        )
    return description, KINDS[name]


def check_gaps(model: TokenizerModel) -> None:
    """Raise ModelError where the tokens are not numbered one after another."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict) and {*vocabulary.values()} != {*range(len(vocabulary))}:
        raise ModelError(
            "the numbers of the tokenizer's tokens have gaps (a line of its vocabulary is there "
            "twice, perhaps), so that it cannot be pruned. Save it again without them."
        )


def closed(description: dict[str, Any], kind: Kind, used: set[int]) -> list[int]:
    """Return the ids that stay: also characters, added tokens, and the parts of tokens."""
    tokens = kind.tokens(description["model"])
    numbers = {token: number for number, token in enumerate(tokens)}
    added = {token["id"] for token in description["added_tokens"]}
    characters = {
        number
        for number, token in enumerate(tokens)
        if len(token.removeprefix(kind.mark)) <= 1 or token.startswith("<0x")  # a byte's own
    }
    parts = kind.parts(description["model"])
    waiting = [tokens[number] for number in used if number < len(tokens)]
    remaining = used | added | characters
    while waiting:
        for part in parts.get(waiting.pop(), ()):
            if numbers[part] not in remaining:
                remaining.add(numbers[part])
                waiting.append(part)
    return sorted(remaining)


def rebuilt(
    tokenizer: PreTrainedTokenizerFast, description: dict[str, Any], kind: Kind, rows: list[int]
) -> PreTrainedTokenizerFast:
    """Return the tokenizer with some of its tokens, renumbered in the same order."""
    numbers = {row: number for number, row in enumerate(rows)}
    of_model = len(kind.tokens(description["model"]))
    description["model"] = kind.keep(description["model"], [row for row in rows if row < of_model])
    for token in description["added_tokens"]:
        token["id"] = numbers[token["id"]]
    _renumber(description["post_processor"] or {}, numbers)
    settings = {
        name: value
        for name, value in tokenizer.init_kwargs.items()
        if name not in NOT_OF_A_TOKENIZER and not name.endswith("_file")
    }
    settings["model_max_length"] = tokenizer.model_max_length  # may have been set since it was made
    backend = Tokenizer.from_str(json.dumps(description))
    return type(tokenizer)(tokenizer_object=backend, **settings)


def _renumber(processor: dict[str, Any], numbers: Mapping[int, int]) -> None:
    """Give the special tokens that are put around texts their new numbers."""
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [numbers[number] for number in token["ids"]]
    for name in ("cls", "sep"):
        if name in processor:
            token, number = processor[name]
            processor[name] = [token, numbers[number]]
    for part in processor.get("processors", ()):
        _renumber(part, numbers)


def _by_number(model: TokenizerModel) -> list[str]:
    return sorted(model["vocab"], key=model["vocab"].__getitem__)


def _keep_mapping(model: TokenizerModel, rows: list[int]) -> TokenizerModel:
    tokens = _by_number(model)
    return {**model, "vocab": {tokens[row]: number for number, row in enumerate(rows)}}


def _keep_scores(model: TokenizerModel, rows: list[int]) -> TokenizerModel:
    unknown = model["unk_id"]
    return {
        **model,
        "vocab": [model["vocab"][row] for row in rows],
        "unk_id": None if unknown is None else rows.index(unknown),
    }


def _keep_merges(model: TokenizerModel, rows: list[int]) -> TokenizerModel:
    smaller = _keep_mapping(model, rows)
    merges = [pair for pair in map(_pair, model["merges"]) if _merged(pair) in smaller["vocab"]]
    whole = [pair for pair in merges if set(pair) <= smaller["vocab"].keys()]
    return {**smaller, "merges": whole}


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def _merged(pair: list[str]) -> str:
    return "".join(pair)


def _merge_parts(model: TokenizerModel) -> Mapping[str, list[str]]:
    """Return what each token is merged from, by every merge that gives it."""
    parts: dict[str, list[str]] = {}
    for pair in map(_pair, model["merges"]):
        parts.setdefault(_merged(pair), []).extend(pair)
    return parts


KINDS: Mapping[str, Kind] = {
    "WordPiece": Kind(_by_number, "##", lambda model: {}, _keep_mapping),
    "Unigram": Kind(
        lambda model: [token for token, _ in model["vocab"]], "▁", lambda model: {}, _keep_scores
    ),
    "BPE": Kind(_by_number, "Ġ", _merge_parts, _keep_merges),
}
"""By the type that tokenizer.json states."""
