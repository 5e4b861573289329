"""Architectures, and opening models for inference."""
