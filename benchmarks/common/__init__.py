"""Modules that several benchmarks use."""
