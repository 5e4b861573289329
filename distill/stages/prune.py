"""PRUNE: a classifier with fewer heads, neurons, layers or tokens.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.table import on_demand
from bertender.pipeline.named_files import ArtifactFolder, NamedFile, TextFile
from bertender.pipeline.products import TORCH_CLASSIFIER, Earlier, Product, Want
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task
from distill.corpora.corpus import Corpus
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.stages.corpus_text import CorpusText

if TYPE_CHECKING:
    from bertender.models.expected import ExpectedModel

__all__ = ["PRUNE"]


def _prune(inputs: Inputs, config: PruneConfig, out: Path) -> Artifact:
    from distill.pruning.pruner import prune

    return prune(inputs.sources[0], inputs.task, config, out)


def _files(config: PruneConfig) -> Iterator[NamedFile]:
    """Yield the corpus that the vocabulary is pruned for, the teacher and the unlabelled texts."""
    if config.vocab is not None and config.vocab != OF_THE_TASK:
        yield CorpusText(Corpus(config.vocab))
    if config.teacher is not None:
        yield ArtifactFolder(config.teacher)
    if config.unlabelled is not None:
        yield TextFile("unlabelled", config.unlabelled)


def _check(config: PruneConfig, task: Task) -> None:
    from distill.pruning.pruner import check_vocabulary_stays
    from distill.pruning.recovery_texts import check_unlabelled_read

    check_vocabulary_stays(config, task)
    check_unlabelled_read(task, config)


def _wants(config: PruneConfig, position: int) -> Want:
    if position:  # the teacher of the recovery, which is not cut
        return TORCH_CLASSIFIER
    from distill.pruning.pruner import check_architecture, check_possible

    return replace(
        TORCH_CLASSIFIER,
        class_checks=(partial(check_architecture, config=config),),
        shape_checks=(partial(check_possible, config=config),),
    )


def _least_entries(name: str) -> int:
    """Return how many entries of an encoder's vocabulary stay whatever is cut.

    0 where it cannot be cut: a step that shall cut it says why.
    """
    from bertender.text.batch import load_tokenizer
    from distill.teachers.encoders import located
    from distill.vocabularies.cutting import least_entries

    try:
        return least_entries(load_tokenizer(located(name)))
    except ModelError:
        return 0


def _model(config: PruneConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.pruning.expected import expected_pruned

    return expected_pruned(config, earlier.sources[0])


PRUNE = Stage(
    name="prune",
    config=PruneConfig,
    function=_prune,
    source="artifact",
    sources=(1, 2),
    wants=_wants,
    makes=lambda config: Product("prune", "torch"),
    model=_model,
    fills={1: "teacher"},
    texts=on_demand("distill.distillation.unlabelled:texts_of_task"),
    files=_files,
    check=_check,
    provides={"least_entries": _least_entries},
)
