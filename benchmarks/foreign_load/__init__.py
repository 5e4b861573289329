"""Timings beside other work."""
