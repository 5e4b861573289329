"""What is said of an exported graph."""

from __future__ import annotations

from typing import Any

from bertender.cli.findings import graph_lines
from bertender.core.findings import Findings

GRAPH = {"opset": 18, "optimize": "fused", "nodes": 36, "layers": 4, "fused": {}}


def lines_of(**findings: Any) -> list[str]:
    return graph_lines(Findings.model_validate(findings))


def test_the_lines_say_what_was_written_and_what_was_fused() -> None:
    fused = {"Attention": 3, "BiasGelu": 4}
    assert lines_of(graph={**GRAPH, "fused": fused}) == [
        "graph: opset 18, 36 nodes, optimize fused",
        "fused of 4 layers: 3 Attention, 4 BiasGelu",
    ]


def test_what_float16_must_hold_is_said() -> None:
    numbers = {"texts": 9, "largest": 123.456, "place": "Add /bert/add"}
    *_, line = lines_of(graph=GRAPH, numbers=numbers)
    assert line == "largest number on 9 texts: 123.5, at Add /bert/add"


def test_other_artifacts_and_plain_graphs_have_fewer_lines() -> None:
    assert lines_of(parameters=7) == []
    assert len(lines_of(graph=GRAPH)) == 1
