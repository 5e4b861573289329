"""Finished models from elsewhere come in as artifacts: each layout and family."""

from __future__ import annotations

import json
import os
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, BertForTokenClassification

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import (
    ArtifactError,
    ConfigError,
    HubUnreachableError,
    ModelError,
    NotAnArtifactError,
)
from bertender.models.classifier import open_classifier
from bertender.models.families import FAMILIES
from bertender.models.importing import import_model, located, open_artifact, wanted
from export.precision import PRECISIONS
from tests.toy_models import save_classifier, tiny_classifier
from tests.toys import FRUIT, TOOLS, similarity_task, tiny_tokenizer

UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}
TEXTS = [("apple pear saw",), ("hammer",), (" ".join((*FRUIT, *TOOLS)),)]


def own_logits(folder: Path) -> np.ndarray:
    """The logits of TEXTS by transformers alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="float32").eval()
    tokenizer = tiny_tokenizer()
    taken = [
        name for name in tokenizer.model_input_names if name in signature(model.forward).parameters
    ]
    rows = []
    for (text,) in TEXTS:
        tokens = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**{name: tokens[name] for name in taken}).logits[0])
    return torch.stack(rows).float().numpy()


def test_an_import_is_made_once_and_anew_where_its_files_changed(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs")
    first = open_artifact(folder)
    assert open_artifact(str(folder)).path == first.path
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "sweet", "1": "hard"}
    (folder / "config.json").write_text(json.dumps(config, indent=4))
    assert open_artifact(folder).card.task.labels == ("sweet", "hard")


def test_an_artifact_is_opened_as_it_is(teacher: Artifact) -> None:
    assert open_artifact(teacher.path) == teacher


def test_half_precision_in_shards_becomes_float32(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(save_classifier(tmp_path / "whole"))
    model.half().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    tiny_tokenizer().save_pretrained(tmp_path / "shards")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    artifact = open_artifact(tmp_path / "shards")
    assert artifact.card.precision == "float32"
    logits = np.concatenate([open_classifier(artifact).logits([text]) for text in TEXTS])
    np.testing.assert_allclose(logits, own_logits(tmp_path / "whole"), atol=1e-2)


def test_errors_name_what_the_user_gave(tmp_path: Path) -> None:
    """The folder in the cache would be no name to give."""
    folder = save_classifier(tmp_path / "theirs")
    with pytest.raises(ModelError, match=f"`bertender export {folder} --out FOLDER`"):
        bertender.serve(folder, http_port=0, metrics_port=0).__enter__()
    with pytest.raises(ConfigError, match=f"{folder} was made for"):
        similarity_task(8, 8).check_problem(open_artifact(folder))


def test_a_tagger_is_one_of_words(tmp_path: Path) -> None:
    config = tiny_classifier("bert").config
    config.id2label, config.label2id = {0: "O", 1: "B-X", 2: "I-X"}, {"O": 0, "B-X": 1, "I-X": 2}
    BertForTokenClassification(config).save_pretrained(tmp_path / "tagger")
    tiny_tokenizer().save_pretrained(tmp_path / "tagger")
    record = open_artifact(tmp_path / "tagger").card.task
    assert record.problem_type == "token_classification"
    assert record.labels == ("O", "B-X", "I-X")


def test_a_tagger_has_the_tag_of_no_entity_first(tmp_path: Path) -> None:
    """Words beyond the longest input have the first tag; elsewhere O may have any number."""
    names = {0: "B-X", 1: "I-X", 2: "O"}
    config = tiny_classifier("bert", num_labels=3, pad_token_id=0).config
    config.id2label, config.label2id = names, {name: number for number, name in names.items()}
    BertForTokenClassification(config).save_pretrained(tmp_path / "theirs")
    tiny_tokenizer().save_pretrained(tmp_path / "theirs")
    words = ("apple", "saw", "pear")
    model = BertForTokenClassification.from_pretrained(tmp_path / "theirs").eval()
    tokens = tiny_tokenizer()([*words], is_split_into_words=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**tokens).logits[0, 1:-1].numpy()
    artifact = open_artifact(tmp_path / "theirs")
    assert artifact.card.task.labels == ("O", "B-X", "I-X")
    (own,) = open_classifier(artifact).outputs([words])
    np.testing.assert_allclose(own.logits, logits[:, [2, 0, 1]], atol=1e-5)


def test_several_numbers_are_refused_by_name(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs", problem_type="regression")
    with pytest.raises(ModelError, match=r"predicts 2 numbers of a text .*'regression'"):
        open_artifact(folder)


def test_an_encoder_without_a_head_names_finetune(tmp_path: Path) -> None:
    AutoModel.from_config(tiny_classifier("bert").config).save_pretrained(tmp_path / "encoder")
    tiny_tokenizer().save_pretrained(tmp_path / "encoder")
    with pytest.raises(ModelError, match=r"no finished classifier.*bertender finetune"):
        open_artifact(tmp_path / "encoder")


def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    """config.json may promise a head that the weights lack: its outputs would be random."""
    folder = save_classifier(tmp_path / "theirs")
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    AutoModel.from_config(config).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    saved["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ModelError, match=r"no weights for .*classifier\.weight"):
        open_artifact(folder)


def test_a_pickle_alone_names_its_conversion(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickle.*BertForSequenceClassification.*converted"):
        open_artifact(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "holds no model"),
        (("tf_model.h5",), "another library"),
        (("model.safetensors",), "no config.json"),
        (("model.onnx",), "config.json, which names the labels"),
        (("a.onnx", "b.onnx"), r"several graphs.*a\.onnx.*b\.onnx"),
    ],
)
def test_a_folder_without_a_model_says_what_it_lacks(
    files: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_bytes(b"")
    with pytest.raises((NotAnArtifactError, ModelError), match=message):
        open_artifact(folder)


@pytest.mark.parametrize("source", ["nowhere/model", "nowhere", "nowhere/model@main"])
def test_a_name_that_no_hub_knows_says_so_at_once(source: str) -> None:
    with pytest.raises(HubUnreachableError, match=f"no model at {source}.*no such directory"):
        open_artifact(source)


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "a/b/c", "nowhere/a b"])
def test_a_path_to_nothing_is_no_hub_name(source: str) -> None:
    with pytest.raises(NotAnArtifactError, match="no such directory"):
        open_artifact(source)


def test_a_hub_name_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: what an earlier download has left, by the commit that was asked for."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--their--model", "0123456789abcdef" * 2 + "01234567"
    save_classifier(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    artifact = open_artifact("their/model")
    assert artifact.name == "model"
    assert artifact.card.config["revision"] == commit
    assert artifact.place == "their/model"
    assert open_artifact("their/model@main").digest == artifact.digest
    with pytest.raises(HubUnreachableError, match="at revision v2"):
        open_artifact("their/model@v2")


def test_labels_without_names_are_said_and_can_be_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_classifier(tmp_path / "theirs", id2label=UNNAMED, label2id={})
    assert open_artifact(folder).card.task.labels == ("LABEL_0", "LABEL_1")
    assert "LABEL_0, LABEL_1" in caplog.text
    named = import_model(folder, tmp_path / "named", labels=("fruit", "tool"))
    assert named.card.task.labels == ("fruit", "tool")
    own = AutoModelForSequenceClassification.from_pretrained(named.path).config
    assert own.id2label == {0: "fruit", 1: "tool"}
    caplog.clear()
    bertender.import_model(folder, out=tmp_path / "moved")
    assert f"the labels of {folder} have no names" in caplog.text, "no folder that is gone"
    with pytest.raises(ConfigError, match=r"3 names, .* 2 logits"):
        import_model(folder, tmp_path / "more", labels=("a", "b", "c"))
    assert not (tmp_path / "more").exists()


def test_an_import_replaces_nothing_of_others(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs")
    with pytest.raises(ArtifactError, match="will not be replaced"):
        bertender.import_model(folder, out=folder)
    assert (folder / "model.safetensors").is_file()


@pytest.fixture
def graph_folder(exported: Artifact, tmp_path: Path) -> Path:
    """A graph as Optimum leaves it: model.onnx beside config.json and the tokenizer."""
    folder = tmp_path / "optimum"
    folder.mkdir()
    for name in exported.card.files:
        if name != "golden.json":
            shutil.copy(exported.path / name, folder / name)
    return folder


def logits_of(artifact: Artifact) -> np.ndarray:
    classifier = open_classifier(artifact)
    return np.concatenate([classifier.logits([text]) for text in TEXTS])


def test_a_graph_of_optimum_predicts_as_it_did(graph_folder: Path, exported: Artifact) -> None:
    artifact = open_artifact(graph_folder)
    assert (artifact.card.kind, artifact.card.precision) == ("onnx", "float32")
    assert artifact.card.task.labels == exported.card.task.labels
    np.testing.assert_array_equal(logits_of(artifact), logits_of(exported))


def test_graphs_in_a_folder_of_their_own_are_found(graph_folder: Path, exported: Artifact) -> None:
    """The layout of transformers.js: onnx/model.onnx and other precisions of it."""
    own = graph_folder / "onnx"
    own.mkdir()
    shutil.copy(graph_folder / "model.onnx", own / "model_quantized.onnx")
    (graph_folder / "model.onnx").rename(own / "model.onnx")
    np.testing.assert_array_equal(logits_of(open_artifact(graph_folder)), logits_of(exported))
    by_file = open_artifact(own / "model_quantized.onnx")
    assert by_file.name == "optimum-model_quantized"
    np.testing.assert_array_equal(logits_of(by_file), logits_of(exported))


def test_weights_before_graphs(graph_folder: Path, teacher: Artifact) -> None:
    """A repository of a hub often has both; the graph may be of other numbers."""
    shutil.copy(teacher.path / "model.safetensors", graph_folder)
    shutil.copy(teacher.path / "config.json", graph_folder)
    assert open_artifact(graph_folder).card.kind == "torch"


def test_a_quantized_graph_is_judged_as_one(graph_folder: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    graph = graph_folder / "model.onnx"
    quantize_dynamic(graph, graph_folder / "int8.onnx")
    assert open_artifact(graph_folder / "int8.onnx").card.precision == "int8"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_graph_is_judged_by_the_precision_of_its_weights(
    precision: str, graph_folder: Path
) -> None:
    converted = PRECISIONS[precision].convert(onnx.load(graph_folder / "model.onnx"))
    onnx.save(converted, graph_folder / "other.onnx")
    assert open_artifact(graph_folder / "other.onnx").card.precision == precision


def test_an_output_of_another_name_is_found_by_its_shape(
    graph_folder: Path, exported: Artifact
) -> None:
    model = onnx.load(graph_folder / "model.onnx")
    for node in model.graph.node:
        node.output[:] = ["output_0" if name == "logits" else name for name in node.output]
    model.graph.output[0].name = "output_0"
    onnx.save(model, graph_folder / "model.onnx")
    np.testing.assert_array_equal(logits_of(open_artifact(graph_folder)), logits_of(exported))


def _of_fixed_size(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128


def _of_small_integers(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


def _of_pixels(graph: onnx.GraphProto) -> None:
    graph.input[0].name = "pixel_values"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_of_fixed_size, "fixed size.*dynamic axes"),
        (_of_small_integers, "64-bit integers"),
        (_of_pixels, "takes pixel_values"),
    ],
)
def test_a_graph_that_no_text_fits_is_refused(
    change: Any, message: str, graph_folder: Path
) -> None:
    model = onnx.load(graph_folder / "model.onnx")
    change(model.graph)
    onnx.save(model, graph_folder / "model.onnx")
    with pytest.raises(ModelError, match=message):
        open_artifact(graph_folder)


def test_a_damaged_graph_is_named(graph_folder: Path) -> None:
    (graph_folder / "model.onnx").write_bytes(b"no graph at all")
    with pytest.raises(ModelError, match=r"model\.onnx cannot be read"):
        open_artifact(graph_folder)


@pytest.mark.parametrize("behind", [(), ("Identity", "Cast")])
def test_probabilities_are_no_logits(behind: tuple[str, ...], graph_folder: Path) -> None:
    """A softmax of them would be a score that tells nothing apart."""
    model = onnx.load(graph_folder / "model.onnx")
    for node in model.graph.node:
        node.output[:] = ["before" if name == "logits" else name for name in node.output]
    names = ["before", *map(str, range(len(behind))), "logits"]
    model.graph.node.append(onnx.helper.make_node("Softmax", names[:1], names[1:2], axis=-1))
    for place, operator in enumerate(behind, start=1):  # as a converter to float16 leaves it
        settings = {"to": onnx.TensorProto.FLOAT} if operator == "Cast" else {}
        own = onnx.helper.make_node(operator, [names[place]], [names[place + 1]], **settings)
        model.graph.node.append(own)
    onnx.save(model, graph_folder / "model.onnx")
    with pytest.raises(ModelError, match="that of Softmax"):
        open_artifact(graph_folder)


def test_a_graph_of_other_labels_than_its_config_is_refused(graph_folder: Path) -> None:
    config = json.loads((graph_folder / "config.json").read_text())
    config["id2label"] = {"0": "a", "1": "b", "2": "c"}
    config["label2id"] = {"a": 0, "b": 1, "c": 2}
    (graph_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"logits are of 2 labels.*names 3"):
        open_artifact(graph_folder)


def test_a_change_of_weights_beside_a_graph_is_seen(graph_folder: Path) -> None:
    """As fast as it is: of the same size, and with the time of the file before."""
    own = graph_folder / "onnx"
    own.mkdir()
    (graph_folder / "model.onnx").rename(own / "model.onnx")
    (own / "weights.bin").write_bytes(b"1")
    state = (own / "weights.bin").stat()
    before = located(str(graph_folder)).identity
    assert located(str(graph_folder)).identity == before
    (own / "weights.bin").write_bytes(b"2")
    os.utime(own / "weights.bin", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert located(str(graph_folder)).identity != before


def test_what_is_taken_of_a_folder_with_several_models_is_said(
    graph_folder: Path, teacher: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it was imported before: who judges a graph must not judge the weights beside it."""
    shutil.copy(teacher.path / "model.safetensors", graph_folder)
    for _ in range(2):
        caplog.clear()
        open_artifact(graph_folder)
        assert "model.safetensors is taken, and not" in caplog.text
        assert "model.onnx" in caplog.text


