"""Flags of the task; apart from `flags`, because tasks take seconds to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertender.cli.flags import explicit, option_values
from bertender.tasks.task import TaskConfig

__all__ = ["task_settings"]


def task_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task flags that the user gave."""
    return explicit(option_values(TaskConfig, values))
