"""Batches of text."""
