"""A stand-in of a hub, and caches of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.stand_in_hub import WRITER, Hub, stand_in_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    with stand_in_hub(monkeypatch) as hub:
        yield hub
