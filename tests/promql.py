"""Expressions of PromQL, parsed as Prometheus does."""

from __future__ import annotations

import re
from typing import Any

import pytest

__all__ = ["expression", "grouped_by", "selectors"]

GRAFANA_INTERVAL = "$__rate_interval"


def expression(text: str) -> Any:
    """Parse an expression, with Grafana's interval as a duration; skip without the parser."""
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    return parser.parse(re.sub(re.escape(GRAFANA_INTERVAL), "1m", text))


def selectors(parsed: Any) -> list[tuple[str, dict[str, str]]]:
    """Return name and labels of every series that an expression reads."""
    return [
        (node.name, {matcher.name: matcher.value for matcher in node.matchers.matchers})
        for node in _nodes(parsed)
        if type(node).__name__ == "VectorSelector"
    ]


def grouped_by(parsed: Any) -> set[str]:
    """Return the labels by which an expression aggregates."""
    modifiers = (getattr(node, "modifier", None) for node in _nodes(parsed))
    return {label for each in modifiers for label in getattr(each, "labels", ())}


def _nodes(parsed: Any) -> list[Any]:
    import promql_parser

    nodes: list[Any] = []
    promql_parser.walk(parsed, nodes.append)
    return nodes
