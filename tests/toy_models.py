"""Tiny untrained encoders of every architecture, in memory and in folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from bertender.core.artifact import Artifact
from bertender.metrics.metric import OF_HEAD
from bertender.models.classifier import load_torch_classifier
from bertender.models.families import FAMILIES
from bertender.models.family import BEFORE_5
from bertender.models.own_models import OWN_MODELS, PRUNABLE
from bertender.tasks.task import Task
from bertender.training.heads.numbers import output_layer
from distill.tokenizers import fitting_tokenizer
from tests.toys import tiny_tokenizer, write_model

LONGEST = 64
VOCABULARY = len(tiny_tokenizer())
BERT_SHAPE: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LONGEST,
    "layer_norm_eps": 1e-12,
}

ROBERTA_SHAPE = {**BERT_SHAPE, "max_position_embeddings": LONGEST + 2, "pad_token_id": 1}
ALL_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "albert": {**BERT_SHAPE, "embedding_size": 16},
    "bert": BERT_SHAPE,
    "big_bird": {**BERT_SHAPE, "attention_type": "original_full"},
    "camembert": ROBERTA_SHAPE,
    "deberta-v2": {
        **BERT_SHAPE,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
    },
    "distilbert": {
        "dim": 32,
        "n_layers": 4,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": LONGEST,
    },
    "electra": {**BERT_SHAPE, "embedding_size": 32},
    "ernie": BERT_SHAPE,
    "eurobert": {
        **BERT_SHAPE,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "mask_token_id": 4,
    },
    "gte": {**BERT_SHAPE, "pad_token_id": 0},
    "jina_embeddings_v3": {**BERT_SHAPE, "pad_token_id": 0},
    "mobilebert": {
        **BERT_SHAPE,
        "embedding_size": 16,
        "true_hidden_size": 16,
        "intra_bottleneck_size": 16,
    },
    "modernbert": {
        **BERT_SHAPE,
        "local_attention": 4,  # in layers 2 and 3
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "mpnet": ROBERTA_SHAPE,
    "nomic_bert": BERT_SHAPE,
    "roberta": ROBERTA_SHAPE,
    "roformer": BERT_SHAPE,
    "xlm-roberta": ROBERTA_SHAPE,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {name: ALL_SHAPES[name] for name in FAMILIES}
"""The config of a tiny encoder of each architecture: 4 layers x 32."""

OWN_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bertender-bilstm": {"embedding_size": 32, "hidden_size": 16, "feed_forward_size": 24},
    "bertender-static": {"hidden_size": 24, "feed_forward_size": 0},
    **{
        row.config.model_type: {
            **SHAPES[name],
            "heads_kept": [2, 1, 4, 3],
            "head_numbers": [[0, 2], [1], [0, 1, 2, 3], [0, 1, 3]],
            "neurons_kept": [32, 1, 64, 24],
        }
        for name, row in PRUNABLE.items()
    },
}
"""The config of a tiny classifier of each of bertender's own architectures."""


DISTANCES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "distances to keys": ("bert", {"position_embedding_type": "relative_key"}),
    "distances": ("bert", {"position_embedding_type": "relative_key_query"}),
    "distances in one layer": ("albert", {"position_embedding_type": "relative_key_query"}),
    "distances from the padding on": ("roberta", {"position_embedding_type": "relative_key"}),
}
"""Of transformers before 5."""

ODD: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **(DISTANCES if BEFORE_5 else {}),
    "positions by shared keys": (
        "deberta-v2",
        {"share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0},
    ),
    "positions by keys alone": ("deberta-v2", {"pos_att_type": ["c2p"], "share_att_key": True}),
    "convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "narrow embeddings": ("electra", {"embedding_size": 16}),
    "narrow embeddings without bias": ("deberta-v2", {"embedding_size": 16}),
    "one segment": ("roberta", {"type_vocab_size": 1}),
    "large epsilon": ("bert", {"layer_norm_eps": 1e-2}),
    "another activation": ("bert", {"hidden_act": "relu"}),
    "no padding": ("bert", {"pad_token_id": None}),
    "earlier tokens alone": ("bert", {"is_decoder": True}),
    "more outputs": (
        "bert",
        {"output_attentions": True, "output_hidden_states": True, "return_dict": False},
    ),
    "another task's": (
        "bert",
        {
            "problem_type": "multi_label_classification",
            "finetuning_task": "mnli",
            "task_specific_params": {"mnli": {}},
            "num_labels": 1,
            "classifier_dropout": None,
        },
    ),
}
"""Encoders whose config is unusual and legal: the architecture, and its settings."""


UNKNOWN = "roberta-prelayernorm"
"""An architecture of transformers that is not a row of FAMILIES; BERT_SHAPE makes it tiny."""


