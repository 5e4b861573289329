"""The shared training path, its examples and losses."""
