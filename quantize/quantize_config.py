"""Settings of `quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from bertender.core.config import Rule
from quantize.config import SchemeConfig
from quantize.schemes import (
    AUTO_SCHEME,
    CANDIDATES,
    QUICKEST_CURVATURE,
    RULES,
    SCHEMES,
    SCHEMES_OF_MORE_BITS,
    candidates,
)


def _all_skipped(config: QuantizeConfig) -> bool:
    return config.scheme == AUTO_SCHEME and all(each.skipped for each in candidates(config))


def _why_skipped(config: QuantizeConfig) -> str:
    reasons = " ".join(f"{each.scheme} is skipped: {each.skipped}" for each in candidates(config))
    return f"no scheme that is tried by default reads all of your settings. {reasons}"


class QuantizeConfig(SchemeConfig):
    """Settings of `quantize`."""

    main: ClassVar[tuple[str, ...]] = ("scheme", "target", "runtime", "max_drop", "calibrator")
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        **RULES,
        "settings that no default scheme reads": Rule(_all_skipped, _why_skipped),
    }

    scheme: Annotated[str, SCHEMES.validator(AUTO_SCHEME)] = Field(
        AUTO_SCHEME,
        description="how to choose scales: a row of `bertender schemes`, or auto, which tries "
        f"{', '.join(row['scheme'] for row in CANDIDATES)} and takes the first that passes",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _by_curvature(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """By default, bits are allotted by the curvature that is found the quickest."""
        config = handler(values)
        allots = config.scheme in SCHEMES_OF_MORE_BITS and config.sensitive_bits is not None
        if not allots or config.is_explicit("sensitivity"):
            return config
        filled = config.changed({"sensitivity": QUICKEST_CURVATURE})
        filled.model_fields_set.discard("sensitivity")  # nobody has set it
        return filled
