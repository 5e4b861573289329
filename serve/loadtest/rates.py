"""Bounds of the rates that a search tries."""

__all__ = ["LOWEST_RATE"]

LOWEST_RATE = 0.5
