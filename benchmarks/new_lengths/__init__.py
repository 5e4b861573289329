"""The first batch of a length."""
