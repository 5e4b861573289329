"""Distilling against labels alone."""
