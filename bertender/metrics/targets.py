"""Targets: labels of examples, and whether there are any."""

from __future__ import annotations

from typing import Any

import numpy as np

NO_LABEL = -100
"""Target of an example or token without a label."""


class HeadTargets(tuple[Any, ...]):
    """A target for each head of a model with several; or their labels, as in a file."""


def is_labelled(labels: Any) -> bool:
    """Return whether an example is labelled, given its target or its value in the label column.

    An empty set is a label. With several heads, a label for one head is enough.
    """
    if isinstance(labels, HeadTargets):
        return any(map(is_labelled, labels))
    values = np.asarray(labels)
    if values.dtype.kind == "U":
        return True
    if values.dtype.kind == "f":
        return not np.isnan(values).any()
    return not values.size or bool((values != NO_LABEL).any())
