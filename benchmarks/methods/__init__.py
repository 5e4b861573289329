"""Distillation methods at equal epochs."""
