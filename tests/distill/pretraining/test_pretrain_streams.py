"""Pre-training on corpora that stream, with every vocabulary, and what a killed run keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import arrow_writer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining import vocabularies
from distill.pretraining.config import OBJECTIVES, TOKENIZERS, PretrainConfig
from distill.pretraining.pretrain import pretrain, pretrain_by_name
from tests.distill.pretraining.settings import BRIEF, with_phrases
from tests.listening import interrupted_at
from tests.toys import passages

SETTINGS: dict[str, Any] = {**BRIEF, "vocabulary_size": 400}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_vocabulary_makes_a_start_for_a_teacher(
    name: str, task: Task, tmp_path: Path
) -> None:
    config = PretrainConfig(tokenizer=name, **SETTINGS)
    encoder = pretrain(passages(200), config, tmp_path / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(encoder.path)
    model = AutoModelForMaskedLM.from_pretrained(encoder.path)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    settings = FinetuneConfig(teacher=str(encoder.path), epochs=1, precision="fp32")
    teacher = finetune_by_name(task, settings, tmp_path / "teacher")
    assert_padding_changes_nothing(teacher, task)


def assert_padding_changes_nothing(teacher: Artifact, task: Task) -> None:
    """As it would if the padding's number or its mask were another model's."""
    classifier, texts = open_classifier(teacher), task.dev.examples[:6]
    alone = np.concatenate([classifier.logits([text]) for text in texts])
    np.testing.assert_allclose(classifier.logits(texts), alone, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", sorted(TOKENIZERS.keys() - {"wordpiece"}))
def test_every_objective_learns_on_every_vocabulary(
    objective: str, name: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "epochs": 3, "batch_size": 8}
    config = PretrainConfig(**with_phrases(objective, tmp_path), tokenizer=name, **settings)
    epochs = pretrain(passages(200), config, tmp_path / "out").card.findings.training.epochs
    assert epochs[-1]["loss"] < epochs[0]["loss"]


@dataclass
class Counted:
    """A corpus that counts how often it is begun, and is in memory nowhere."""

    begun: int = 0

    def __iter__(self) -> Iterator[str]:
        self.begun += 1
        yield from (text for text in passages(100))


def test_a_resumed_run_takes_its_vocabulary_and_its_rows_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PretrainConfig(**SETTINGS)
    whole = pretrain(passages(100), config, tmp_path / "whole")
    corpus = Counted()
    with interrupted_at(5), pytest.raises(KeyboardInterrupt):
        pretrain(corpus, config, tmp_path / "killed")
    assert corpus.begun == 5, "survey, two for the vocabulary, one for each part"
    monkeypatch.setattr(
        vocabularies, "train_tokenizer", lambda *given: pytest.fail("trained again")
    )
    monkeypatch.setattr(arrow_writer, "ArrowWriter", lambda **given: pytest.fail("written again"))
    assert pretrain(corpus, config, tmp_path / "killed").digest == whole.digest
    assert corpus.begun == 6


def test_a_run_that_died_while_it_wrote_its_rows_writes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PretrainConfig(**SETTINGS)
    whole = pretrain(passages(100), config, tmp_path / "whole")
    written: list[Path] = []

    def half(path: str, **settings: Any) -> None:
        written.append(Path(path))
        written[-1].write_bytes(b"half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(arrow_writer, "ArrowWriter", half)
        with pytest.raises(KeyboardInterrupt):
            pretrain(passages(100), config, tmp_path / "killed")
    assert len(written) == 1
    assert pretrain(passages(100), config, tmp_path / "killed").digest == whole.digest


def test_a_corpus_in_memory_and_the_same_in_a_file_give_the_same_encoder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(passages(60)), encoding="utf-8")
    config = PretrainConfig(corpus=str(tmp_path / "a.txt"), **SETTINGS)
    from_file = pretrain_by_name(config, tmp_path / "file")
    in_memory = pretrain([*passages(60), ""], config, tmp_path / "memory")
    weights = [out.path / "model.safetensors" for out in (from_file, in_memory)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_vocabulary_that_cannot_be_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    corpus = Counted()
    small = PretrainConfig(tokenizer="bpe", **{**SETTINGS, "vocabulary_size": 200})
    with pytest.raises(ConfigError, match="vocabulary_size=200 is too small for tokenizer 'bpe'"):
        pretrain(corpus, small, tmp_path / "out")
    with pytest.raises(UnknownNameError, match=r"no tokenizer 'unigrm'. Did you mean 'unigram'"):
        PretrainConfig(tokenizer="unigrm")
    assert corpus.begun == 0 and not any(tmp_path.iterdir())
