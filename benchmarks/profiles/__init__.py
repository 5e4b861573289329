"""Times of a graph's operators."""
