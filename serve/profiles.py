"""Serve profiles: the settings that `bertender tune` found to be the fastest on this machine.

A profile is a file of the cache folder. It is keyed by what its measurements depend on: the model
of the CPU, the cores that a process may use (affinity and quota), the runtime and its version, its
GPU if it needs one, and the shape of the model. It is not keyed by the artifact's digest: a model
that is trained again costs the same computation, and may use the profile of the one before. It is
never written into an artifact, which is the same on every machine.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from bertender.core.card import Card
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.files import cache_directory, save_result
from bertender.core.hardware import gpu, usable_cores
from bertender.core.machine import Environment, processor_here, processor_name
from bertender.models.runtimes import RUNTIMES, RuntimeName
from serve.config import LocalServeConfig, ServeConfig

logger = logging.getLogger(__name__)

TOGETHER = ("instances", "threads_per_instance", "concurrent_buckets", "tokens_per_bucket")
"""Settings of a profile. They were measured together: next to one that is explicit, the others
would take more threads than there are cores, or fewer, or run buckets of a size that suits others.
"""

UNREADABLE = (OSError, ValueError, ConfigError)
"""What reading a file raises that holds no profile; pydantic's own error is a ValueError."""

Settings = TypeVar("Settings", bound=LocalServeConfig)


class ModelShape(Record):
    """What the computation of a model depends on, besides its weights."""

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

    def __str__(self) -> str:
        scheme = f" {self.scheme}" if self.scheme else ""
        return f"{self.family} {self.precision}{scheme}, {self.parameters / 1e6:.3g} M parameters"


class MachineKey(Record):
    """A machine as far as it decides which settings are fast, and the runtime there."""

    cpu_model: str = Field(description="and the widest instructions, in files that have them")
    cores: int = Field(description="that a process may use, by affinity and quota")
    runtime: RuntimeName
    runtime_version: str
    gpu: str | None = Field(None, description="for a runtime that needs one")

    @classmethod
    def of_this_machine(cls, runtime: str) -> Self:
        return cls(
            cpu_model=processor_here(),
            cores=usable_cores(),
            runtime=runtime,
            runtime_version=RUNTIMES[runtime].version or "not installed",
            gpu=gpu().name if RUNTIMES[runtime].needs_gpu else None,
        )


class ProfileKey(Record):
    """What a profile is for."""

    machine: MachineKey
    model: ModelShape

    @classmethod
    def of_card(cls, card: Card, runtime: str) -> Self:
        """Return the key of a model on this machine."""
        return cls(machine=MachineKey.of_this_machine(runtime), model=ModelShape.of_card(card))


class TunedSettings(Record):
    """The settings of `bertender serve` that a profile has."""

    instances: int = ServeConfig().instances
    threads_per_instance: int = ServeConfig().threads_per_instance
    concurrent_buckets: int = ServeConfig().concurrent_buckets
    tokens_per_bucket: int = ServeConfig().tokens_per_bucket

    def __str__(self) -> str:
        other = [f"{name}={value}" for name, value in self if value != getattr(DEFAULTS, name)]
        return ", ".join(other) or "the defaults"


DEFAULTS = ServeConfig()


class ServeProfile(Record):
    """The chosen settings, and what they were chosen by."""

    schema_version: Literal[1] = 1
    key: ProfileKey
    setting: str = Field(description="a row of SETTINGS of `bertender tune`")
    settings: TunedSettings
    reason: str = Field(description="a sentence: by what, and by how much")
    conditions: dict[str, Any] = Field(description="settings of `bertender tune`")
    noisy: bool = Field(description="chosen on a machine that was busy with other work")


@dataclass(frozen=True)
class UsedProfile:
    """A profile, and what `serve` takes from it."""

    path: Path
    profile: ServeProfile
    applied: Mapping[str, int]
    """Empty where all of its settings are explicit."""

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={value}" for name, value in self.applied.items())
        noisy = ", chosen on a busy machine" if self.profile.noisy else ""
        use = listed or "not used, since its settings are explicit"
        return f"profile of this machine ({self.profile.setting}{noisy}): {use}; {self.path}"


