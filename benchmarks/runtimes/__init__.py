"""The same artifacts in every runtime."""
