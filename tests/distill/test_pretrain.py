"""Pre-training: every objective learns, and what comes out is a start for a teacher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError, UnknownNameError
from bertender.core.predictor import open_classifier
from bertender.core.text import load_tokenizer
from bertender.tasks.task import Task
from distill.distiller import DistillConfig, distill
from distill.objectives import OBJECTIVES
from distill.pretrain import PretrainConfig, pretrain, pretrain_by_name
from distill.teacher import FinetuneConfig, finetune_by_name
from export.onnx_export import ExportConfig, export
from tests.conftest import FRUIT, TOOLS

SMALL: dict[str, Any] = {
    "vocabulary_size": 200,
    "layers": 1,
    "hidden_size": 32,
    "heads": 2,
    "epochs": 8,
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 5e-3,
    "precision": "fp32",
}


def passages(count: int = 400) -> list[str]:
    """Sentences in which a word tells much of the others."""
    generator = torch.Generator().manual_seed(6)
    picks = torch.randint(0, 6, (count, 2), generator=generator).tolist()
    frames = (("eat the", "from the tree", FRUIT), ("use the", "from the box", TOOLS))
    return [
        f"{before} {words[first]} and the {words[second]} {after}"
        for row, (first, second) in enumerate(picks)
        for before, after, words in [frames[row % 2]]
    ]


@pytest.fixture(scope="module", params=OBJECTIVES)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An encoder pre-trained by each objective, from a file."""
    folder = tmp_path_factory.mktemp("pretrain")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(passages()), encoding="utf-8")
    config = PretrainConfig(corpus=str(corpus), objective=request.param, **SMALL)
    return pretrain_by_name(config, folder / "encoder")


def test_the_held_out_loss_falls(encoder: Artifact) -> None:
    epochs = encoder.card.metrics["epochs"]
    vocabulary = len(load_tokenizer(encoder.path))
    assert len(epochs) == 8
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.3
    assert epochs[-1]["loss"] < 0.5 * math.log(vocabulary)  # that of knowing nothing
    assert epochs[-1]["perplexity"] == pytest.approx(math.exp(epochs[-1]["loss"]))


def test_the_encoder_has_the_shape_that_was_asked_for(encoder: Artifact) -> None:
    assert encoder.card.stage == "pretrain"
    assert encoder.card.task.labels == ()
    assert encoder.card.metrics["steps"] > 0
    tokenizer = load_tokenizer(encoder.path)
    assert tokenizer.model_max_length == 32
    assert tokenizer.convert_ids_to_tokens(tokenizer("apple")["input_ids"])[0] == "[CLS]"


def test_it_becomes_a_teacher(encoder: Artifact, task: Task, tmp_path: Path) -> None:
    config = FinetuneConfig(
        teacher=str(encoder.path), epochs=3, batch_size=16, learning_rate=3e-3, precision="fp32"
    )
    teacher = finetune_by_name(task, config, tmp_path / "teacher")
    assert teacher.card.parent is not None
    assert teacher.card.parent.digest == encoder.digest
    assert teacher.card.metrics["epochs"][-1]["accuracy"] > 0.9
    assert open_classifier(teacher).logits(task.dev.examples[:3]).shape == (3, 2)


def test_it_is_no_classifier_yet(encoder: Artifact, task: Task, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"stage pretrain.*artifact of `bertender finetune`"):
        distill(encoder, task, DistillConfig(), tmp_path / "out")
    with pytest.raises(ModelError, match=r"stage 'pretrain'.*Give the artifact of `finetune`"):
        export(encoder, task, ExportConfig(), tmp_path / "out")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_same_run_gives_the_same_encoder(name: str, tmp_path: Path) -> None:
    config = PretrainConfig(objective=name, **{**SMALL, "epochs": 1})
    first, second = (pretrain(passages(100), config, tmp_path / out) for out in ("a", "b"))
    assert first.digest == second.digest


def test_heads_must_divide_the_width(tmp_path: Path) -> None:
    config = PretrainConfig(hidden_size=32, heads=3)
    with pytest.raises(ConfigError, match=r"heads=3 do not divide hidden_size=32.*1, 2, 4, 8, 16"):
        pretrain(passages(60), config, tmp_path / "out")


def test_too_few_passages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="49 passages are too few to train on; at least 50"):
        pretrain(passages(49), PretrainConfig(**SMALL), tmp_path / "out")


def test_an_unknown_objective_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no pre-training objective 'mlmm'. Did you mean"):
        pretrain(passages(60), PretrainConfig(objective="mlmm"), tmp_path / "out")
    assert not any(tmp_path.iterdir())
