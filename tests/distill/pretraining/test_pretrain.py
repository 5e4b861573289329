"""Pre-training: every objective learns, and what comes out is a start for a teacher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
)

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError, UnknownNameError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining.config import OBJECTIVES, PretrainConfig, PretrainingObjective
from distill.pretraining.pretrain import pretrain, pretrain_by_name
from export.config import ExportConfig
from export.exporter import export
from tests.distill.pretraining.batches import WHOLE_WORDS
from tests.distill.pretraining.settings import BRIEF, OPENS_AS, SMALL, with_phrases
from tests.listening import interrupted_at, listed_steps
from tests.quick import quick
from tests.toys import passages


def objective_of(artifact: Artifact) -> PretrainingObjective:
    return OBJECTIVES[artifact.card.config["objective"]]


@pytest.fixture(scope="module", params=quick(OBJECTIVES, "mlm+sop", "rtd"))
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An encoder pre-trained by each objective, from a file."""
    folder = tmp_path_factory.mktemp("pretrain")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(passages(250)), encoding="utf-8")
    config = PretrainConfig(corpus=str(corpus), **with_phrases(request.param, folder), **SMALL)
    return pretrain_by_name(config, folder / "encoder")


def test_the_held_out_loss_falls(encoder: Artifact) -> None:
    epochs = encoder.card.findings.training.epochs
    assert len(epochs) == 8
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.3


def test_the_held_out_loss_is_told_by_its_parts(encoder: Artifact) -> None:
    scores = dict(encoder.card.findings.training.epochs[-1])
    loss, perplexity = scores.pop("loss"), scores.pop("perplexity", None)
    trained = encoder.card.findings.training.losses[-1]
    assert set(scores) == (set(trained) if len(trained) > 1 else set())
    assert sum(scores.values()) == pytest.approx(loss if scores else 0)
    assert (perplexity is None) == (objective_of(encoder).perplexity_of is None)
    if perplexity is not None:
        language = scores.get("mlm", loss)
        assert perplexity == pytest.approx(math.exp(language))
        nothing_known = math.log(len(load_tokenizer(encoder.path)))
        objective = encoder.card.config["objective"]
        # of a whole word that is masked, no piece tells the others; three losses learn slowly
        share = {**dict.fromkeys(WHOLE_WORDS, 0.6), "mlm+structure": 0.7}.get(objective, 0.5)
        assert language < share * nothing_known


def test_what_is_written_opens_with_transformers_alone(encoder: Artifact) -> None:
    """Every weight of the class that it opens as is in the file, but for what is tied."""
    opener = OPENS_AS[encoder.card.config["objective"]]
    model, found = opener.from_pretrained(encoder.path, output_loading_info=True)
    assert not found["missing_keys"] and not found["mismatched_keys"]
    assert all(".pooler." in key for key in found["unexpected_keys"])
    tokens = load_tokenizer(encoder.path)("eat the apple", return_tensors="pt")
    assert torch.isfinite(model(**tokens).logits).all()
    assert encoder.card.family == model.config.model_type == objective_of(encoder).family
    _, found = AutoModel.from_pretrained(encoder.path, output_loading_info=True)
    missing = [key for key in found["missing_keys"] if "pooler" not in key]
    assert missing == []


@pytest.mark.parametrize("name", [name for name, row in OBJECTIVES.items() if row.pairs])
def test_a_pooler_that_was_trained_is_what_a_classifier_starts_from(
    name: str, tmp_path: Path
) -> None:
    encoder = pretrain(passages(100), PretrainConfig(objective=name, **BRIEF), tmp_path / "out")
    for opener in (AutoModel, AutoModelForSequenceClassification):
        _, found = opener.from_pretrained(encoder.path, output_loading_info=True)
        assert [key for key in found["missing_keys"] if "pooler" in key] == []


def test_the_encoder_has_the_shape_that_was_asked_for(encoder: Artifact) -> None:
    assert encoder.card.stage == "pretrain"
    assert encoder.card.task.labels == ()
    assert encoder.card.findings.training.steps > 0
    tokenizer = load_tokenizer(encoder.path)
    assert tokenizer.model_max_length == 32
    assert tokenizer.convert_ids_to_tokens(tokenizer("apple")["input_ids"])[0] == "[CLS]"


def test_it_becomes_a_teacher(encoder: Artifact, task: Task, tmp_path: Path) -> None:
    # at 3e-3, some seeds tell the labels apart only after the fourth epoch
    config = FinetuneConfig(
        teacher=str(encoder.path), epochs=4, batch_size=16, learning_rate=1e-2, precision="fp32"
    )
    teacher = finetune_by_name(task, config, tmp_path / "teacher")
    assert teacher.card.parent is not None
    assert teacher.card.parent.digest == encoder.digest
    assert teacher.card.findings.training.epochs[-1]["accuracy"] > 0.9
    assert open_classifier(teacher).logits(task.dev.examples[:3]).shape == (3, 2)


