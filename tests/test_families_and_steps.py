"""Each family through each step of STEPS: it works, or it is refused with the reason of STEPS.

On tiny random models of the real classes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import load_torch_classifier, onnx_file, open_classifier
from bertender.models.families import FAMILIES, encoder_layers, family_of
from bertender.models.own_models import heads_of, neurons_of
from bertender.models.steps import STEPS
from bertender.recipes.stages import STAGES
from bertender.text.batch import Example
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.start import check_teacher
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.losses.signals import Signal, read_signals
from distill.losses.terms import Match, hidden_cosine, last
from distill.methods.distilbert import DISTILBERT, DistilBertStudent
from distill.methods.method import Method, one_phase
from distill.pruning.config import PruneConfig
from distill.pruning.cutting import Remaining, cut, without_layers
from distill.pruning.importance import gated
from distill.pruning.pruner import check_architecture
from distill.students import StudentShape
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from serve.backend.opening import open_artifact
from serve.config import BackendParameters, ServeConfig
from serve.repository import write_repository
from serve.repository.config_pbtxt import read_model_config
from tests.conftest import Once
from tests.distill.architectures import ARCHITECTURES
from tests.exports import write_plain_export
from tests.quantize.contexts import target_for
from tests.quick import ALIKE
from tests.toy_models import (
    LONGEST,
    ROBERTA_SHAPE,
    SHAPES,
    save_classifier,
    save_encoder,
    tiny_classifier,
)
from tests.toys import toy_task

LAYERS, HEADS = 4, 4
"""Of the toys."""
SHORT = 2
"""Layers of those that are written, each step's cost: ModernBERT has one of each kind."""
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
BATCH = {"input_ids": torch.arange(5, 19).reshape(2, 7) * MASK, "attention_mask": MASK}
FEW = toy_task(16, 8)
QUICK: Mapping[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "precision": "fp32",
    "allow_constant": True,
}

OF_A_LAYER, OF_A_HEAD = 6, 2
"""Matrices of a BERT's layer, and of the head that labels texts."""
USUAL = SHORT * OF_A_LAYER + OF_A_HEAD
PRODUCTS: Mapping[str, int] = {
    "albert": USUAL + 1,  # a projection of the embeddings
    # four feed-forward parts, and bottlenecks: two that read, one that writes
    "mobilebert": SHORT * (4 + 4 * 2 + 2 + 1) + 1 + OF_A_HEAD,
    **dict.fromkeys(
        ("eurobert", "gte", "nomic_bert"), SHORT * (OF_A_LAYER + 1) + OF_A_HEAD
    ),  # a gate
    "modernbert": SHORT * 4 + OF_A_HEAD,  # queries, keys and values are one, and neurons and gate
}
"""Of a graph, where they are not USUAL."""
FIRST_LAYER_LEFT = {"albert"}
"""A projection of the embeddings stands before it, and hides its pattern from fusions."""


@cache
def eager(name: str) -> PreTrainedModel:
    """A model that is only read."""
    return tiny_classifier(name, attn_implementation="eager")


@dataclass(frozen=True)
class Cell:
    """An architecture on its way."""

    name: str
    folder: Path
    once: Once

    @cached_property
    def model(self) -> PreTrainedModel:
        return eager(self.name)

    @property
    def source(self) -> Artifact:
        return Artifact.load(self._written / "source")

    @property
    def graph(self) -> Artifact:
        return Artifact.load(self._written / "onnx")

    @property
    def _written(self) -> Path:
        """A short model and its export, made once."""
        changes = {"num_hidden_layers": SHORT, "parity_texts": 8}
        return self.once(
            f"short-{self.name}",
            lambda folder: write_plain_export(self.name, FEW, folder, **changes),
        )

    @property
    def int8(self) -> Artifact:
        """Its graph of 8 bits, made once."""

        def fill(folder: Path) -> None:
            quantize(self.graph, FEW, self.in_8_bits(), folder / "int8")

        return Artifact.load(self.once(f"short-int8-{self.name}", fill) / "int8")

    def in_8_bits(self, **settings: Any) -> QuantizeConfig:
        few = {"parity_texts": 8, "target": target_for(self.name)}
        return QuantizeConfig.parse({"scheme": "dynamic", **few, **settings})


