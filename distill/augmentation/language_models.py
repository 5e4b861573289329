"""Finding the masked language model that proposes words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.training.weights import tensors_digest
from distill.data import fitting_tokenizer
from distill.teachers.encoders import (
    find_encoder,
    give_every_token_a_row,
    is_available,
    load_masked_language_model,
)

__all__ = ["LanguageModel", "find_language_model", "load_language_model"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LanguageModel:
    """An encoder with a masked-language-model head, in eval mode, and its tokenizer."""

    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def digest(self) -> str:
        """A sha256 of all weights, the head's too."""
        return tensors_digest(self.model.state_dict())


def find_language_model(teacher: Artifact, name: str | None) -> LanguageModel | None:
    """Load the model called `name`, or else the nearest of those that the teacher came from.

    Returns None where no name is set and no origin that is on this machine has a head.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: the named model cannot be had, or
            has no masked-language-model head.
    """
    if name is not None:
        return load_language_model(find_encoder(name, setting="augmentation-model"))
    for source in _origins(teacher):
        try:
            return load_language_model(source)
        except ModelError as error:
            logger.info("%s", error)
    return None


def load_language_model(source: str) -> LanguageModel:
    """Load an encoder with its masked-language-model head, in float32, to where it runs fastest.

    Args:
        source: a folder or a hub name.

    Raises:
        ModelError: it has no such head, no mask token, or cannot be loaded.
    """
    quiet = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # it reports at length that a head is missing
    try:
        model = load_masked_language_model(source)
        tokenizer = fitting_tokenizer(source, model)
        give_every_token_a_row(model, tokenizer)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load the tokenizer of {source!r}: {error}") from None
    finally:
        transformers_logging.set_verbosity(quiet)
    if tokenizer.mask_token is None:
        raise ModelError(f"the tokenizer of {source!r} has no mask token to ask for words with.")
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[arg-type]
    return LanguageModel(source, model.eval(), tokenizer)


def _origins(artifact: Artifact) -> Iterator[str]:
    """Yield what an artifact was made from, the nearest first: its parents, then an encoder."""
    parent, teacher = artifact.card.parent, artifact.card.config.get("teacher")
    try:
        if parent is not None:
            origin = Artifact.load(artifact.path / parent.path)
            yield str(origin.path)
            yield from _origins(origin)
        elif isinstance(teacher, str) and is_available(teacher):
            yield find_encoder(teacher)
    except BertenderError as error:
        logger.info("%s: what it was made from cannot be read: %s", artifact.path, error)
