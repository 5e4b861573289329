"""Offline checks of Triton model repositories, ours and others: `bertender lint-repository`."""
