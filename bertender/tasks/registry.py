"""TASKS: the tasks that bertender knows by name; what reads their data is imported when it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bertender.core.table import on_demand
from bertender.tasks.glue_sets import GLUE
from bertender.tasks.libraries import LIBRARIES
from bertender.tasks.sections import SECTIONS
from bertender.tasks.task import Split
from bertender.text.example import Example

__all__ = ["TASKS", "TaskSpec"]


@dataclass(frozen=True)
class TaskSpec:
    """A row of TASKS: what the task asks, and where its two splits come from."""

    description: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    load: Callable[[], tuple[Split, Split]]
    unlabelled: Callable[[], tuple[Example, ...]] | None = None
    """Reads texts without labels that come with the task; None where there are none."""


def _glue(name: str, description: str, metric: str) -> TaskSpec:
    columns = GLUE[name].text_columns
    load = partial(on_demand("bertender.tasks.glue:load_glue"), name)
    return TaskSpec(description, GLUE[name].labels, metric, columns, load)


def _data_file(file: str, text_columns: Sequence[str]) -> Callable[[], tuple[Example, ...]]:
    read = on_demand("bertender.tasks.unlabelled:texts_of_data_file")
    return partial(read, file, text_columns)


TASKS: Mapping[str, TaskSpec] = {
    "docs": TaskSpec(
        "Which section of a docstring does this sentence stand in? (always available)",
        SECTIONS,
        "accuracy",
        ("text",),
        on_demand("bertender.tasks.docs_sections:load_docs"),
        on_demand("bertender.tasks.docs_sections:load_further"),
    ),
    "docs-library": TaskSpec(
        "Which library does this documentation come from? (always available)",
        tuple(LIBRARIES),
        "accuracy",
        ("text",),
        on_demand("bertender.tasks.docs:load_docs_library"),
    ),
    "sst2": replace(
        _glue("sst2", "Does this piece of a film review praise or not? (GLUE)", "accuracy"),
        unlabelled=_data_file("movie-sentences/movie-sentences.txt.xz", ("sentence",)),
    ),
    "cola": _glue("cola", "Is this sentence grammatical English? (GLUE)", "matthews"),
    "mrpc": _glue("mrpc", "Do these two sentences say the same? (GLUE)", "f1"),
    "rte": _glue("rte", "Does the second sentence follow from the first? (GLUE)", "accuracy"),
}
