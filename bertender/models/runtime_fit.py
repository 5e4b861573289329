"""Which runtimes suit an artifact."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.runtimes import RUNTIMES, WITH_INTEGERS

__all__ = ["FLOAT_PRECISIONS", "check_suits", "preferred", "suits"]

FLOAT_PRECISIONS = ("float32", "float16", "bfloat16")
"""Of artifacts that were not quantized."""


def suits(runtime: str, artifact: Artifact) -> bool:
    """Return whether a row of RUNTIMES runs an onnx artifact as it was made to run."""
    return RUNTIMES[runtime].integer_products or artifact.card.precision in FLOAT_PRECISIONS


def preferred(runtimes: Sequence[str], artifact: Artifact) -> Sequence[str]:
    """Return, of runtimes that suit an onnx artifact, those that it is meant for.

    Of a file in float16, say, these are those that compute in float16, if there are any: others
    turn it back into float32.
    """
    precision = artifact.card.precision
    native = [name for name in runtimes if precision in RUNTIMES[name].own_float_types]
    return native or runtimes


def check_suits(runtime: str, artifact: Artifact) -> None:
    """Raise ConfigError where a quantized artifact would be turned back into floats."""
    if not suits(runtime, artifact):
        raise ConfigError(
            f"runtime={runtime} multiplies no 8-bit integers, and {artifact.path} is of precision "
            f"{artifact.card.precision}: it would be slower than the float model. Give a float "
            "artifact, as `bertender export --precision float16` writes one, or another runtime: "
            f"{', '.join(WITH_INTEGERS)}."
        )
