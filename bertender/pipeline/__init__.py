"""The stages, and recipes of them: read, planned and run."""
