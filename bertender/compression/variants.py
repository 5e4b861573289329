"""Variants of a trained model: how its graph is quantized, and the runtime that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.core.config import Record
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.pipeline.stages import STAGES

__all__ = ["Variant", "variants_of"]


class Variant(Record):
    """A scheme, a runtime, and the form of attention; a trained model may have any."""

    scheme: str
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that the graph is made for")
    fused_attention: bool = Field(False, description="whether each attention is one operator")

    @property
    def variant(self) -> Variant:
        """The variant alone, of what has more."""
        return Variant(
            scheme=self.scheme, runtime=self.runtime, fused_attention=self.fused_attention
        )

    @property
    def variant_name(self) -> str:
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


def variants_of(config: CompressConfig) -> list[Variant]:
    """Return the variants whose parts go together, the preferred first.

    All schemes in the first runtime come before another runtime, and plain attention before fused.

    Raises:
        ConfigError: a part that the user named goes with none of the others.
    """
    possible: list[Variant] = []
    refusals: dict[Variant, str] = {}
    for variant in _combinations(config):
        try:
            STAGES["quantize"].config.parse(variant.settings)
        except UnknownNameError as error:  # of `scheme`; runtimes are checked by the config
            raise UnknownNameError(error.kind, error.name, error.known, setting="schemes") from None
        except ConfigError as error:
            refusals[variant] = str(error)
        else:
            possible.append(variant)
    _check_all_used(config, possible, refusals)
    return possible


def _combinations(config: CompressConfig) -> Iterator[Variant]:
    attentions = (False, True) if config.fused_attention else (False,)
    names = (dict.fromkeys(each) for each in (config.runtimes, attentions, _schemes(config)))
    for runtime, fused, scheme in product(*names):
        yield Variant(scheme=scheme, runtime=runtime, fused_attention=fused)


def _schemes(config: CompressConfig) -> tuple[str, ...]:
    """Return the schemes; by default one more for other runtimes, which run it in integers."""
    if config.is_explicit("schemes") or set(config.runtimes) == {DEFAULT_RUNTIME}:
        return config.schemes
    return (*config.schemes, "static")


def _check_all_used(
    config: CompressConfig, possible: Sequence[Variant], refusals: Mapping[Variant, str]
) -> None:
    """Raise ConfigError for what the user named and no variant has."""
    parts: dict[str, Callable[[Variant], object]] = {
        "schemes": lambda variant: variant.scheme,
        "fused_attention": lambda variant: variant.fused_attention,
        "runtimes": lambda variant: variant.runtime,
    }
    for name, part in parts.items():
        used = {part(each) for each in possible}
        for variant, reason in refusals.items():
            if part(variant) not in used and config.is_explicit(name):
                raise ConfigError(
                    f"{name}={part(variant)}: no candidate can have it, with these schemes, "
                    f"runtimes and fused_attention. Of {variant.variant_name}, `quantize` says: "
                    f"{reason}"
                )
