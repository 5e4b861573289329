"""Teachers: finding, loading and running them, and caching their outputs."""