def tiny_classifier(model_type: str, labels: int = 2, **changes: Any) -> PreTrainedModel:
    """An untrained classifier whose every parameter is random: no zero bias hides a mistake."""
    torch.manual_seed(5)
    shape = {
        **{**SHAPES, **OWN_SHAPES}.get(model_type, {}),
        "vocab_size": VOCABULARY,
        "num_labels": labels,
        **changes,
    }
    model = _classifier(model_type, shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if model_type == "mobilebert":  # each token reads its neighbours, padding among them
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    return model.eval()


def _classifier(model_type: str, shape: Mapping[str, Any]) -> PreTrainedModel:
    if own := OWN_MODELS.get(model_type):
        return own.classifier(own.config(**shape))
    config = AutoConfig.for_model(model_type, **shape)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return model


def tiny_language_model(model_type: str) -> PreTrainedModel:
    """An untrained masked language model whose every parameter is random."""
    torch.manual_seed(5)
    # the tiny tokenizer pads with 0, whatever the architecture's own pads with
    shape = {**SHAPES[model_type], "vocab_size": VOCABULARY, "pad_token_id": 0}
    config = AutoConfig.for_model(model_type, **shape)
    model: PreTrainedModel = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save_language_model(folder: Path) -> Path:
    """A plain folder with a BERT that predicts words, whatever they are."""
    tiny_language_model("bert").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_encoder(model_type: str, folder: Path, **changes: Any) -> Path:
    """A plain folder with an encoder and no head, as one gets it from a hub."""
    torch.manual_seed(5)
    # these pad with 1, as their own tokenizers do; the tiny tokenizer pads with 0
    shape = {**SHAPES[model_type], "vocab_size": VOCABULARY, "pad_token_id": 0, **changes}
    config = AutoConfig.for_model(model_type, **shape)
    # transformers 5 saves `output_attentions` with this attention alone, which is not saved
    AutoModel.from_config(config, attn_implementation="eager").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_classifier(folder: Path, model_type: str = "bert", **changes: Any) -> Path:
    """A plain folder with a classifier of the toy task, as its trainer saved it."""
    named = {"id2label": {0: "fruit", 1: "tool"}, "label2id": {"fruit": 0, "tool": 1}}
    settings = {"pad_token_id": 0, **named, **changes}
    tiny_classifier(model_type, **settings).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def untrained_model(task: Task, seed: int) -> Any:
    """A BERT for a task of any kind, whose weights and biases are all random."""
    torch.manual_seed(seed)
    problem = task.problem
    labels = len(problem.output_names(task.labels))
    settings = {**SHAPES["bert"], "vocab_size": VOCABULARY, "num_labels": labels}
    config = transformers.AutoConfig.for_model("bert", **settings)
    model = getattr(transformers, problem.model_class).from_config(config)
    for name, value in problem.model_settings.items():
        setattr(model.config, name, value)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_artifact(model: PreTrainedModel, task: Task, out: Path) -> Artifact:
    """A torch artifact of a model as it is, with a tokenizer that gives what it takes."""
    return write_model(model, fitting_tokenizer(_saved_tokenizer().name, model), task, out)


def with_turned_labels(artifact: Artifact, task: Task, out: Path) -> Artifact:
    """The same classifier with its labels rotated by one, those of each head apart."""
    model = load_torch_classifier(artifact)
    labels: list[str] = []
    for beginning in [f"{head}{OF_HEAD}" for head in task.problem.heads] or [""]:
        own = [label for label in task.labels if label.startswith(beginning)]
        labels += [*own[1:], *own[:1]]
    layer = output_layer(model, len(labels))
    assert layer is not None
    rows = torch.tensor([task.labels.index(label) for label in labels])
    with torch.no_grad():
        layer.weight.copy_(layer.weight[rows])
        layer.bias.copy_(layer.bias[rows])
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: number for number, label in enumerate(labels)}
    return save_artifact(model, replace(task, labels=tuple(labels)), out)


@cache
def _saved_tokenizer() -> TemporaryDirectory[str]:
    """The folder of the tiny tokenizer, which goes with the process."""
    folder = TemporaryDirectory()
    tiny_tokenizer().save_pretrained(folder.name)
    return folder


def other_vocabulary(folder: Path) -> Path:
    """A plain encoder whose tokens have other numbers than the teacher's."""
    encoder = save_encoder("bert", folder)
    path = encoder / "tokenizer.json"
    description = json.loads(path.read_text())
    pieces = sorted(description["model"]["vocab"], key=description["model"]["vocab"].get)
    turned = [*pieces[:5], *reversed(pieces[5:])]
    description["model"]["vocab"] = {piece: number for number, piece in enumerate(turned)}
    path.write_text(json.dumps(description))
    (encoder / "vocab.txt").unlink(missing_ok=True)  # transformers 5 writes none
    return encoder
