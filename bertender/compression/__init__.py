"""Compression under constraints: candidate chains planned, predicted, trained by halving."""
