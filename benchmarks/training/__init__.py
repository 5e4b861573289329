"""Ways to train faster."""
