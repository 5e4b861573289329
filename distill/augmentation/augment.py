"""Data augmentation: rewritten copies of a task's training texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.progress import track
from bertender.tasks.task import Task
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from bertender.training.config import computes_in_bf16
from distill.augmentation import bilstm, tinybert
from distill.augmentation.config import AUGMENTATIONS, AugmentedConfig
from distill.augmentation.words import Material, Rewrite, find_language_model

logger = logging.getLogger(__name__)

REWRITERS: Mapping[str, Callable[[Material], Rewrite]] = {
    "bilstm": bilstm.rewriter,
    "tinybert": tinybert.rewriter,
}
"""Functions that build the rewriter of each augmentation, by name."""


def augmented(
    task: Task,
    teacher: Artifact,
    model: PreTrainedModel,
    readers: Sequence[str],
    config: AugmentedConfig,
) -> Task:
    """Return the task with unlabelled, rewritten copies of its training texts added.

    The random draws for a text depend on the seed and on its position.

    Args:
        task: its training examples, labelled or not, are rewritten.
        teacher: source of words; its parents are searched for a language model.
        model: the teacher's model.
        readers: sources of the tokenizers that will read the copies.
        config: settings; without `augmentation`, the task is returned unchanged.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: the language model cannot be loaded,
            or a tokenizer cannot read the mask that the augmentation writes.
    """
    name = config.augmentation
    if name is None:
        return task
    row, examples = AUGMENTATIONS[name], task.train.examples
    language_model = None
    if row.asks_language_model:
        language_model = find_language_model(teacher, config.augmentation_model)
    material = Material(
        texts=tuple(dict.fromkeys(text for example in examples for text in example)),
        teacher=model,
        tokenizer=load_tokenizer(teacher.path),
        language_model=language_model,
        bf16=computes_in_bf16(config),
    )
    if row.writes_mask:
        _check_masks(name, material.tokenizer, readers)
    rewrite = REWRITERS[name](material)
    rewritten: list[Example] = []
    for number, example in enumerate(track(examples, "augmented texts", len(examples))):
        generator = np.random.default_rng((config.seed, number))
        copies = config.augmented_copies or row.copies
        rewritten += copies_of(example, rewrite, row.pair_turns, copies, generator)
    source = language_model.source if language_model else "none"
    logger.info(
        "augmentation %s: %d texts made of %d; language model: %s",
        *(name, len(rewritten), len(examples), source),
    )
    if not rewritten:
        logger.warning(
            "augmentation %s has made no text: none of the %d texts has a word that it could "
            "replace. Leave it out%s",
            *(name, len(examples)),
            ", or give another augmentation_model" if row.asks_language_model else "",
        )
    return task.with_unlabelled(rewritten)


def copies_of(
    example: Example,
    rewrite: Rewrite,
    pair_turns: Sequence[tuple[bool, bool]],
    copies: int,
    generator: np.random.Generator,
) -> list[Example]:
    """Draw `copies` of an example; return those that differ from it and from each other."""
    rewritten = {example: None}
    for copy in range(copies):
        first, second = pair_turns[copy % len(pair_turns)] if len(example) > 1 else (True, True)
        texts = zip(example, (first, *[second] * (len(example) - 1)), strict=True)
        made = tuple(rewrite(text, generator) if chosen else text for text, chosen in texts)
        rewritten[made] = None
    return list(rewritten)[1:]


def _check_masks(name: str, tokenizer: PreTrainedTokenizerBase, readers: Sequence[str]) -> None:
    """Raise ModelError unless every reader's tokenizer reads the teacher's mask as one token."""
    mask = tokenizer.mask_token or tokenizer.unk_token
    for reader in readers:
        ids = load_tokenizer(reader).encode(mask, add_special_tokens=False)
        if len(ids) != 1:
            free = [other for other, each in AUGMENTATIONS.items() if not each.writes_mask]
            raise ModelError(
                f"augmentation {name!r} writes the teacher's {mask}, which the tokenizer of "
                f"{reader} does not read as one token. Take {', '.join(free)}, or a "
                "student and teachers of the same tokens."
            )
