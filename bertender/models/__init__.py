"""Architectures, and what opens a model to ask it."""
