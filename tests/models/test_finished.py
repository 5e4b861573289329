"""Models whose outputs are not those of each text: refused by every command that opens them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedModel,
)

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import open_classifier
from bertender.models.sentence_files import VectorSettings, write_settings
from bertender.tasks.task import Task
from distill.distillation.general import GeneralTeacher
from distill.methods import METHODS
from distill.teachers.encoders import load_classifier, load_reader_of_words
from export.exporter import write_traced
from tests.distill.architectures import save_teacher
from tests.toy_models import BERT_SHAPE, VOCABULARY, save_encoder
from tests.toys import similarity_task, tiny_tokenizer

LABELS = ("fruit", "tool")
QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 8, "precision": "fp32", "allow_constant": True}


def convbert(folder: Path, kind: Any = AutoModelForSequenceClassification) -> Path:
    """A plain folder with a ConvBERT, whose tokens read their neighbours, padding among them."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        "convbert", **BERT_SHAPE, vocab_size=VOCABULARY, embedding_size=32, head_ratio=2
    )
    config.id2label = dict(enumerate(LABELS))
    model = kind.from_config(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.2 * torch.randn_like(weights))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def graph_of(folder: Path) -> Path:
    """Its graph, as another exporter leaves it."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    graph = folder.with_name("graph")
    shutil.copytree(folder, graph, ignore=shutil.ignore_patterns("*.safetensors"))
    write_traced(model, ["input_ids", "attention_mask"], graph / "model.onnx", 18)
    return graph


Opens = Callable[[Path, Task, Path, Artifact], object]
OPENED_BY: dict[str, Opens] = {
    "import": lambda model, task, out, teacher: bertender.import_model(model, out=out),
    "import of a graph": lambda model, task, out, teacher: bertender.import_model(
        graph_of(model), out=out
    ),
    "compare": lambda model, task, out, teacher: bertender.compare([model], task),
    "finetune": lambda model, task, out, teacher: bertender.finetune(
        task, out=out, teacher=model, **QUICK
    ),
    "distill": lambda model, task, out, teacher: bertender.distill(
        teacher, task, out=out, student=model, method="pd", **QUICK
    ),
    "distill-general": lambda model, task, out, teacher: GeneralTeacher.load(
        str(model), METHODS["minilm"]
    ),
    "pretrain": lambda model, task, out, teacher: load_reader_of_words(str(model), new_head=True),
}


@pytest.mark.parametrize("command", OPENED_BY)
def test_a_model_that_reads_padding_is_refused(
    command: str, task: Task, teacher: Artifact, tmp_path: Path
) -> None:
    model, out = convbert(tmp_path / "theirs"), tmp_path / "out"
    with pytest.raises(ModelError, match=r"change with its padding.*ConvBERT"):
        OPENED_BY[command](model, task, out, teacher)
    assert not out.exists()


def decoder(folder: Path, name: str) -> Path:
    if name == "bert":
        return save_encoder("bert", folder, is_decoder=True)
    return save_teacher(name, folder)


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_a_first_token_that_reads_no_other_is_no_vector(name: str, tmp_path: Path) -> None:
    theirs, out = decoder(tmp_path / "theirs", name), tmp_path / "out"
    said = "pooling=cls: .*the first token reads no other.*lasttoken, or mean"
    with pytest.raises(ConfigError, match=said):
        bertender.import_model(theirs, out=out, pooling="cls")
    write_settings(theirs, VectorSettings("cls"), 32)  # as its files may say
    with pytest.raises(ConfigError, match=said):
        bertender.import_model(theirs, out=out)
    with pytest.raises(ConfigError, match=said):
        bertender.finetune(similarity_task(8, 8), out=out, teacher=theirs, **QUICK)
    assert not out.exists()
    write_settings(theirs, VectorSettings("lasttoken"), 32)
    assert bertender.import_model(theirs, out=out).card.task.labels == ("embedding",)


def test_a_first_token_that_reads_the_others_is_one(tmp_path: Path) -> None:
    theirs = save_encoder("albert", tmp_path / "theirs")
    found = bertender.import_model(theirs, out=tmp_path / "out", pooling="cls")
    assert found.card.task.labels == ("embedding",)


def test_sparse_attention_is_refused_with_the_setting_that_works(
    task: Task, tmp_path: Path
) -> None:
    """transformers switches such a model over at its first short text."""
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    save_encoder("big_bird", theirs, attention_type="block_sparse")
    said = r"attention_type='block_sparse'.*Set attention_type to 'original_full'"
    with pytest.raises(ModelError, match=said):
        bertender.import_model(theirs, out=out, pooling="mean")
    with pytest.raises(ModelError, match=said):
        bertender.finetune(task, out=out, teacher=theirs, **QUICK)
    assert not out.exists()
    settings = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps({**settings, "attention_type": "original_full"}))
    assert bertender.import_model(theirs, out=out, pooling="mean").card.family == "big_bird"


TEXTS = ("saw", "hammer drill wrench apple pear plum", "apple pear")


@pytest.mark.parametrize("kind", [AutoModelForTextEncoding, AutoModelForSeq2SeqLM])
def test_vectors_of_t5_are_those_of_its_encoder(kind: Any, tmp_path: Path) -> None:
    theirs = save_teacher("t5", tmp_path / "theirs", kind)
    model: PreTrainedModel = AutoModelForTextEncoding.from_pretrained(theirs).eval()
    batch = AutoTokenizer.from_pretrained(theirs)(list(TEXTS), padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.inference_mode():
        states = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    sums = (states * mask.unsqueeze(-1)).sum(1)
    wanted = torch.nn.functional.normalize(sums / mask.sum(1, keepdim=True), dim=-1)

    artifact = bertender.import_model(theirs, out=tmp_path / "imported", pooling="mean")
    found = open_classifier(artifact).logits([(text,) for text in TEXTS])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert type(AutoModelForTextEncoding.from_pretrained(artifact.path)) is type(model)


def test_an_encoder_of_t5_is_exported_and_teaches_its_vectors(tmp_path: Path) -> None:
    theirs = save_teacher("t5", tmp_path / "theirs", AutoModelForTextEncoding)
    artifact = bertender.import_model(theirs, out=tmp_path / "imported", pooling="mean")
    task = similarity_task(16, 8)
    graph = bertender.export(artifact, task, out=tmp_path / "onnx", parity_texts=8)
    found, wanted = (
        open_classifier(each).logits([(text,) for text in TEXTS]) for each in (graph, artifact)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    student = save_encoder("bert", tmp_path / "encoder", num_hidden_layers=1)
    settings: dict[str, Any] = {"method": "pd", "student": student, **QUICK}
    made = bertender.distill(artifact, task, out=tmp_path / "student", **settings)
    assert open_classifier(made).logits([(text,) for text in TEXTS]).shape == (3, 32)


def test_an_encoder_of_t5_alone_labels_no_texts(tmp_path: Path) -> None:
    theirs = save_teacher("t5", tmp_path / "theirs", AutoModelForTextEncoding)
    with pytest.raises(ModelError, match=r"an encoder alone.*with its decoder.*--pooling mean"):
        load_classifier(str(theirs), LABELS)


@pytest.mark.parametrize("others", [("Dense",), ("Dense", "Dense", "Normalize")])
@pytest.mark.parametrize("pools", [True, False])
def test_a_dense_layer_is_never_left_out(
    others: tuple[str, ...], pools: bool, tmp_path: Path
) -> None:
    """As in sentence-T5 and EmbeddingGemma; a pooling of another name may stand there."""
    theirs, out = save_encoder("bert", tmp_path / "theirs"), tmp_path / "out"
    write_settings(theirs, VectorSettings(), 32)
    kinds = ("Transformer", "Pooling" if pools else "WeightedPooling", *others)
    listed = [{"path": f"{n}_{kind}", "type": f"a.{kind}"} for n, kind in enumerate(kinds)]
    (theirs / "modules.json").write_text(json.dumps(listed))
    said = f"its modules are {', '.join(kinds)}, and bertender computes"
    with pytest.raises(ModelError, match=said):
        bertender.import_model(theirs, out=out, pooling=None if pools else "mean")
    if pools:
        with pytest.raises(ModelError, match=said):
            bertender.finetune(similarity_task(8, 8), out=out, teacher=theirs, **QUICK)
        with pytest.raises(ModelError, match=said):
            bertender.distill(theirs, similarity_task(8, 8), out=out, layers=1, **QUICK)
    assert not out.exists()