def profile_folder() -> Path:
    """Return the folder of the profiles; it need not exist yet."""
    return cache_directory() / "serve-profiles"


def profile_path(key: ProfileKey) -> Path:
    """Return the file of a profile, whether or not it is there."""
    digest = hashlib.sha256(key.model_dump_json(exclude_none=True).encode()).hexdigest()
    return profile_folder() / f"{digest[:16]}.json"


def write_profile(profile: ServeProfile) -> Path:
    """Write a profile, instead of an earlier one with its key; return its path."""
    path = profile_path(profile.key)
    save_result(profile, path)
    return path


def read_profile(key: ProfileKey) -> ServeProfile | None:
    """Return the profile with a key; None where there is none that can be used.

    A file that cannot be read, or is of another machine, is named in a warning.
    """
    path = profile_path(key)
    try:
        profile = _parsed(path)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        logger.warning("%s", _unreadable(path, error))
        return None
    if profile.key != key:
        logger.warning(
            "the serve profile %s is not used: it is of %s. Run `bertender tune` here, or remove "
            "the file.",
            path,
            _difference(profile.key, key),
        )
        return None
    return profile


def saved_profiles() -> Iterator[tuple[Path, ServeProfile | str]]:
    """Yield the profiles in the cache folder, of any machine, or what is wrong with a file."""
    for path in sorted(profile_folder().glob("*.json")):
        try:
            yield path, _parsed(path)
        except UNREADABLE as error:
            yield path, _unreadable(path, error)


def profiles_of_machine(environment: Environment) -> str | None:
    """Return the profiles of a machine in words; None where it has none."""
    listed = [
        f"{each.key.model} in {each.key.machine.runtime}: {each.setting} ({each.settings})"
        for _, each in saved_profiles()
        if isinstance(each, ServeProfile) and _is_of(each.key.machine, environment)
    ]
    broken = [path for path, each in saved_profiles() if isinstance(each, str)]
    return "; ".join([*listed, *map(str, broken)]) or None


def objection_to_profiles(value: str) -> str | None:
    """Return what is wrong with the files of profiles; None where nothing is."""
    return " ".join(each for _, each in saved_profiles() if isinstance(each, str)) or None


def _is_of(key: MachineKey, environment: Environment) -> bool:
    here = (processor_name(environment), environment.cores, RUNTIMES[key.runtime].version)
    same_cpu = (key.cpu_model, key.cores, key.runtime_version) == here
    return same_cpu and key.gpu in (None, environment.gpu)


def _unreadable(path: Path, error: Exception) -> str:
    first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return (
        f"the serve profile {path} cannot be read, and is not used: {first}. Run `bertender tune` "
        "again, or remove the file."
    )


def with_profile(config: Settings, cards: Sequence[Card]) -> tuple[Settings, UsedProfile | None]:
    """Return settings with those of this machine's profile, where they are not explicit.

    Args:
        config: with `profile` false, no profile is read; nor where a backend of Triton runs the
            graph, which `bertender tune` does not measure.
        cards: of the artifacts to serve; several share the machine, and no profile is for that.
    """
    if not (config.profile and config.starts_server and config.runtime in RUNTIMES):
        return config, None
    if len(cards) != 1:
        return config, None
    key = ProfileKey.of_card(cards[0], config.runtime)
    profile = read_profile(key)
    if profile is None:
        return config, None
    explicit = any(config.is_explicit(name) for name in TOGETHER)
    applied = {} if explicit else {name: getattr(profile.settings, name) for name in TOGETHER}
    return config.changed(applied), UsedProfile(profile_path(key), profile, applied)


def _parsed(path: Path) -> ServeProfile:
    return ServeProfile.model_validate_json(path.read_bytes())


def _difference(read: ProfileKey, wanted: ProfileKey) -> str:
    """Return in words what differs between keys."""
    pairs = (
        *((f"model {name}", value, getattr(wanted.model, name)) for name, value in read.model),
        *((name, value, getattr(wanted.machine, name)) for name, value in read.machine),
    )
    return ", ".join(
        f"{name.replace('_', ' ')} {value!r} (here: {here!r})"
        for name, value, here in pairs
        if value != here
    )
