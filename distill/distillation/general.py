"""General distillation: an encoder into a smaller one on plain text, before any task.

encoder + corpus + GeneralConfig
  -> `on_corpus`: the method's student, an encoder or a masked language model
  -> `Distillation.run` on dense blocks -> encoder artifact, for `finetune --teacher` and
     `distill --student`
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact, check_writable
from bertender.core.findings import Findings
from bertender.models.families import padding_embedding
from bertender.training.findings import training_findings
from bertender.training.trained import Writer, trained_artifact
from distill.corpora.corpus import Corpus
from distill.distillation.general_config import GeneralConfig
from distill.distillation.general_teacher import GeneralTeacher
from distill.distillation.on_corpus import on_corpus
from distill.teachers.encoders import find_encoder
from distill.writing import TrainedModel, artifact_at, corpus_record

__all__ = ["GeneralConfig", "GeneralTeacher", "distill_general", "distill_general_by_name"]


def distill_general_by_name(config: GeneralConfig, out: Path) -> Artifact:
    """Find and load what the config names, then `distill_general`."""
    method = config.changed_method()
    source = find_encoder(config.teacher)
    check_writable(out, artifact_at(source))
    torch.manual_seed(config.seed)  # an encoder without a pooler gets a random one
    teacher = GeneralTeacher.load(source, method)
    return distill_general(teacher, Corpus(config.corpus, config.text_column), config, out)


def distill_general(
    teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig, out: Path
) -> Artifact:
    """Train a smaller encoder on its teacher's outputs on plain text; write a torch artifact.

    The loss on held-out passages is measured after each epoch.

    Args:
        teacher: what to learn from.
        passages: iterated over several times, so not an iterator; an empty one ends a document.
        config: how to learn.
        out: where the artifact goes.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
        DataError: there are too few passages to train and hold out.
    """
    config.check_rules()
    parent = artifact_at(teacher.source)
    check_writable(out, parent)
    ready = on_corpus(teacher, passages, config)

    def train(work: Path) -> Writer:
        distillation = ready.distillation(work)
        trained = distillation.run(config, work, f"distill {out.name}")
        student = _with_empty_padding(trained.student)
        corpus = corpus_record(config.corpus, config.text_column, "loss")
        findings = Findings(training=training_findings(trained.reports))
        tokenizer, projections = distillation.tokenizer, trained.projections
        made = TrainedModel(
            student,
            tokenizer,
            corpus,
            findings,
            projections=projections,
            method=config.method,
        )
        return made.write

    identity = ready.identity
    return trained_artifact(out, "distill-general", config, train, identity=identity, parent=parent)


def _with_empty_padding(student: PreTrainedModel) -> PreTrainedModel:
    """Return the student with zeros for its padding, which a text's last token may read.

    Predicting words has changed them.
    """
    if (padding := padding_embedding(student)) is not None:
        padding.zero_()
    return student
