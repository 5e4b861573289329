"""READINGS: the words under the tables, made from the same files as these.

So no number in them is typed, and what they claim follows the intervals when the files change.
Those of a benchmark are beside its table (`reading.py`); here are those of results that a command
of bertender writes, as `bertender compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.controls.reading import controls_reading
from benchmarks.documents.readings.bert_base import bert_base_reading
from benchmarks.documents.readings.chain import TRIED, chain_reading
from benchmarks.documents.readings.distilling_gain import FIRST_RUN, control_reading
from benchmarks.documents.readings.speed import speed_reading
from benchmarks.fusion.reading import fusion_reading
from benchmarks.methods.reading import methods_reading
from benchmarks.pruning.reading import pruning_reading
from benchmarks.quantization.reading import quantization_reading
from benchmarks.runtimes.reading import fastest_reading, runtimes_reading
from benchmarks.tagging.reading import tagging_reading
from benchmarks.training.reading import training_reading

__all__ = ["READINGS", "Reading"]


@dataclass(frozen=True)
class Reading:
    """A row of READINGS."""

    write: Callable[[Mapping[str, Path]], str]
    """places of the files by their names -> Markdown"""
    further_files: tuple[str, ...] = ()
    """Those that it reads besides the table's own."""
    further_tables: tuple[str, ...] = ()
    """Whose files it reads, too."""


def _comparison_reading(files: Mapping[str, Path]) -> str:
    """Return what is fast and small in a comparison, and what distilling gained in it."""
    name, path = next(iter(files.items()))
    return f"{speed_reading(name, path)}\n{control_reading(files)}"


READINGS: Mapping[str, Reading] = {
    "sst2": Reading(_comparison_reading, (FIRST_RUN,)),
    "bert-base": Reading(bert_base_reading),
    "bert-base-sentences": Reading(bert_base_reading),
    "bert-base-seeds": Reading(bert_base_reading),
    "methods": Reading(methods_reading),
    "controls": Reading(controls_reading),
    "few-labels": Reading(controls_reading),
    "few-labels-first": Reading(controls_reading),
    "training": Reading(training_reading),
    "tagging": Reading(tagging_reading),
    "fusion": Reading(fusion_reading),
    "fusion-vnni": Reading(fusion_reading),
    "fusion-no-amx": Reading(fusion_reading),
    "runtimes": Reading(runtimes_reading),
    "runtimes-avx2": Reading(fastest_reading),
    "runtimes-gpu": Reading(fastest_reading),
    "pruning": Reading(pruning_reading, further_tables=("methods",)),
    "quantization": Reading(quantization_reading),
    "chain": Reading(chain_reading, (TRIED,)),
}
"""By the name of the table; each stands in the same document, in a block named `TABLE-reading`."""