def test_a_graph_is_given_each_input_that_it_takes(graph_folder: Path, exported: Artifact) -> None:
    """The tokenizers of many encoders do not list the types of tokens that their graphs take."""
    path = graph_folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "model_input_names": ["input_ids"]}
    path.write_text(json.dumps(settings))
    np.testing.assert_array_equal(logits_of(open_artifact(graph_folder)), logits_of(exported))


@pytest.mark.parametrize("pads", [True, False])
def test_a_tokenizer_without_padding_takes_that_of_the_config(pads: bool, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs", pad_token_id=0 if pads else None)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    kept = ("model_max_length", "cls_token", "sep_token", "unk_token")
    plain = {name: settings[name] for name in kept}
    path.write_text(json.dumps({**plain, "tokenizer_class": "PreTrainedTokenizerFast"}))
    for name in ("vocab.txt", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)  # transformers 5 writes neither
    if not pads:
        with pytest.raises(ModelError, match="names a token to pad with"):
            open_artifact(folder)
        return
    classifier = open_classifier(open_artifact(folder))
    assert classifier.logits(TEXTS).shape == (3, 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_known_encoder_is_padded_on_the_right(name: str, tmp_path: Path) -> None:
    """It counts positions, or reads the first token, from the left, whatever its tokenizer says."""
    folder = save_classifier(tmp_path / "theirs", name)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "padding_side": "left"}))
    classifier = open_classifier(open_artifact(folder))
    alone = np.concatenate([classifier.logits([text]) for text in TEXTS])
    np.testing.assert_allclose(classifier.logits(TEXTS), alone, atol=1e-4)


