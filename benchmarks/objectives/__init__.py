"""Pre-training objectives at one budget."""
