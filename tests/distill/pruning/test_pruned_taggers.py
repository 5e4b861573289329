"""Pruning a model that labels words: scored, cut, trained again and exported by its own head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForTokenClassification

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import load_torch_classifier, model_inputs, open_classifier
from bertender.recipes.stages import STAGES
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pruning.config import PruneConfig
from distill.pruning.importance import importance_of
from distill.pruning.pruner import prune
from export.config import ExportConfig
from export.exporter import export
from tests.quick import quick
from tests.toy_models import other_vocabulary
from tests.toy_tagging import TASK
from tests.toys import tiny_tokenizer

QUICK: dict[str, Any] = {"batch_size": 8, "learning_rate": 2e-3, "precision": "fp32"}
HEAD = HEADS[TASK.problem_type]
CUTS: dict[str, dict[str, Any]] = {
    "heads and neurons": {"heads": 0.5, "ffn": 0.5, "epochs": 3},
    "even layers": {"ffn": 0.5, "across": "layer", "epochs": 3},
    "layers": {"layers": 1, "epochs": 3},
    "rescaled": {"heads": 0.25, "retraining_free": True},
}
PLAIN = ("even layers", "layers")
"""What transformers opens by itself."""


@pytest.fixture(scope="module")
def tagger(teacher_of: Callable[[str], Artifact]) -> Artifact:
    return teacher_of(TASK.problem_type)


@pytest.mark.parametrize("name", quick(CUTS, "heads and neurons"))
def test_a_tagger_is_cut_and_goes_on_to_tag(name: str, tagger: Artifact, tmp_path: Path) -> None:
    training = {} if name == "rescaled" else {"learning_rate": QUICK["learning_rate"]}
    settings = {"batch_size": 8, "scored_texts": 40, **training, **CUTS[name]}
    pruned = prune(tagger, TASK, PruneConfig.parse(settings), tmp_path / "pruned")
    assert pruned.card.task == TASK.record()
    assert pruned.card.findings.parameters < tagger.card.findings.parameters
    score, _ = evaluate(open_classifier(pruned), TASK.dev, TASK.metric)
    left = pruned.card.findings.pruning.rounds[-1]
    assert score.value == pytest.approx(left.score)
    assert score.value > (0.3 if name == "rescaled" else 0.7)
    assert (pruned.card.family == "bert") == (name in PLAIN)
    if name in PLAIN:
        AutoModelForTokenClassification.from_pretrained(pruned.path)


def test_an_uneven_tagger_is_exported_and_cut_again(tagger: Artifact, tmp_path: Path) -> None:
    settings = {"heads": 0.5, "recover": False, "scored_texts": 40, "batch_size": 8}
    config = PruneConfig.parse(settings)
    once = prune(tagger, TASK, config, tmp_path / "once")
    twice = prune(once, TASK, config, tmp_path / "twice")
    graph = export(twice, TASK, ExportConfig(), tmp_path / "graph")
    assert sum(twice.card.findings.pruning.rounds[-1].heads) == 4
    assert type(load_torch_classifier(twice)).__name__ == "PrunedBertForTokenClassification"
    assert graph.card.findings.parity is not None and graph.card.findings.parity.passed


def test_importance_reads_the_loss_of_every_word(tagger: Artifact) -> None:
    """Of one sentence, the gradient of the summed cross-entropy over its words."""
    model = load_torch_classifier(tagger).eval()
    examples = token_dataset(TASK.train, tiny_tokenizer(), TASK.problem_type)
    batch = examples.collate([examples[0]])
    found = importance_of(model, "taylor", [batch], head=HEAD)
    logits = model(**model_inputs(model, batch)).logits
    loss = functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"
    )
    weight = model.get_submodule("bert.encoder.layer.0.output.dense").weight
    (slope,) = torch.autograd.grad(loss, [weight])
    torch.testing.assert_close(found.neurons[0], (weight * slope).abs().sum(0).detach())


def test_a_tagger_recovers_by_a_teacher_of_the_same_tokens(
    tagger: Artifact, tmp_path: Path
) -> None:
    config = PruneConfig(heads=0.5, epochs=1, **QUICK)
    own, named = (
        prune(tagger, TASK, config.changed({"teacher": teacher}), tmp_path / name)
        for name, teacher in (("own", None), ("named", tagger.path))
    )
    assert own.card.findings.training == named.card.findings.training
    encoder = other_vocabulary(tmp_path / "encoder")
    untrained = FinetuneConfig(teacher=str(encoder), epochs=1, **QUICK)
    other = finetune_by_name(TASK, untrained, tmp_path / "other")
    with pytest.raises(ModelError, match="must read the same ones, and these do not"):
        prune(tagger, TASK, config.changed({"teacher": other.path}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_vocabulary_of_a_tagger_stays(tagger: Artifact, tmp_path: Path) -> None:
    config = PruneConfig(vocab="task")
    with pytest.raises(ConfigError, match="'task': tags and answers are learned token by"):
        STAGES["prune"].check(config, TASK)
    with pytest.raises(ConfigError, match="all tokens stay"):
        prune(tagger, TASK, config, tmp_path / "out")
    assert not any(tmp_path.iterdir())
