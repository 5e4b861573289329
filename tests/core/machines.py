"""Machines that tests make up."""

from __future__ import annotations

from bertender.core.machine import Environment


def bare(**changes: object) -> Environment:
    """A machine with nothing special."""
    facts = {
        "python": "3.11.0",
        "platform": "Linux",
        "cpu_model": "old",
        "cpu_flags": (),
        "cores": 1,
        "memory_bytes": 2**30,
        "gpu": None,
        "versions": {},
    }
    return Environment.model_validate(facts | changes)
