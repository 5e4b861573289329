"""Serve profiles: files with the fastest settings found by `bertender tune`.

`bertender serve --profile FILE` uses them for options that are not set. The file also has the
conditions of the measurement: the processor, the usable cores (affinity and quota), the server, the
runtime and its version, and the shape of the model. A retrained model has the same computation, and
can use the earlier profile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ConfigDict, Field

from bertender.core.card import Card
from bertender.core.config import Record, read_record
from bertender.core.errors import ConfigError, ServerMissingError
from bertender.core.hardware import gpu, usable_cores
from bertender.core.machine import processor_here
from bertender.models.runtimes import RUNTIMES
from serve.config import LocalServeConfig, ServeConfig, ServedRuntimeName
from serve.server.installation import find_installation

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=LocalServeConfig)


class ModelShape(Record):
    """The shape of a model: all that its computation depends on, besides its weights."""

    family: str
    precision: str
    scheme: str = Field(description="of its quantization; empty where it has none")
    parameters: int

    @classmethod
    def of_card(cls, card: Card) -> Self:
        return cls(
            family=card.family,
            precision=card.precision,
            scheme=str(card.config.get("scheme") or ""),
            parameters=card.findings.parameters,
        )


class MachineKey(Record):
    """The parts of a machine that determine fast settings, its server, and its runtime."""

    cpu_model: str = Field(description="and its widest instructions")
    cores: int = Field(description="that a process may use, by affinity and quota")
    server: str = Field("unknown", description="triton with its version, or embedded")
    runtime: str
    runtime_version: str
    gpu: str | None = Field(None, description="for a runtime that needs one")

    @classmethod
    def of_this_machine(cls, config: ServeConfig) -> Self:
        row = RUNTIMES.get(config.runtime)  # None for a Triton backend
        return cls(
            cpu_model=processor_here(),
            cores=usable_cores(),
            server="embedded" if config.is_embedded else _triton_of(config),
            runtime=config.runtime,
            runtime_version=(row and row.version) or "not installed",
            gpu=gpu().name if row and row.needs_gpu else None,
        )


def _triton_of(config: ServeConfig) -> str:
    """Return the name and version of the Triton that settings start."""
    try:
        version = find_installation(config.tritonserver).version
    except ServerMissingError:  # the start will report it
        version = None
    return f"triton {version or 'of unknown version'}"


class TunedSettings(Record):
    """The settings of `bertender serve` in a profile."""

    runtime: ServedRuntimeName = ServeConfig().runtime
    instances: int = ServeConfig().instances
    threads_per_instance: int = ServeConfig().threads_per_instance
    concurrent_buckets: int = ServeConfig().concurrent_buckets
    tokens_per_bucket: int | None = ServeConfig().tokens_per_bucket

    @property
    def options(self) -> str:
        """The options of `bertender serve` for these settings; empty if all are defaults."""
        defaults = ServeConfig()
        return " ".join(
            f"--{name.replace('_', '-')} {value}"
            for name, value in self
            if value != getattr(defaults, name)
        )


class ServeProfile(Record):
    """The chosen settings, and the conditions of their measurement; figures in the file are
    ignored."""

    model_config = ConfigDict(extra="ignore")

    settings: TunedSettings
    machine: MachineKey
    model: ModelShape
    noisy: bool = Field(description="chosen on a machine that was busy with other work")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a profile.

        Raises:
            ConfigError: the file cannot be read, or is not a profile.
        """
        try:
            return read_record(cls, path)
        except ValueError as reason:
            raise ConfigError(
                f"profile={path} cannot be read: {reason}. Give a file that `bertender tune "
                "ARTIFACT --out FILE` wrote."
            ) from None

    def differences(self, card: Card, config: ServeConfig) -> Iterator[str]:
        """Yield the differences between the measured conditions and a model on this machine."""
        here = (*MachineKey.of_this_machine(config), *ModelShape.of_card(card))
        for (name, measured), (_, value) in zip((*self.machine, *self.model), here, strict=True):
            if measured != value:
                yield f"{name.replace('_', ' ')} {measured!r} (here: {value!r})"


def with_profile(config: Settings, cards: Sequence[Card]) -> tuple[Settings, str]:
    """Return settings completed from a profile where they are not explicit, and a line about it.

    A warning names a profile measured on another machine, server, runtime or model.

    Args:
        config: settings; without a profile, they are returned unchanged, with an empty line.
        cards: cards of the artifacts to serve.

    Raises:
        ConfigError: the profile cannot be read, or its settings conflict with explicit ones.
    """
    if config.profile is None:
        return config, ""
    profile = ServeProfile.read(config.profile)
    taken = {
        name: value
        for name, value in profile.settings
        if value is not None and not config.is_explicit(name)
    }
    explicit = {name: getattr(config, name) for name in config.model_fields_set}
    changed = config.parse({**explicit, **taken})
    for card in cards:
        if differences := ", ".join(profile.differences(card, changed)):
            logger.warning(
                "the profile %s was measured on another machine, server, runtime or model: %s. Run "
                "`bertender tune` here.",
                config.profile,
                differences,
            )
    listed = ", ".join(f"{name}={value}" for name, value in taken.items())
    noisy = ", measured on a busy machine" if profile.noisy else ""
    return changed, f"profile {config.profile}{noisy}: {listed or 'options set all that it has'}"
