"""GLUE: the classification sets of GLUE, and how local files and the hub's copy write them.

Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", arXiv:1804.07461. The labels have the order of the hub's copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GLUE", "GlueSet"]


@dataclass(frozen=True)
class GlueSet:
    """Place of a set, and the columns and labels of its local files and of the hub's copy."""

    folder: str
    hub_name: str
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    file_text_columns: tuple[str, ...]
    file_label_column: str
    file_labels: tuple[str, ...]
    file_columns: tuple[str, ...] = ()  # for files without a header

    def file(self, root: Path, split: str) -> Path:
        return root / self.folder / f"{split}.tsv"


GLUE: Mapping[str, GlueSet] = {
    "sst2": GlueSet(
        folder="SST-2",
        hub_name="sst2",
        labels=("negative", "positive"),
        text_columns=("sentence",),
        file_text_columns=("sentence",),
        file_label_column="label",
        file_labels=("0", "1"),
    ),
    "cola": GlueSet(
        folder="CoLA",
        hub_name="cola",
        labels=("unacceptable", "acceptable"),
        text_columns=("sentence",),
        file_text_columns=("sentence",),
        file_label_column="label",
        file_labels=("0", "1"),
        file_columns=("source", "label", "mark", "sentence"),
    ),
    "mrpc": GlueSet(
        folder="MRPC",
        hub_name="mrpc",
        labels=("not_equivalent", "equivalent"),
        text_columns=("sentence1", "sentence2"),
        file_text_columns=("#1 String", "#2 String"),
        file_label_column="Quality",
        file_labels=("0", "1"),
    ),
    "rte": GlueSet(
        folder="RTE",
        hub_name="rte",
        labels=("entailment", "not_entailment"),
        text_columns=("sentence1", "sentence2"),
        file_text_columns=("sentence1", "sentence2"),
        file_label_column="label",
        file_labels=("entailment", "not_entailment"),
    ),
}
