"""A /tmp that cannot be written is named before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.errors import ServingError
from serve.temporary_folder import check_temporary_folder


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_temporary_folder(tmp_path)
    with pytest.raises(ServingError, match=r"absent cannot be written.*--tmpfs /tmp"):
        check_temporary_folder(tmp_path / "absent")
