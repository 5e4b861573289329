"""One endpoint and several, and their restarts."""
