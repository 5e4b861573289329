"""Compression under limits: plan candidate chains, predict their costs, train by halving."""