def logits(artifact: Artifact, examples: tuple[Example, ...] = FEW.dev.examples) -> Any:
    return open_classifier(artifact).logits(examples)


def imported(cell: Cell) -> None:
    finished = save_classifier(cell.folder / "finished", cell.name)
    model = AutoModelForSequenceClassification.from_pretrained(finished).eval()
    artifact = bertender.import_model(finished, out=cell.folder / "imported")
    assert artifact.card.family == cell.name and artifact.card.task.labels == ("fruit", "tool")
    opened = open_classifier(artifact)
    batch = opened.encode(FEW.dev.examples)
    own = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
    found = opened.predictor.logits(batch)
    with torch.inference_mode():
        np.testing.assert_allclose(found, model(**own).logits, atol=1e-5)
    assert np.ptp(found, axis=0).min() > 1e-3


def finetuned(cell: Cell) -> None:
    encoder = save_encoder(cell.name, cell.folder / "encoder")
    config = FinetuneConfig(teacher=str(encoder), **QUICK)
    opened = open_classifier(finetune_by_name(FEW, config, cell.folder / "tuned"))
    together = opened.logits(FEW.dev.examples)
    alone = np.concatenate([opened.logits((each,)) for each in FEW.dev.examples[:2]])
    np.testing.assert_allclose(alone, together[:2], atol=2e-5)


def reading(signal: Signal) -> Method:
    """A method whose student learns from a signal of the last layer."""
    return Method(
        "reading",
        "",
        "none",
        DISTILBERT.student,
        one_phase(Match("read", 1.0, signal, hidden_cosine, layers=last)),
    )


def learned(cell: Cell, signal: Signal) -> Mapping[int, torch.Tensor]:
    check_teacher(cell.model.config, reading(signal), "encoder")
    with torch.inference_mode():
        found = read_signals(cell.model, BATCH, {signal: frozenset(range(1, LAYERS + 1))})
    layers: Mapping[int, torch.Tensor] = getattr(found, signal)
    assert list(layers) == [1, 2, 3, 4]
    return layers


def logits_learned(cell: Cell) -> None:
    """By a student that reads other tokens."""
    student = save_encoder("bert", cell.folder / "encoder", num_hidden_layers=1)
    config = DistillConfig(method="pd", student=str(student), layers=1, **QUICK)
    made = distill(cell.source, FEW, config, cell.folder / "student")
    assert made.card.family == "bert" and logits(made).shape == (8, 2)


def hidden_states_learned(cell: Cell) -> None:
    states = learned(cell, "hidden_states")
    with torch.inference_mode():
        outputs = cell.model(**BATCH, output_hidden_states=True)
        final = cell.model.base_model(**BATCH)[0]
    own = (*outputs.hidden_states[1:-1], final)  # not always the states that are listed last
    torch.testing.assert_close(list(states.values()), list(own))


def sentence_states_learned(cell: Cell) -> None:
    firsts = learned(cell, "sentence_states")
    states = learned(cell, "hidden_states")
    assert all(torch.equal(first, states[layer][:, 0]) for layer, first in firsts.items())


def parts_learned(signal: Signal) -> Callable[[Cell], None]:
    def run(cell: Cell) -> None:
        states = learned(cell, signal)
        assert {each.shape[:3] for each in states.values()} == {(2, HEADS, 7)}
        others = {float(each.sum()) for each in states.values()}
        for other in {"queries", "keys", "values"} - {signal}:
            others |= {float(each.sum()) for each in learned(cell, other).values()}
        assert len(others) == 3 * LAYERS, "no part is read twice"

    return run


