"""SETTINGS: what `bertender tune` tries, by the cores that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertender.core.table import Table
from serve.profiles import TunedSettings

__all__ = ["DEFAULT_SETTING", "SETTINGS", "Setting"]


@dataclass(frozen=True)
class Setting:
    """A row of SETTINGS."""

    summary: str
    of_cores: Callable[[int], TunedSettings]
    """cores that a process may use -> the settings there"""
    least_cores: int = 1
    """With fewer, it is the same as another row."""


DEFAULT_SETTING = "one-instance"

SETTINGS = Table(
    "setting",
    {
        DEFAULT_SETTING: Setting(
            "one copy of the model, whose runs have all cores, small ones one: the default of "
            "`serve`",
            lambda cores: TunedSettings(),
        ),
        "one-thread": Setting(
            "one copy, whose runs have one thread",
            lambda cores: TunedSettings(threads_per_instance=1),
            least_cores=2,
        ),
        "concurrent-buckets": Setting(
            "one copy, as many buckets at once as there are cores, one thread each",
            lambda cores: TunedSettings(concurrent_buckets=cores, threads_per_instance=1),
            least_cores=2,
        ),
        "concurrent-small-buckets": Setting(
            "the same with half the tokens in a bucket, so that small batches have several",
            lambda cores: TunedSettings(
                concurrent_buckets=cores, threads_per_instance=1, tokens_per_bucket=128
            ),
            least_cores=2,
        ),
        "instances": Setting(
            "a copy for each core, with one thread",
            lambda cores: TunedSettings(instances=cores, threads_per_instance=1),
            least_cores=2,
        ),
        "half-instances": Setting(
            "a copy for every two cores, with two threads",
            lambda cores: TunedSettings(instances=cores // 2, threads_per_instance=2),
            least_cores=4,
        ),
        "small-buckets": Setting(
            "the default with half the tokens in a bucket",
            lambda cores: TunedSettings(tokens_per_bucket=128),
        ),
        "large-buckets": Setting(
            "the default with twice the tokens in a bucket",
            lambda cores: TunedSettings(tokens_per_bucket=512),
        ),
    },
)
"""The first is what the others are compared with."""
