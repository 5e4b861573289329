"""Predictions for any number of texts: `bertender score`."""
