"""The demo page: a text box, the scores as bars, the latency, and the lineage of the model."""

from serve.page.server import PageServer

__all__ = ["PageServer"]