def test_a_folder_by_way_of_its_parent_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_classifier(tmp_path / "theirs")
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    assert open_artifact("..").name == "theirs"


def test_what_is_downloaded_of_a_hub_is_the_model_alone() -> None:
    files = ["config.json", "tokenizer.json", "model.safetensors", "README.md"]
    more = [*files, "checkpoint-1/model.safetensors", "onnx/model.onnx", "pytorch_model.bin"]
    assert wanted("a/b", more) == ["config.json", "tokenizer.json", "model.safetensors"]
    graphs = ["config.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_int8.onnx"]
    assert wanted("a/b", graphs) == ["config.json", "onnx/model.onnx", "onnx/model.onnx_data"]
    with pytest.raises(ModelError, match="a pickle"):
        wanted("a/b", ["config.json", "pytorch_model.bin"])


def test_weights_that_no_layer_reads_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A head of one's own may have further layers; that of RoBERTa may have a pooler left over."""
    folder = save_classifier(tmp_path / "theirs")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "projection.weight": torch.eye(32)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    open_artifact(folder)
    assert "BertForSequenceClassification does not read: projection.weight" in caplog.text


def test_a_head_whose_config_states_no_kind_may_give_sets_of_labels(tmp_path: Path) -> None:
    """Many models of several labels have no problem_type in config.json."""
    folder = save_classifier(tmp_path / "theirs")
    rows = "text,labels\napple,fruit\nsaw,tool\nhammer apple,fruit;tool\n"
    (tmp_path / "dev.csv").write_text(rows)
    sets = {"dev": tmp_path / "dev.csv", "problem_type": "multi_label_classification"}
    with pytest.raises(ConfigError, match=f"bertender import {folder} --problem-type multi_label"):
        bertender.compare([folder], sets)
    made = bertender.import_model(folder, sets, out=tmp_path / "made")
    assert made.card.task.problem_type == "multi_label_classification"
    stated = save_classifier(tmp_path / "stated", problem_type="single_label_classification")
    with pytest.raises(ConfigError, match=r"that of single_label_classification\. .* correct it"):
        import_model(stated, tmp_path / "other", problem_type="multi_label_classification")


