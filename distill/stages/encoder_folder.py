"""The encoder that a setting names.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.pipeline.named_files import folder_digest
from bertender.pipeline.products import Earlier

if TYPE_CHECKING:
    from bertender.models.expected import ExpectedModel

__all__ = ["Encoder", "expected_encoder"]


@dataclass(frozen=True)
class Encoder:
    """An encoder's folder, packaged name or hub name."""

    setting: str
    name: str

    @property
    def path(self) -> Path:
        return Path(self.name)

    def check(self) -> None:
        from distill.teachers.encoders import find_encoder

        find_encoder(self.name, setting=self.setting.replace("_", "-"))

    def digest(self) -> str:
        return folder_digest(self.path)


def expected_encoder(name: str, earlier: Earlier) -> ExpectedModel | None:
    """Return the model that a setting names, where it will be on this machine."""
    from distill.teachers.encoders import located

    return earlier.model_at(located(name))
