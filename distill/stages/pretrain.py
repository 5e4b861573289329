"""PRETRAIN: an encoder from plain text.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.pipeline.named_files import ArtifactFolder, NamedFile
from bertender.pipeline.products import PRETRAINED, Earlier, Product, Want
from bertender.pipeline.stage import Inputs, Stage
from distill.corpora.corpus import Corpus
from distill.objectives import OBJECTIVES
from distill.pretraining.config import PretrainConfig
from distill.stages.corpus_text import CorpusText

if TYPE_CHECKING:
    from bertender.models.expected import ExpectedModel

__all__ = ["PRETRAIN"]


def _pretrain(inputs: Inputs, config: PretrainConfig, out: Path) -> Artifact:
    from distill.pretraining.pretrain import pretrain_by_name

    return pretrain_by_name(config, out)


def _files(config: PretrainConfig) -> Iterator[NamedFile]:
    if config.stack_from is not None:
        yield ArtifactFolder(config.stack_from)
    yield CorpusText(Corpus(config.corpus, config.text_column))


@dataclass(frozen=True, kw_only=True)
class _Shallower(Want):
    """An encoder of the same shape except for its depth."""

    config: PretrainConfig

    def check(self, source: str, product: Product) -> None:
        from distill.pretraining.stacking import check_same_shape

        super().check(source, product)
        shallow = product.settings
        assert isinstance(shallow, PretrainConfig)
        families = (OBJECTIVES[each.objective].family for each in (shallow, self.config))
        theirs, own = families
        check_same_shape(f"step {source!r}", theirs, dict(shallow), self.config, own)


def _wants(config: PretrainConfig, position: int) -> Want:
    return _Shallower(PRETRAINED.name, PRETRAINED.suits, PRETRAINED.next_step, config=config)


def _makes(config: PretrainConfig) -> Product:
    predicts_words = OBJECTIVES[config.objective].predicts_words
    return Product(
        "pretrain", "torch", classifies=False, predicts_words=predicts_words, settings=config
    )


def _model(config: PretrainConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.pretraining.pretrain import expected_pretrained

    return expected_pretrained(config)


PRETRAIN = Stage(
    name="pretrain",
    config=PretrainConfig,
    function=_pretrain,
    sources=(0, 1),
    wants=_wants,
    makes=_makes,
    model=_model,
    fills={0: "stack_from"},
    files=_files,
    needs_task=False,
)
