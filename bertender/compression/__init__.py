"""Compression under limits: candidate chains planned, predicted, trained by halving."""
