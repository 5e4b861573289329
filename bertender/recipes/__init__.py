"""The stages, and recipes made of them: read, checked and run."""
