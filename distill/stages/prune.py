"""PRUNE: a classifier with fewer heads, neurons, layers or tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.pipeline.named_files import NamedFile
from bertender.pipeline.stage import TORCH_CLASSIFIER, Inputs, Product, Stage, Want
from bertender.tasks.task import Task
from distill.corpora.corpus import Corpus
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.pruning.expected import expected_pruned
from distill.pruning.pruner import (
    check_architecture,
    check_possible,
    check_vocabulary_stays,
    prune,
)
from distill.stages.corpus_text import CorpusText

__all__ = ["PRUNE"]


def _prune(inputs: Inputs, config: PruneConfig, out: Path) -> Artifact:
    return prune(inputs.sources[0], inputs.task, config, out)


def _files(config: PruneConfig) -> Iterator[NamedFile]:
    """Yield the corpus that the vocabulary is pruned for, where it is one."""
    if config.vocab is not None and config.vocab != OF_THE_TASK:
        yield CorpusText(Corpus(config.vocab))


def _check(config: PruneConfig, task: Task) -> None:
    check_vocabulary_stays(config, task)


def _wants(config: PruneConfig, position: int) -> Want:
    return replace(
        TORCH_CLASSIFIER,
        class_checks=(partial(check_architecture, config=config),),
        shape_checks=(partial(check_possible, config=config),),
    )


PRUNE = Stage(
    name="prune",
    config=PruneConfig,
    function=_prune,
    source="artifact",
    wants=_wants,
    makes=lambda config: Product("prune", "torch"),
    model=lambda config, earlier: expected_pruned(config, earlier.sources[0]),
    files=_files,
    check=_check,
)
