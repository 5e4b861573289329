"""Tiny untrained encoders of every architecture, and tasks beside the toy task of conftest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.core.artifact import Artifact
from bertender.core.findings import LatencyLoad
from bertender.measure.samples import Speedup
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import OWN_MODELS
from bertender.models.pruned import PRUNABLE, head_size, heads_of, neurons_of
from bertender.tasks.task import Split, Task
from bertender.training.examples import Padding, TokenDataset
from distill.corpora.corpus import pack_rows
from distill.data import fitting_tokenizer
from distill.pruning.cutting import Kept
from distill.pruning.latency import LatencyTable, Point, Stopwatches
from tests.conftest import FRUIT, TOOLS, tiny_tokenizer, write_model

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

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "albert": {**BERT_SHAPE, "embedding_size": 16},
    "bert": BERT_SHAPE,
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
    "mobilebert": {
        **BERT_SHAPE,
        "embedding_size": 16,
        "true_hidden_size": 16,
        "intra_bottleneck_size": 16,
    },
    "modernbert": {
        **BERT_SHAPE,
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "mpnet": ROBERTA_SHAPE,
    "roberta": ROBERTA_SHAPE,
    "xlm-roberta": ROBERTA_SHAPE,
}
"""The config of a tiny encoder of each architecture: 4 layers x 32."""

OWN_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bertender-bilstm": {"embedding_size": 32, "hidden_size": 16, "feed_forward_size": 24},
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


def save_encoder(model_type: str, folder: Path) -> Path:
    """A plain folder with an encoder and no head, as one gets it from a hub."""
    torch.manual_seed(5)
    # these pad with 1, as their own tokenizers do; the tiny tokenizer pads with 0
    shape = {**SHAPES[model_type], "vocab_size": VOCABULARY, "pad_token_id": 0}
    AutoModel.from_config(AutoConfig.for_model(model_type, **shape)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_artifact(model: PreTrainedModel, task: Task, out: Path) -> Artifact:
    """A torch artifact of a model as it is, with a tokenizer that gives what it takes."""
    return write_model(model, fitting_tokenizer(_saved_tokenizer().name, model), task, out)


@cache
def _saved_tokenizer() -> TemporaryDirectory[str]:
    """The folder of the tiny tokenizer, which goes with the process."""
    folder = TemporaryDirectory()
    tiny_tokenizer().save_pretrained(folder.name)
    return folder


def pair_task(train_size: int = 96, dev_size: int = 32) -> Task:
    """Which of two texts is about tools? The other one is about fruit; two to six words each."""
    generator = torch.Generator().manual_seed(11)

    def words(kind: int) -> str:
        count = int(torch.randint(2, 7, (), generator=generator))
        picks = torch.randint(0, 6, (count,), generator=generator).tolist()
        return " ".join((FRUIT, TOOLS)[kind][pick] for pick in picks)

    def split(size: int) -> Split:
        seconds = torch.randint(0, 2, (size,), generator=generator).tolist()
        examples = tuple((words(1 - second), words(second)) for second in seconds)
        return Split(examples, tuple(seconds))

    columns = ("left", "right")
    return Task(
        "pairs", ("first", "second"), "accuracy", columns, split(train_size), split(dev_size)
    )


def everything(config: PretrainedConfig) -> Kept:
    """All heads and neurons of a model."""
    heads, neurons = (
        tuple(tuple(range(count)) for count in counts)
        for counts in (heads_of(config), neurons_of(config))
    )
    return Kept(heads, neurons)


def three_kinds(train_size: int = 90) -> Task:
    """Three classes told apart by one word each."""
    kinds = ("apple", "hammer", "number")
    examples = tuple((f"{kinds[row % 3]} {row % 7} saw",) for row in range(train_size))
    split = Split(examples, tuple(row % 3 for row in range(train_size)))
    return Task("kinds", kinds, "accuracy", ("text",), split, split.first(30))


def packed(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenDataset:
    """The rows of `pack_rows`, in memory."""
    rows = list(pack_rows(passages, tokenizer, max_length))
    columns = {name: [row[name] for row in rows] for name in ("input_ids", "attention_mask")}
    return TokenDataset(columns, Padding.of(tokenizer))


def with_copied_parts(model: PreTrainedModel, share: float = 0.5) -> PreTrainedModel:
    """Make head 1 and neuron 1 of each layer copies of 0 that write a share of what these write."""
    family, size = family_of(model), head_size(model.config)
    row = PRUNABLE[model.config.model_type]
    outer = ((family.attention_output, size), (family.ffn_out, 1))
    with torch.no_grad():
        for layer in encoder_layers(model):
            for path, width in (*((path, size) for path in row.by_head(layer)), (family.ffn_in, 1)):
                for rows in layer.get_submodule(path).parameters():
                    rows[width : 2 * width] = rows[:width]
            for path, width in outer:
                columns = layer.get_submodule(path).weight
                columns[:, width : 2 * width] = share * columns[:, :width]
        if model.config.model_type == "mpnet":  # it adds a bias of its own to each head
            bias = model.base_model.encoder.relative_attention_bias.weight
            bias[:, 1] = bias[:, 0]
    return model


def twice_as_wide(model: PreTrainedModel, share: float) -> PreTrainedModel:
    """A BERT that answers the same with two of each head and neuron.

    The first of all pairs come first and write a share of what there was, the second the rest.
    """
    row, family = PRUNABLE["bert"], family_of(model)
    heads, neurons = ([2 * each for each in of(model.config)] for of in (heads_of, neurons_of))
    settings = {**model.config.to_dict(), "model_type": row.config.model_type}
    wider = row.classifier(row.config(**settings, heads_kept=heads, neurons_kept=neurons))
    weights, inner = (
        dict(model.state_dict()),
        (family.query, family.key, family.value, family.ffn_in),
    )
    for name, weight in weights.items():
        if any(f".{path}." in name for path in inner):
            weights[name] = torch.cat([weight, weight])
        elif f".{family.ffn_out}.weight" in name:  # of attention too, which ends in the same words
            weights[name] = torch.cat([share * weight, (1 - share) * weight], 1)
    wider.load_state_dict(weights)
    return wider.eval()


def made_up_table(heads: int = 4, neurons: int = 64, **changes: Any) -> LatencyTable:
    """A head takes 0.5 ms and 16 neurons 1 ms, each part 0.25 ms besides, the rest 1 ms."""

    def points(most: int, each_ms: float) -> tuple[Point, ...]:
        counts = sorted({1, max(most // 2, 1), most})
        return tuple(Point(count=n, rounds_ms=(0.25 + n * each_ms,)) for n in counts)

    parts = {
        "load": LatencyLoad(texts=1, tokens=12, threads=1),
        "cpu_model": "made up",
        "attention": points(heads, 0.5),
        "feed_forward": points(neurons, 1 / 16),
        "rest_ms": (1.0,),
    }
    return LatencyTable.model_validate({**parts, **changes})


def made_up_speedup(
    reference: PreTrainedModel, candidate: PreTrainedModel, load: LatencyLoad
) -> Speedup:
    return Speedup(value=2.5, low=2.25, high=2.75)


MADE_UP = Stopwatches(lambda model, load: made_up_table(load=load), made_up_speedup)
"""Times of the toys that no clock has seen."""
