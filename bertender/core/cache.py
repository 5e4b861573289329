"""The cache folder: files that can be made again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bertender.core.atomic import replacing
from bertender.core.build_once import Fingerprint, build_once
from bertender.core.cache_folder import CACHE_VARIABLE

__all__ = ["cached"]

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


def cached(
    path: Path,
    make: Callable[[], Value],
    save: Callable[[Value, Path], object],
    load: Callable[[Path], Value],
    fingerprint: Fingerprint,
) -> Value:
    """Return what a file of the cache folder holds, made and saved first where it does not.

    A folder that cannot be written is a warning: the value is then made every time.

    Args:
        path: the file; its name carries a digest of all that shapes the value.
        make: computes the value.
        save: (value, draft) writes it.
        load: reads it.
        fingerprint: digest of the file.
    """
    made: list[Value] = []

    def build() -> None:
        made.append(make())
        with replacing(path) as draft:
            save(made[0], draft)

    try:
        build_once([path], path.name, build, fingerprint)
        return load(path)
    except OSError as error:
        if not made:  # it is `make` that failed
            raise
        logger.warning(
            "%s cannot be cached: %s. Set %s to another folder.", path, error, CACHE_VARIABLE
        )
        return made[0]
