"""The stages, and recipes of them: read, checked and run."""
