"""Pruning: removing heads, neurons, layers and tokens from a trained encoder."""
