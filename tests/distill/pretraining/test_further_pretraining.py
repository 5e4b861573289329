"""An encoder that exists learns the words of further text, and stays what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, ConfigError, ModelError
from bertender.recipes.stage import Earlier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pretraining.config import PretrainConfig
from distill.pretraining.pretrain import pretrain
from export.config import ExportConfig
from export.exporter import export
from tests.distill.architectures import save_teacher
from tests.quick import quick
from tests.toy_models import save_artifact, save_classifier, save_encoder, tiny_classifier
from tests.toys import passages

FAMILIES = ("bert", "distilbert", "electra", "modernbert", "roberta")
PACE = {"max_length": 32, "epochs": 3, "batch_size": 16, "precision": "fp32"}


def further(encoder: Path, out: Path, **settings: object) -> Artifact:
    config = PretrainConfig.parse({"encoder": str(encoder), **PACE, **settings})
    return pretrain(passages(100), config, out)


@pytest.mark.parametrize("family", quick(FAMILIES, "bert", "distilbert"))
def test_it_keeps_its_class_words_and_weights(family: str, task: Task, tmp_path: Path) -> None:
    source = save_encoder(family, tmp_path / "source")
    made = further(source, tmp_path / "further")
    assert made.card.family == family
    first, *_, last = made.card.findings.training.epochs
    assert last["perplexity"] < first["perplexity"]
    texts = ["an apple and a hammer", "saw"]
    before, after = load_tokenizer(source), load_tokenizer(made.path)
    assert after(texts)["input_ids"] == before(texts)["input_ids"]
    assert after.model_max_length == before.model_max_length
    weights, theirs = (load_file(each / "model.safetensors") for each in (made.path, source))
    known = [
        name for name in theirs if name.endswith(("query.weight", "q_lin.weight", "Wqkv.weight"))
    ]
    assert known
    for name in known:
        (own,) = (value for key, value in weights.items() if key.endswith(name))
        assert 0 < (own - theirs[name]).abs().max() < 0.1, "moved, and not drawn anew"
    config = FinetuneConfig(teacher=str(made.path), epochs=1, max_length=32)
    assert finetune_by_name(task, config, tmp_path / "teacher").card.family == family


def test_its_tokenizer_reads_as_much_as_its_rows_have(tmp_path: Path) -> None:
    source = save_encoder("bert", tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(source, model_max_length=24)
    tokenizer.save_pretrained(source)
    made = further(source, tmp_path / "made", epochs=1)
    assert load_tokenizer(made.path).model_max_length == PACE["max_length"] == 32


def test_its_rate_is_that_of_a_further_training(tmp_path: Path) -> None:
    source = save_encoder("bert", tmp_path / "source")
    usual = further(source, tmp_path / "usual", epochs=1)
    own = further(source, tmp_path / "own", epochs=1, learning_rate=2e-3)
    assert usual.card.config["learning_rate"] == 1e-4
    assert own.card.config["learning_rate"] == 2e-3
    assert usual.card.config["tokenizer"] is None, "it has its own"
    assert (usual.card.config["layers"], usual.card.config["hidden_size"]) == (4, 32)
    expected = STAGES["pretrain"].model(PretrainConfig(encoder=str(source)), Earlier())
    assert expected is not None and expected.model.config.hidden_size == 32


def test_what_it_has_is_not_set(tmp_path: Path) -> None:
    source = save_encoder("bert", tmp_path / "source")
    with pytest.raises(ConfigError, match=r"encoder=.* and layers=2: .* Leave this out"):
        further(source, tmp_path / "out", layers=2)
    with pytest.raises(ConfigError, match=r"'rtd' .* one of mlm, mlm\+word-order, phrase, wwm"):
        further(source, tmp_path / "out", objective="rtd")
    with pytest.raises(ConfigError, match="max_length=5000: the model has positions for"):
        further(source, tmp_path / "out", max_length=5000)
    made = further(source, tmp_path / "made", epochs=1)
    with pytest.raises(ArtifactError, match="writing there would destroy it"):
        further(made.path, made.path)
    with pytest.raises(ConfigError, match="was trained from another encoder"):
        pretrain(passages(100), PretrainConfig(stack_from=made.path, layers=8), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_encoder_that_predicts_no_words_or_lacks_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'gpt2' model, .* has no AutoModelForMaskedLM"):
        further(save_teacher("gpt2", tmp_path / "gpt2"), tmp_path / "out")
    source = save_encoder("bert", tmp_path / "source")
    file = source / "model.safetensors"
    weights = {name: each for name, each in load_file(file).items() if "layer.1." not in name}
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match="do not fit its config"):
        further(source, tmp_path / "out")


def test_the_same_text_gives_the_same_encoder(tmp_path: Path) -> None:
    source = save_encoder("bert", tmp_path / "source")
    whole, again = (further(source, tmp_path / name) for name in ("whole", "again"))
    ours, theirs = (load_file(each.path / "model.safetensors") for each in (whole, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_encoder_that_was_tuned_on_labels_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = save_encoder("bert", tmp_path / "source")
    further(source, tmp_path / "plain", epochs=1)
    assert "tuned on labels" not in caplog.text
    tuned = save_classifier(tmp_path / "tuned")
    further(tuned, tmp_path / "out", epochs=1)
    assert f"{tuned} was fine-tuned on labels (BertForSequenceClassification)" in caplog.text


def test_artifacts_that_cannot_be_trained_name_what_they_were_made_from(
    task: Task, tmp_path: Path
) -> None:
    classifier = save_artifact(tiny_classifier("bert"), task, tmp_path / "classifier")
    graph = export(classifier, task, ExportConfig(), tmp_path / "graph")
    with pytest.raises(ModelError, match=rf"kind onnx.*made from, {classifier.path}\."):
        further(graph.path, tmp_path / "out")
    own = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "own")
    with pytest.raises(ModelError, match=r"family bertender-bilstm.*Give the encoder"):
        further(own.path, tmp_path / "out")
