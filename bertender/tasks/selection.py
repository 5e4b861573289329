"""Selection of the texts of a training file that are set apart, to choose settings on.

A text is on one side or the other by a hash of itself: whatever the seed, the order of the file or
its length, every stage of a chain sets apart the same texts, and a text that is there twice is on
one side.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bertender.core.errors import ConfigError
from bertender.problems import SINGLE_LABEL, ProblemType
from bertender.tasks.task import Split
from bertender.text.example import Example

__all__ = ["DEFAULT_SHARES", "LEAST_TEXTS", "Parted", "is_selected", "part"]

logger = logging.getLogger(__name__)

Kind = Literal["training", "held-out"]
DEFAULT_SHARES: Mapping[Kind, float] = {"training": 0.1, "held-out": 0.2}
"""Those of a held-out file calibrate as well."""
LEAST_TEXTS = 50
"""Fewer prove too little: one of them is 2 points."""

SALT = b"selection of bertender"
"""So that another cut by a hash of the text is another cut."""
DIGEST_BYTES = 8
HASHES = float(2 ** (8 * DIGEST_BYTES))


@dataclass(frozen=True)
class Parted:
    """A training file in two parts."""

    train: Split
    selection: Split
    share: float
    """Of the texts that were set apart: 0 where none were."""


def part(
    train: Split,
    share: float | None,
    name: str,
    problem: ProblemType[Any] = SINGLE_LABEL,
    kind: Kind = "training",
) -> Parted:
    """Set a share of a file's texts apart; by default DEFAULT_SHARES, or none where it is too few.

    All texts of a label stay in `train` where otherwise none of them would.

    Args:
        train: the whole file.
        share: 0 for none, None for the default.
        name: of the task, for messages.
        problem: what the examples are labelled with.
        kind: of the file: a held-out one is set apart where there is no other.

    Raises:
        ConfigError: an explicit share is fewer than LEAST_TEXTS.
    """
    wanted = DEFAULT_SHARES[kind] if share is None else share
    selected = _keep_labels(train, [is_selected(each, wanted) for each in train.examples], problem)
    count = sum(selected)
    if wanted == 0 or (share is None and count < LEAST_TEXTS):
        if wanted:
            logger.warning("task %s: %s", name, _too_few(wanted, count, len(train), kind))
        return Parted(train, Split((), ()), 0.0)
    if count < LEAST_TEXTS:
        raise ConfigError(
            f"task {name!r}, select={wanted:g}: {count} of {len(train)} {kind} texts to choose "
            f"on, and at least {LEAST_TEXTS} are needed. Give a larger share (0.5 at "
            "most), or select=0, and the held-out texts choose and score."
        )
    return Parted(train.where([not each for each in selected]), train.where(selected), wanted)


def is_selected(example: Example, share: float) -> bool:
    """Return whether an example, all its columns together, is set apart."""
    text = json.dumps(example, ensure_ascii=False).encode(errors="surrogatepass")
    digest = hashlib.sha256(SALT + text).digest()[:DIGEST_BYTES]
    return int.from_bytes(digest, "big") < share * HASHES


def _keep_labels(train: Split, selected: Sequence[bool], problem: ProblemType[Any]) -> list[bool]:
    """Return what is selected, without labels that nothing would be left of to learn."""
    labels = [problem.labels_of(target) for target in train.label_ids]
    left = {label for own, gone in zip(labels, selected, strict=True) if not gone for label in own}
    return [gone and left.issuperset(own) for own, gone in zip(labels, selected, strict=True)]


def _too_few(share: float, count: int, texts: int, kind: Kind) -> str:
    return (
        f"{count} of {texts} {kind} texts (select={share:g}) are too few to choose on, so that "
        f"the held-out texts choose and score. {LEAST_TEXTS} are enough"
    )
