"""What a running server shows at /metrics."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping

from serve.server.server import Server

__all__ = ["Scraped", "scrape", "scrape_until"]

LINE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
FLUSH_TIMEOUT_S = 10.0

Scraped = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""(name, labels) -> value; the labels of Triton's GPUs and of the model's name are left out."""

OF_EVERY_SERIES = {("model", "classifier"), ("version", "1")}


def scrape(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read all series of a server."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        lines = [line for line in response.read().decode().splitlines() if line[0] != "#"]
    series = {}
    for line in lines:
        match = LINE.fullmatch(line)
        assert match, line
        labels = frozenset(LABEL.findall(match["labels"] or "")) - OF_EVERY_SERIES
        assert (match["name"], labels) not in series, line
        series[match["name"], labels] = float(match["value"])
    return series


def scrape_until(server: Server, holds: Callable[[Scraped], bool]) -> Scraped:
    """Scrape until what a test waits for has been sent to Triton, and once more after that: the
    series of a flush are sent one by one."""
    deadline = time.monotonic() + FLUSH_TIMEOUT_S
    while not holds(last := scrape(server)):
        assert time.monotonic() < deadline, last
        time.sleep(0.1)
    time.sleep(0.1)
    return scrape(server)
