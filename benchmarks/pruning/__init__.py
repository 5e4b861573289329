"""Scores of pruned models, by importance and share."""
