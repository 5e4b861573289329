"""A float32 graph to quantize."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from tests.exports import PlainExport


@pytest.fixture(scope="session")
def float_model(plain_export: PlainExport) -> Artifact:
    """The export of a tiny BERT of random weights."""
    return plain_export("bert")[1]
