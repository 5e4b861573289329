"""Memory of pre-training on a corpus."""
