"""Tagging tasks: sentences with a BIO tag for each word, in two files a split.

    FOLDER/train.seq.in     a sentence a line, its words apart by white space
    FOLDER/train.seq.out    their tags: O, B-TYPE for the first word of an entity, I-TYPE for others

SNIPS comes so (Coucke et al. 2018, arXiv 1805.10190, as cut by Goo et al. 2018).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertender.core.card import TaskRecord
from bertender.core.errors import DataError
from bertender.tasks.utf8 import text_of

__all__ = [
    "METRIC",
    "OUTSIDE",
    "Sentence",
    "TaggedSplit",
    "TaggingTask",
    "load_tagging",
    "read_tagged",
    "tag_names",
]

METRIC = "entity_f1"
OUTSIDE = "O"
BEGIN, INSIDE = "B-", "I-"

Sentence = tuple[str, ...]
"""Words, or their tags."""


@dataclass(frozen=True)
class TaggedSplit:
    """Tagged sentences; `tag_ids` index the task's labels, one a word."""

    sentences: tuple[Sentence, ...]
    tag_ids: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.sentences)

    def first(self, count: int | None) -> TaggedSplit:
        """Return the first `count` sentences, or all of them for None."""
        return TaggedSplit(self.sentences[:count], self.tag_ids[:count])


@dataclass(frozen=True)
class TaggingTask:
    """A tagging task with its data at hand."""

    name: str
    labels: tuple[str, ...]
    train: TaggedSplit
    dev: TaggedSplit

    def record(self) -> TaskRecord:
        """Return what an artifact keeps of the task."""
        return TaskRecord(
            name=self.name,
            problem_type="token_classification",
            labels=self.labels,
            text_columns=("words",),
            metric=METRIC,
        )

    def fingerprint(self) -> str:
        """Return a sha256 of the labels and of both splits, words included."""
        splits = [(split.sentences, split.tag_ids) for split in (self.train, self.dev)]
        whole = json.dumps([self.labels, splits], ensure_ascii=False)
        return hashlib.sha256(whole.encode()).hexdigest()


def load_tagging(folder: Path, *, held_out: str = "valid") -> TaggingTask:
    """Load the training split of a folder, and the held-out one of that name.

    Raises:
        DataError: a file is wrong, or has tags that the training file does not have.
    """
    sentences, tags = read_tagged(*_files(folder, "train"))
    labels = tag_names(tags)
    dev_sentences, dev_tags = read_tagged(*_files(folder, held_out))
    numbers = {label: number for number, label in enumerate(labels)}
    return TaggingTask(
        name=folder.absolute().name,
        labels=labels,
        train=TaggedSplit(sentences, _numbered(tags, numbers, folder / "train.seq.out")),
        dev=TaggedSplit(dev_sentences, _numbered(dev_tags, numbers, _files(folder, held_out)[1])),
    )


def read_tagged(words: Path, tags: Path) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Read the sentences of one file and their tags of another, a tag for each word.

    Raises:
        DataError: the files do not belong together line by line and word by word, a line is
            empty, or a tag is none of the BIO scheme; the message names file and line.
    """
    sentences, tagged = _lines(words), _lines(tags)
    if len(sentences) != len(tagged):
        raise DataError(
            f"{tags}: {len(tagged)} lines of tags for the {len(sentences)} sentences of {words}. "
            "Each line holds the tags of one sentence."
        )
    for line, (sentence, own) in enumerate(zip(sentences, tagged, strict=True), start=1):
        if not sentence:
            raise DataError(f"{words}, line {line}: no words. Leave the line out of both files.")
        if len(sentence) != len(own):
            raise DataError(
                f"{tags}, line {line}: {len(own)} tags for the {len(sentence)} words of {words}. "
                "There must be one for each."
            )
        _refuse_malformed(own, f"{tags}, line {line}")
    return sentences, tagged


def tag_names(tagged: Iterable[Sentence]) -> tuple[str, ...]:
    """Return O, and for each type of entity by alphabet the two tags that it can have."""
    types = sorted({tag[len(BEGIN) :] for tags in tagged for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(prefix + entity for entity in types for prefix in (BEGIN, INSIDE)))


def _files(folder: Path, split: str) -> tuple[Path, Path]:
    return folder / f"{split}.seq.in", folder / f"{split}.seq.out"


def _lines(path: Path) -> tuple[Sentence, ...]:
    """Return the words of each line; the file may end with a line end or without."""
    return tuple(tuple(line.split()) for line in text_of(path).removesuffix("\n").split("\n"))


def _refuse_malformed(tags: Sentence, place: str) -> None:
    before = OUTSIDE
    for word, tag in enumerate(tags, start=1):
        entity = tag[len(BEGIN) :]
        if tag != OUTSIDE and not (entity and tag.startswith((BEGIN, INSIDE))):
            raise DataError(
                f"{place}, word {word}: {tag!r} is no BIO tag. Allowed: O, B-TYPE and I-TYPE."
            )
        if tag.startswith(INSIDE) and before not in (BEGIN + entity, tag):
            raise DataError(
                f"{place}, word {word}: {tag!r} follows {before!r}, so that no entity is there to "
                f"go on. The first word of one is tagged {BEGIN + entity!r}."
            )
        before = tag


def _numbered(
    tagged: Sequence[Sentence], numbers: Mapping[str, int], path: Path
) -> tuple[tuple[int, ...], ...]:
    for line, tags in enumerate(tagged, start=1):
        if unknown := [tag for tag in tags if tag not in numbers]:
            raise DataError(
                f"{path}, line {line}: the training file has no entity of the type of "
                f"{unknown[0]!r}. Correct it, or add sentences with one to the training file."
            )
    return tuple(tuple(numbers[tag] for tag in tags) for tags in tagged)