def attention_scores_learned(cell: Cell) -> None:
    """They are what the model's own softmax reads."""
    scores, real = learned(cell, "attention_scores"), MASK.bool()
    with torch.inference_mode():
        attentions = cell.model(**BATCH, output_attentions=True).attentions
    for layer, probabilities in enumerate(attentions, start=1):
        unread = ~real[:, None, None, :] | (probabilities == 0)  # beyond a local layer
        ours = scores[layer].masked_fill(unread, -torch.inf).softmax(-1)
        ours, theirs = (each.transpose(1, 2)[real] for each in (ours, probabilities))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def student_made(cell: Cell) -> None:
    """By the default method; one of full depth has the states of its teacher."""
    check_teacher(cell.model.config, DISTILBERT, None)
    student = DistilBertStudent().build(cell.model, StudentShape(LAYERS)).eval()
    ours, theirs = (
        model(**BATCH, output_hidden_states=True).hidden_states for model in (student, cell.model)
    )
    for own, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own[MASK.bool()], wanted[MASK.bool()], rtol=1e-4, atol=1e-4)
    made = distill(cell.source, FEW, DistillConfig(layers=1, **QUICK), cell.folder / "student")
    shorter = load_torch_classifier(made)
    assert len(encoder_layers(shorter)) == 1
    assert all(each.isfinite().all() for each in shorter.parameters())


def all_of(model: PreTrainedModel) -> Remaining:
    counts = heads_of(model.config), neurons_of(model.config)
    return Remaining(*(tuple(tuple(range(each)) for each in count) for count in counts))


def pruned(part: str, option: str) -> Callable[[Cell], None]:
    """What is cut has the logits of what is gated off."""

    def run(cell: Cell) -> None:
        check_architecture(cell.model, PruneConfig.parse({option: 0.5}))
        model = tiny_classifier(cell.name).double()  # eager attention is single in ModernBERT
        whole = all_of(model)
        numbers = tuple(layer[place % 2 :: 2] for place, layer in enumerate(getattr(whole, part)))
        remaining = Remaining(**{"heads": whole.heads, "neurons": whole.neurons, part: numbers})
        gates = {}
        for name in ("heads", "neurons"):
            gates[name] = [
                torch.tensor([float(each in kept) for each in every], dtype=torch.float64)
                for kept, every in zip(getattr(remaining, name), getattr(whole, name), strict=True)
            ]
        with torch.inference_mode():
            before, found = model(**BATCH).logits, cut(model, remaining)(**BATCH).logits
            with gated(model, gates["heads"], gates["neurons"]):
                expected = model(**BATCH).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
        assert (before - expected).abs().max() > 1e-3, "what is cut away matters"

    return run


def layers_pruned(cell: Cell) -> None:
    """The others run as they ran between those that went."""
    check_architecture(cell.model, PruneConfig(layers=2))
    kept = family_of(cell.model).nearest_layers(cell.model.config, (0, 2))
    shorter, model = without_layers(cell.model, kept), copy.deepcopy(cell.model)
    layers = model.base_model.get_submodule(family_of(cell.model).layers)
    assert isinstance(layers, torch.nn.ModuleList) and len(encoder_layers(shorter)) == 2
    whole = list(layers)
    del layers[:]
    layers.extend(whole[number] for number in kept)
    with torch.inference_mode():
        torch.testing.assert_close(shorter(**BATCH).logits, model(**BATCH).logits)


def exported(cell: Cell) -> None:
    found = logits(cell.graph, (*FEW.dev.examples, ("plum " * 2 * LONGEST,)))
    wanted = logits(cell.source, (*FEW.dev.examples, ("plum " * 2 * LONGEST,)))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def fused(cell: Cell) -> None:
    config = ExportConfig(optimize="fused", parity_texts=8)
    artifact = export(cell.source, FEW, config, cell.folder / "fused")
    graph = artifact.card.findings.graph
    assert graph is not None
    attentions = sum(graph.fused.get(name, 0) for name in ("Attention", "MultiHeadAttention"))
    assert graph.layers == SHORT and attentions == SHORT - (cell.name in FIRST_LAYER_LEFT)
    nodes = onnx.load(onnx_file(artifact)).graph.node
    heads = [each.i for node in nodes for each in node.attribute if each.name == "num_heads"]
    assert heads == [HEADS] * attentions


