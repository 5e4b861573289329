"""bertender: a BERT-style encoder made into a small, fast, trustworthy endpoint."""

__all__ = ["__version__"]

__version__ = "0.1.0"
