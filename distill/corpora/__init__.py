"""Plain text to learn from: where it lies, and how it becomes rows of tokens."""
