"""Models on a command line: an artifact, or several, each as NAME=ARTIFACT."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.core.errors import ConfigError
from serve.served_runtimes import ENCODER_NAME
from serve.wire import CANDIDATE_SUFFIX, MODEL_NAME

__all__ = ["check_name", "models_by_name"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
ASSIGNMENT = re.compile(r"([^=/]*)=(.+)")


def models_by_name(words: Sequence[str]) -> Mapping[str, str]:
    """Return the paths of artifacts by the names of their models.

    A path alone is the model `classifier`; so is one with an equals sign that leads to a folder.

    Raises:
        ConfigError: a name cannot be that of a model, or is there twice.
    """
    models: dict[str, str] = {}
    for word in words:
        name, path = _parsed(word)
        if name in models:
            raise ConfigError(
                f"{word}: another artifact is called {name!r} already, {models[name]}. Give each "
                "a name of its own, as NAME=ARTIFACT."
            )
        models[name] = path
    return models


def check_name(name: str) -> str:
    """Return the name of a model.

    Raises:
        ConfigError: it is none.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a model: it begins with a letter, and has at most 64 letters, "
            "digits, _ and -."
        )
    if name == ENCODER_NAME:
        raise ConfigError(
            f"{name!r} is for the graph of {MODEL_NAME!r} where a backend of Triton runs it. "
            "Choose another."
        )
    if name.endswith(CANDIDATE_SUFFIX):
        raise ConfigError(
            f"{name!r}: names that end with {CANDIDATE_SUFFIX!r} are for what `bertender deploy` "
            "tries. Choose another."
        )
    return name


def _parsed(word: str) -> tuple[str, str]:
    match = ASSIGNMENT.fullmatch(word)
    if match is None or Path(word).exists():
        return MODEL_NAME, word
    return check_name(match[1]), match[2]