def quantized(cell: Cell) -> None:
    found = cell.int8.card.findings.quantization
    assert found is not None and found.products == PRODUCTS.get(cell.name, USUAL)
    assert found.running_in_integers == found.products
    assert bertender.verify(cell.graph, cell.int8, FEW).passed


def quantized_fused(cell: Cell) -> None:
    config = cell.in_8_bits(fused_attention=True)
    made = STAGES["quantize"].work([cell.graph], FEW, config, cell.folder / "fused")
    nodes = [node.op_type for node in onnx.load(onnx_file(made)).graph.node]
    attentions = nodes.count("QAttention") + nodes.count("MultiHeadAttention")
    assert attentions == SHORT - (cell.name in FIRST_LAYER_LEFT)


def served(cell: Cell) -> None:
    """By the endpoint's own opening of what is in the repository."""
    config = ServeConfig.parse({"http_port": 0})
    repository = write_repository({"classifier": cell.int8}, cell.folder / "models", config)
    written = read_model_config(repository / "classifier" / "config.pbtxt")
    strings = {name: each.string_value for name, each in written.parameters.items()}
    folder = repository / "classifier" / "1" / strings["artifact"]
    artifact = Artifact.load(folder)
    opened = open_artifact(artifact, BackendParameters.parse(strings), 1)
    found = opened.predictor.logits(opened.encode(FEW.dev.examples))
    np.testing.assert_allclose(found, logits(cell.int8), atol=1e-4)


RUNS: Mapping[str, Callable[[Cell], None]] = {
    "import": imported,
    "finetune": finetuned,
    "logits": logits_learned,
    "hidden states": hidden_states_learned,
    "sentence states": sentence_states_learned,
    "queries": parts_learned("queries"),
    "keys": parts_learned("keys"),
    "values": parts_learned("values"),
    "attention scores": attention_scores_learned,
    "student": student_made,
    "prune heads": pruned("heads", "heads"),
    "prune neurons": pruned("neurons", "ffn"),
    "prune layers": layers_pruned,
    "export": exported,
    "fuse": fused,
    "quantize": quantized,
    "quantize fused": quantized_fused,
    "serve": served,
}


def test_every_step_is_run() -> None:
    assert list(RUNS) == list(STEPS)


CELLS = [
    pytest.param(name, step, marks=pytest.mark.slow if name in ALIKE else (), id=f"{name}-{step}")
    for name in FAMILIES
    for step in RUNS
]


@pytest.mark.parametrize(("name", "step"), CELLS)
def test_a_family_goes_through_a_step_or_the_reason_is_said(
    name: str, step: str, once: Once, tmp_path: Path
) -> None:
    cell = Cell(name, tmp_path, once)
    if not (obstacle := STEPS[step](name)):
        RUNS[step](cell)
        return
    with pytest.raises(ModelError, match=re.escape(obstacle)):
        RUNS[step](cell)


OF_LAYERS = ("hidden states", "attention scores", "student", "prune heads", "prune layers")


@pytest.mark.parametrize("step", OF_LAYERS)
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "t5", "xlnet"])
def test_of_other_architectures_the_logits_alone_are_learned(
    name: str, step: str, once: Once, tmp_path: Path
) -> None:
    obstacle = STEPS[step](name)
    assert obstacle
    cell = Cell(name, tmp_path, once)
    vars(cell)["model"] = tiny_classifier(name, **ARCHITECTURES[name].shape)
    with pytest.raises(ModelError, match=re.escape(obstacle)):
        RUNS[step](cell)


OTHERS: Mapping[str, Mapping[str, Any]] = {
    "longformer": {**ROBERTA_SHAPE, "attention_window": 8},
}
"""Encoders whose layers are not known."""


@pytest.mark.parametrize("step", ["import", "finetune", "hidden states", "export", "serve"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_encoders_are_exported_where_their_graph_computes_the_same(
    name: str, step: str, once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, name, OTHERS[name])
    cell = Cell(name, tmp_path, once)
    obstacle = STEPS[step](name) or (STEPS["export"](name) if step == "serve" else "")
    if not obstacle:
        RUNS[step](cell)
        return
    with pytest.raises(ModelError, match=re.escape(obstacle)):
        RUNS[step](cell)
