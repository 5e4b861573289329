"""Latency of an endpoint next to that of its model in process."""
