"""Time of a request outside of its model."""
