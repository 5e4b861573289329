"""Pre-training an encoder from plain text."""
