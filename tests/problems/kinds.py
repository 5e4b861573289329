"""Models of each kind of problem, made once in a run, and what they are to answer.

A file that tests them imports the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs
from bertender.tasks.task import Task
from bertender.text.batch import Example
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.conftest import Once
from tests.toy_kinds import ALL, TASKS


@pytest.fixture(scope="module", params=ALL)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


@pytest.fixture(scope="module")
def teacher(task: Task, teacher_of: Callable[[str], Artifact]) -> Artifact:
    return teacher_of(task.problem_type)


@pytest.fixture(scope="module")
def graph_of(once: Once, teacher_of: Callable[[str], Artifact]) -> Callable[[str], Artifact]:
    """The graph of a teacher: (problem type) -> the graph."""

    def graph(problem_type: str) -> Artifact:
        source = teacher_of(problem_type)
        folder = once(
            f"graph-of-{source.path.parent.name}",
            lambda folder: export(source, TASKS[problem_type], ExportConfig(), folder / "graph"),
        )
        return Artifact.load(folder / "graph")

    return graph


@pytest.fixture(scope="module")
def graph(graph_of: Callable[[str], Artifact], task: Task) -> Artifact:
    return graph_of(task.problem_type)


@pytest.fixture(scope="module")
def eight_bits(once: Once, graph: Artifact, task: Task) -> Artifact:
    config = QuantizeConfig(scheme="dynamic")
    folder = once(
        f"int8-{graph.path.parent.name}",
        lambda folder: quantize(graph, task, config, folder / "int8"),
    )
    return Artifact.load(folder / "int8")


def named(outputs: Outputs, example: Example, model: Classifier) -> Any:
    return model.problem.by_names(model.problem.decode(outputs, example), model.labels)


def same(answer: Any, expected: Any) -> bool:
    """Numbers are rounded."""
    if isinstance(expected, float):
        return bool(answer == pytest.approx(expected, abs=1e-3))
    return bool(answer == expected)
