"""SCHEMES: every way to quantize a model, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.card import Kind
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.core.training_config import TrainingConfig
from quantize.config import SchemeConfig
from quantize.dynamic import write_dynamic
from quantize.four_bit import write_four_bit
from quantize.job import Job, Written
from quantize.mixed import write_mixed
from quantize.qat import refuse_untrainable, write_trained
from quantize.static import write_static

__all__ = ["AUTO_SCHEME", "SCHEMES", "Scheme", "refuse_idle", "scheme_named"]

AUTO_SCHEME = "auto"
"""Instead of a row's name: the first row of CANDIDATES that passes."""

CALIBRATION = frozenset({"calibrator", "percentile", "calibration_texts"})
SENSITIVITY = frozenset({"sensitivity", "sensitivity_texts"})


@dataclass(frozen=True)
class Scheme:
    """A row of SCHEMES."""

    summary: str
    write: Callable[[Job, Path], Written]
    """(job, graph to write)"""
    reads: frozenset[str] = frozenset()
    """Settings that change something, beside those that all schemes read."""
    precision: str = "int8"
    """The row of the parity gate's tolerances."""
    source: Kind = "onnx"
    """What kind of artifact it starts from."""
    refuse: Callable[[Artifact], None] = lambda source: None
    """Raises where it cannot quantize a source, before any work."""


SCHEMES: Mapping[str, Scheme] = {
    "dynamic": Scheme(
        summary="int8 weights per channel; activation scales found while running, no data needed",
        write=write_dynamic,
    ),
    "static": Scheme(
        summary="int8 weights per channel; activation scales found before, on training texts",
        write=write_static,
        reads=CALIBRATION,
    ),
    "mixed": Scheme(
        summary="int8, and the parts that suffer most in float until the score holds",
        write=write_mixed,
        reads=CALIBRATION | SENSITIVITY | {"base"},
    ),
    "four-bit": Scheme(
        summary="4-bit weights in groups where the score holds, int8 elsewhere: for size",
        write=write_four_bit,
        reads=SENSITIVITY | {"block_size"},
        precision="int4",
    ),
    "qat": Scheme(
        summary="trained with 8-bit errors (Q8BERT), from a torch artifact; scales are learned",
        write=write_trained,
        reads=frozenset(TrainingConfig.model_fields) | {"calibration_texts", "soft_labels"},
        source="torch",
        refuse=refuse_untrainable,
    ),
}

SHARED = frozenset({"scheme", "target", "no_embeddings", "max_drop", "parity_texts", "seed"})
"""What every scheme reads."""


def scheme_named(name: str) -> Scheme:
    """Return a row of SCHEMES, or raise UnknownNameError with the nearest name."""
    if name not in SCHEMES:
        raise UnknownNameError("quantization scheme", name, SCHEMES)
    return SCHEMES[name]


@dataclass(frozen=True)
class _Wanted:
    """Another setting, without which some change nothing."""

    settings: frozenset[str]
    idle: Callable[[str, SchemeConfig], bool]
    """(scheme, config) -> whether that setting is missing"""
    next_step: str


WANTED = (
    _Wanted(
        frozenset({"percentile"}),
        lambda name, config: config.calibrator != "percentile",
        "--calibrator percentile",
    ),
    _Wanted(
        CALIBRATION,
        lambda name, config: name == "mixed" and config.base != "static",
        "--base static, whose activations are calibrated",
    ),
    _Wanted(
        SENSITIVITY,
        lambda name, config: config.max_drop is None,
        "--max-drop, for which parts go back",
    ),
)


def refuse_idle(name: str, config: SchemeConfig) -> None:
    """Raise ConfigError where a setting was given that would change nothing."""
    for wanted in WANTED:
        for setting in sorted(config.model_fields_set & wanted.settings & SCHEMES[name].reads):
            if wanted.idle(name, config):
                raise ConfigError(
                    f"{setting}={getattr(config, setting)!r} changes nothing here: it wants "
                    f"{wanted.next_step}. Give that too, or leave it out."
                )
    for setting in sorted(config.model_fields_set - SHARED - SCHEMES[name].reads):
        readers = sorted(each for each, scheme in SCHEMES.items() if setting in scheme.reads)
        raise ConfigError(
            f"{setting}={getattr(config, setting)!r}: scheme {name!r} does not read it; "
            f"{', '.join(readers)} does. Leave it out, or give --scheme {readers[0]}."
        )
