"""How a candidate's graph is quantized, and the runtime that runs it: all ways that go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.pipeline.stages import STAGES

__all__ = ["Quantization", "quantizations_of"]


class Quantization(Record):
    """A scheme and what runs its graph; a trained model may be quantized by any."""

    scheme: str
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that the graph is made for")
    fused_attention: bool = Field(False, description="whether each attention is one operator")

    @property
    def quantized_as(self) -> str:
        """A name for tables and files."""
        fused = ["fused-attention"] if self.fused_attention else []
        elsewhere = [self.runtime] if self.runtime != DEFAULT_RUNTIME else []
        return "-".join([self.scheme, *fused, *elsewhere])

    @property
    def settings(self) -> dict[str, Any]:
        """Those of `quantize`, the defaults left out: a scheme may refuse what it does not read."""
        runtime = {"runtime": self.runtime} if self.runtime != DEFAULT_RUNTIME else {}
        fused = {"fused_attention": True} if self.fused_attention else {}
        return {"scheme": self.scheme, **runtime, **fused}


def quantizations_of(config: CompressConfig) -> list[Quantization]:
    """Return the ways to quantize that a config names and that go together, the preferred first.

    Raises:
        ConfigError: a scheme, a runtime or fused attention goes with none of the others.
    """
    possible, refused = [], []
    for way in _combinations(config):
        try:
            _check(way)
        except ConfigError:
            refused.append(way)
        else:
            possible.append(way)
    for way in refused:
        if _is_unused(way, possible):
            _check(way)
    return possible


def _combinations(config: CompressConfig) -> Iterator[Quantization]:
    attentions = (False, True) if config.fused_attention else (False,)
    for scheme, runtime, fused in product(config.schemes, config.runtimes, attentions):
        yield Quantization(scheme=scheme, runtime=runtime, fused_attention=fused)


def _check(way: Quantization) -> None:
    """Raise ConfigError where the parts do not go together."""
    STAGES["quantize"].config.parse(way.settings)


def _is_unused(refused: Quantization, possible: Sequence[Quantization]) -> bool:
    """Return whether a part of what was refused is in nothing that is possible."""
    return (
        refused.scheme not in {each.scheme for each in possible}
        or refused.runtime not in {each.runtime for each in possible}
        or (refused.fused_attention and not any(each.fused_attention for each in possible))
    )
