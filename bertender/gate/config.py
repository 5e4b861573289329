"""Settings of the parity gate."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from bertender.core.config import Config

PARITY_TEXTS = 256
GOLDEN_TEXTS = 16


class GateConfig(Config):
    """Settings of the parity gate, for stages that end in it."""

    panel: ClassVar[str] = "Gate"

    parity_texts: int = Field(
        PARITY_TEXTS,
        ge=1,
        description="texts of the validation split on which the logits must be the source's",
    )
    golden_texts: int = Field(
        GOLDEN_TEXTS,
        ge=0,
        description="of these texts to store in the artifact, which `bertender deploy` asks the "
        "model about again; 0 for none, where texts must not leave this machine",
    )
    seed: int = Field(0, ge=0, description="which texts the parity gate draws")
