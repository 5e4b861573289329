"""What is said of an exported graph."""

from __future__ import annotations

from bertender.report.graph import graph_lines


def test_the_lines_say_what_was_written() -> None:
    assert graph_lines({"graph": {"opset": 18, "nodes": 36}}) == ["graph: opset 18, 36 nodes"]


def test_other_artifacts_have_no_lines() -> None:
    assert graph_lines({"epochs": []}) == []
