"""Graphs with fused operators."""
