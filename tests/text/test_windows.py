"""Texts that are longer than the model's input, read in windows: through every stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.gate.artifacts import VerifyConfig, verify
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import FileTokenizer, load_tokenizer
from bertender.text.windows import WINDOWS, TokenizeTextWindows, pooled
from bertender.training.heads import HEADS
from bertender.training.heads.head import POOLING, ROWS
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.graph_check import failures_if_quantized
from quantize.quantizer import quantize
from serve.backend.fair_queue import Refusal
from serve.backend.opening import open_served_model
from serve.config import BackendParameters
from tests.quick import quick
from tests.serve.asking import ask
from tests.toy_kinds import pace
from tests.toy_models import save_encoder
from tests.toy_tagging import TASK as TAGGING
from tests.toys import number_task, pair_task, tiny_tokenizer, toy_task

SETTINGS: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}
POOLINGS = ("mean", "max")
TOKENS = 16
"""Of a window."""


def long_task() -> Task:
    """The toy task, in which only the end of a text tells its label."""
    task = toy_task()

    def late(split: Split) -> Split:
        before = " ".join(map(str, range(300, 312)))
        texts = tuple((f"{before} {text}",) for (text,) in split.examples)
        return Split(texts, split.label_ids)

    return replace(task, train=late(task.train), dev=late(task.dev))


@pytest.fixture(scope="module", params=quick(POOLINGS, "mean"))
def pooling(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def teacher(pooling: str, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("long")
    encoder = save_encoder("bert", folder / "encoder")
    config = FinetuneConfig(
        teacher=str(encoder), epochs=12, windows=pooling, max_length=TOKENS, **SETTINGS
    )
    return finetune_by_name(long_task(), config, folder / "teacher")


@pytest.fixture(scope="module")
def graph(teacher: Artifact) -> Artifact:
    return export(teacher, long_task(), ExportConfig(), teacher.path.with_name("graph"))


@pytest.mark.parametrize("words", [1, 14, 15, 16, 29, 100])
def test_windows_are_few_and_equal_and_cover_a_text(words: int) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = TOKENS
    text = " ".join(("apple", "saw")[word % 2] for word in range(words))
    (own,) = TokenizeTextWindows(tokenizer).windows([(text,)])
    whole = tokenizer(text)["input_ids"]
    lengths = {len(each.ids) for each in own}
    assert lengths == {min(len(whole), TOKENS)}
    inner = TOKENS - 2
    fewest = 1 if len(whole) <= TOKENS else -(-(words - 2) // (inner - 2))  # they share 2 tokens
    assert len(own) == fewest
    for each in own:
        assert (each.ids[0], each.ids[-1]) == (whole[0], whole[-1])
    assert own[-1].ids.tolist()[-2] == whole[-2] and own[0].ids.tolist()[1] == whole[1]


def test_the_server_reads_windows_as_training_does(teacher: Artifact) -> None:
    texts = [*long_task().dev.examples[:5], ("apple",)]
    batches = [
        TokenizeTextWindows(tokenizer)(texts)
        for tokenizer in (load_tokenizer(teacher.path), FileTokenizer(teacher.path))
    ]
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert np.array_equal(*(batch.arrays[name] for batch in batches))
    assert batches[0].counts == batches[1].counts and batches[0].counts[-1] == 1
    assert max(batches[0].counts) > 2


def test_what_stands_at_the_end_is_read(teacher: Artifact, tmp_path: Path) -> None:
    task = long_task()
    assert evaluate(open_classifier(teacher), task.dev, task.metric)[0].value > 0.9
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), epochs=2, max_length=TOKENS, **SETTINGS)
    cut = finetune_by_name(task, config.model_copy(update={"allow_constant": True}), tmp_path / "a")
    assert evaluate(open_classifier(cut), task.dev, task.metric)[0].value < 0.7


@pytest.mark.parametrize("pooling", POOLINGS, indirect=True)
def test_logits_are_joined_alike_in_training_and_afterwards(pooling: str) -> None:
    logits = torch.tensor([[1.0, 5.0], [3.0, 1.0], [2.0, 2.0]])
    batch = {
        ROWS: torch.tensor([2, 1]),
        POOLING: torch.tensor([["mean", "max"].index(pooling)] * 2),
    }
    joined = HEADS["single_label_classification"].joined(logits, batch)
    assert np.array_equal(joined[0].numpy(), pooled(logits[:2].numpy(), pooling))
    assert joined[1].tolist() == [2.0, 2.0]


def test_a_student_reads_them_and_passes_the_gate(
    teacher: Artifact, graph: Artifact, pooling: str, tmp_path: Path
) -> None:
    task = long_task()
    student = distill(
        teacher,
        task,
        DistillConfig(method="distilbert", layers=2, epochs=8, **SETTINGS),
        tmp_path / "s",
    )
    settings = load_tokenizer(student.path).init_kwargs
    assert settings[WINDOWS] == pooling
    assert evaluate(open_classifier(student), task.dev, task.metric)[0].value > 0.9
    fewer = prune(student, task, PruneConfig(heads=0.5, epochs=1, **SETTINGS), tmp_path / "p")
    assert load_tokenizer(fewer.path).init_kwargs[WINDOWS] == pooling
    small = quantize(graph, task, QuantizeConfig(scheme="dynamic"), tmp_path / "q")
    assert verify(teacher, small, task, VerifyConfig(), failures_if_quantized).passed


def test_teachers_and_filters_judge_whole_texts(
    teacher: Artifact, pooling: str, tmp_path: Path
) -> None:
    """However many windows each of them reads."""
    task = long_task()
    (tmp_path / "more.txt").write_text("\n".join(f"{text} 7" for text in task.train.texts()))
    config = DistillConfig(
        method="distilbert",
        layers=2,
        epochs=4,
        more_teachers=(teacher.path,),
        unlabelled=tmp_path / "more.txt",
        unlabelled_max_entropy=0.9,
        unlabelled_agreement=True,
        **SETTINGS,
    )
    student = distill(teacher, task, config, tmp_path / "student")
    assert evaluate(open_classifier(student), task.dev, task.metric)[0].value > 0.9


def test_numbers_are_learned_from_long_texts_alone(tmp_path: Path) -> None:
    task = number_task()
    encoder = save_encoder("bert", tmp_path / "encoder")
    settings = {"windows": "mean", "max_length": 8, "epochs": 6}
    config = FinetuneConfig(teacher=str(encoder), **settings, **pace(task))
    teacher = finetune_by_name(task, config, tmp_path / "teacher")
    (tmp_path / "texts.txt").write_text("\n".join(task.train.texts()))
    without = replace(task, train=Split((), ()))
    alone = {"unlabelled": tmp_path / "texts.txt", "method": "distilbert", "layers": 2}
    student = distill(
        teacher, without, DistillConfig(**alone, epochs=4, **pace(task)), tmp_path / "s"
    )
    scores = student.card.findings.scores
    assert scores is not None and scores.score > 0.8


def test_states_of_other_windows_are_not_compared(teacher: Artifact, tmp_path: Path) -> None:
    config = DistillConfig(method="pkd", layers=2, vocab_size=150, epochs=1, **SETTINGS)
    with pytest.raises(ConfigError, match="window by window"):
        distill(teacher, long_task(), config, tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_the_endpoint_answers_as_the_model_predicts(graph: Artifact) -> None:
    examples = [*long_task().dev.examples[:6], ("plum",)]
    expected = open_classifier(graph).outputs(examples)
    parameters = BackendParameters(tokens_per_bucket=64, threads=1)
    served = open_served_model(graph.path, parameters, max_batch_size=64)
    (tensors,) = ask(served, examples)
    served.close()
    assert not isinstance(tensors, Refusal)
    logits = np.concatenate([each.logits for each in expected])
    np.testing.assert_allclose(tensors["LOGITS"], logits, atol=1e-3)


@pytest.mark.parametrize("task", [pair_task(), TAGGING], ids=["pairs", "words"])
def test_windows_are_of_one_text(task: Task, tmp_path: Path) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), windows="mean", **SETTINGS)
    with pytest.raises(ConfigError, match="windows=mean: for examples of one text each"):
        finetune_by_name(task, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
