"""The one training path, its examples and losses."""
