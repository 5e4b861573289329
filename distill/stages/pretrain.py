"""PRETRAIN: an encoder from plain text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.pipeline.named_files import ArtifactFolder, NamedFile
from bertender.pipeline.stage import PRETRAINED, Inputs, Product, Stage
from distill.corpora.corpus import Corpus
from distill.pretraining.pretrain import PretrainConfig, pretrain_by_name
from distill.stages.corpus_text import CorpusText

__all__ = ["PRETRAIN"]


def _pretrain(inputs: Inputs, config: PretrainConfig, out: Path) -> Artifact:
    return pretrain_by_name(config, out)


def _files(config: PretrainConfig) -> Iterator[NamedFile]:
    if config.stack_from is not None:
        yield ArtifactFolder(config.stack_from)
    yield CorpusText(Corpus(config.corpus, config.text_column))


PRETRAIN = Stage(
    name="pretrain",
    config=PretrainConfig,
    function=_pretrain,
    sources=(0, 1),
    wants=lambda config, position: PRETRAINED,
    makes=lambda config: Product("pretrain", "torch", classifies=False),
    fills={0: "stack_from"},
    files=_files,
    needs_task=False,
)