def test_one_output_may_be_the_logit_of_a_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    over = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    settings = {"id2label": {0: "toxic"}, "label2id": {"toxic": 0}, "num_labels": 1}
    folder = save_classifier(tmp_path / "theirs", sentence_transformers=over, **settings)
    assert open_artifact(folder).card.task.problem_type == "regression"
    assert "CrossEncoder puts Sigmoid over it" in caplog.text
    assert "--problem-type multi_label_classification" in caplog.text
    made = import_model(folder, tmp_path / "made", problem_type="multi_label_classification")
    assert made.card.task.labels == ("toxic",)
    classifier = open_classifier(made)
    probabilities = classifier.problem.probabilities(classifier.logits(TEXTS), ("toxic",))
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-own_logits(folder))), atol=1e-5)


@pytest.mark.parametrize("name", ["", " ", None])
def test_a_label_without_a_name_is_refused(name: str | None, tmp_path: Path) -> None:
    """An endpoint's answers are filled up with empty names."""
    folder = save_classifier(tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": name, "1": "b"}, "label2id": {"b": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"a label of no name: .*import {folder} --labels"):
        open_artifact(folder)
    assert import_model(folder, tmp_path / "made", labels=("a", "b")).card.task.labels == ("a", "b")


def test_positions_without_a_padding_id_are_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs", "roberta", pad_token_id=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    with pytest.raises(ModelError, match="'roberta' model has no pad_token_id"):
        open_artifact(folder)


def test_tokens_beyond_the_embeddings_are_those_of_what_was_given(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "theirs")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<user>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=f"the embeddings of {folder} have"):
        open_classifier(open_artifact(folder))
