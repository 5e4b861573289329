"""Teachers: finding and loading them, and their outputs."""
