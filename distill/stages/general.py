"""DISTILL_GENERAL: a smaller encoder from an encoder, on plain text.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.pipeline.named_files import NamedFile
from bertender.pipeline.products import TORCH_MODEL, Earlier, Product, Want
from bertender.pipeline.stage import Inputs, Stage
from distill.corpora.corpus import Corpus
from distill.distillation.general_config import GeneralConfig
from distill.methods import GENERAL_METHODS
from distill.stages.corpus_text import CorpusText
from distill.stages.encoder_folder import Encoder, expected_encoder

if TYPE_CHECKING:
    from bertender.models.expected import ExpectedModel

__all__ = ["DISTILL_GENERAL"]


def _distill_general(inputs: Inputs, config: GeneralConfig, out: Path) -> Artifact:
    from distill.distillation.general import distill_general_by_name

    return distill_general_by_name(config, out)


def _files(config: GeneralConfig) -> Iterator[NamedFile]:
    yield Encoder("teacher", config.teacher)
    yield CorpusText(Corpus(config.corpus, config.text_column))


WITHOUT_PREDICTIONS = [
    name for name, row in GENERAL_METHODS.items() if not row.reads_predicted_words
]
PREDICTS_WORDS = Want(
    "a torch model that predicts words",
    lambda made: made.kind == "torch" and made.predicts_words,
    "Give a step of stage pretrain whose objective masks words, or choose a method that does "
    f"not read the teacher's predictions of words: {', '.join(WITHOUT_PREDICTIONS)}.",
)


def _wants(config: GeneralConfig, position: int) -> Want:
    return PREDICTS_WORDS if config.row.reads_predicted_words else TORCH_MODEL


def _makes(config: GeneralConfig) -> Product:
    predicts_words = config.row.predicts_words
    return Product("distill-general", "torch", classifies=False, predicts_words=predicts_words)


def _model(config: GeneralConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.distillation.expected import expected_general_student

    return expected_general_student(config, expected_encoder(config.teacher, earlier))


DISTILL_GENERAL = Stage(
    name="distill-general",
    config=GeneralConfig,
    function=_distill_general,
    sources=(0, 1),
    wants=_wants,
    makes=_makes,
    model=_model,
    fills={0: "teacher"},
    files=_files,
    needs_task=False,
)
