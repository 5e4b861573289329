"""Targets: what examples are labelled with, and whether they are."""

from __future__ import annotations

from typing import Any

import numpy as np

NO_LABEL = -100
"""Instead of a label: the example, or the token, has none."""


class HeadTargets(tuple[Any, ...]):
    """A target for each head of a model of several; or their labels, as a file has them."""


def is_labelled(labels: Any) -> bool:
    """Return whether an example has labels, given its target or its value of their column.

    A set of none is one, and so is what one of several heads has a label of.
    """
    if isinstance(labels, HeadTargets):
        return any(map(is_labelled, labels))
    values = np.asarray(labels)
    if values.dtype.kind == "U":
        return True
    if values.dtype.kind == "f":
        return not np.isnan(values).any()
    return not values.size or bool((values != NO_LABEL).any())
