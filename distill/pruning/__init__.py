"""Pruning: what a trained encoder can do without, and how it is taken out."""