def test_it_is_no_classifier_yet(encoder: Artifact, task: Task, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"stage pretrain.*artifact of `bertender finetune`"):
        distill(encoder, task, DistillConfig(), tmp_path / "out")
    with pytest.raises(ModelError, match=r"stage 'pretrain'.*Give the artifact of `finetune`"):
        export(encoder, task, ExportConfig(), tmp_path / "out")


def killed_and_whole(
    config: PretrainConfig, folder: Path, phase: str = ""
) -> tuple[Artifact, Artifact]:
    """A run that was killed at its fifth step of a phase and resumed, and one that was not."""
    whole = pretrain(passages(100), config, folder / "whole")
    with interrupted_at(5, phase), pytest.raises(KeyboardInterrupt):
        pretrain(passages(100), config, folder / "killed")
    assert not (folder / "killed").exists()
    return pretrain(passages(100), config, folder / "killed"), whole


@pytest.mark.one_path
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_killed_run_goes_on_to_the_same_weights(name: str, tmp_path: Path) -> None:
    config = PretrainConfig(**with_phrases(name, tmp_path), **BRIEF)
    killed, whole = killed_and_whole(config, tmp_path)
    assert killed.digest == whole.digest
    assert killed.card.findings == whole.card.findings


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("phase", ["short", "long"])
@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_a_killed_run_of_two_lengths_goes_on_in_its_phase(
    name: str, phase: str, tmp_path: Path
) -> None:
    lengths = {"short_length": 8, "short_share": 0.5, "batch_size": 4, "epochs": 2}
    config = PretrainConfig(objective=name, **{**BRIEF, **lengths})
    killed, whole = killed_and_whole(config, tmp_path, phase)
    assert killed.digest == whole.digest
    assert killed.card.findings == whole.card.findings


@pytest.mark.parametrize("share", [pytest.param(None, marks=pytest.mark.slow), 0.5])
def test_the_last_steps_are_on_long_rows(share: float | None, tmp_path: Path) -> None:
    settings = {**BRIEF, "short_length": 8, "short_share": share, "max_length": 200}
    with listed_steps() as steps:
        artifact = pretrain(passages(200), PretrainConfig(**settings), tmp_path / "out")
    lengths = [step.batch["input_ids"].shape[1] for step in steps]
    short = sum(length <= 8 for length in lengths)
    assert all(length <= 8 for length in lengths[:short])
    assert all(length > 8 for length in lengths[short:]) and 200 in lengths[short:]
    assert short == round((share or 0.9) * len(lengths))
    training = artifact.card.findings.training
    (earlier,) = training.earlier_phases
    assert (earlier.steps, training.steps) == (short, len(lengths) - short)
    assert earlier.epochs[-1]["loss"] > 0
    model = AutoModel.from_pretrained(artifact.path)
    assert model.config.max_position_embeddings == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"short_length": 128}, "short_length=128 must be below max_length=128"),
        ({"short_share": 0.5}, r"short_share=0\.5.*it needs short_length"),
        (
            {"packing": "doc-sentences", "objective": "mlm+sop"},
            r"packing=doc-sentences: objective 'mlm\+sop' trains on pairs",
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PretrainConfig.parse(settings)


def test_documents_end_at_empty_passages(tmp_path: Path) -> None:
    """They are no passages themselves, and pairs do not run over them."""
    alone = [text for passage in passages(60) for text in (passage, "")]
    config = PretrainConfig(objective="mlm+sop", **BRIEF)
    assert pretrain(alone, config, tmp_path / "out").card.findings.training.steps > 0
    with pytest.raises(DataError, match="49 passages are too few"):
        pretrain([*passages(49), *[""] * 9], config, tmp_path / "other")


def test_rows_of_a_run_end_with_their_documents(tmp_path: Path) -> None:
    """Sixty documents of a few tokens: a row each, or some in a row."""
    alone = [text for passage in passages(60) for text in (passage, "")]
    steps = {}
    for packing in ("full-sentences", "doc-sentences"):
        config = PretrainConfig.parse({**BRIEF, "packing": packing, "batch_size": 1})
        artifact = pretrain(alone, config, tmp_path / packing)
        steps[packing] = artifact.card.findings.training.steps
    assert steps["doc-sentences"] == 60 - 8 > 2 * steps["full-sentences"]  # 8 are held out


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
