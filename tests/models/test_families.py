"""FAMILIES against tiny random models of every row: each path leads to the part it is named for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers, family_of
from bertender.models.family import Family

HIDDEN, HEADS, FFN, LAYERS, VOCAB, POSITIONS = 16, 2, 24, 3, 50, 20
SHAPES = {
    "attention.query": (HIDDEN, HIDDEN),
    "attention.key": (HIDDEN, HIDDEN),
    "attention.value": (HIDDEN, HIDDEN),
    "attention.output": (HIDDEN, HIDDEN),
    "attention_norm": (HIDDEN,),
    "ffn.inner": (FFN, HIDDEN),
    "ffn.output": (HIDDEN, FFN),
    "ffn_norm": (HIDDEN,),
}
"""The parts of a layer, and the shape of each one's weight."""


def paths(family: Family) -> dict[str, str]:
    """Where the parts of SHAPES sit in a layer of a family with plain layers."""
    inputs = {each.names[0]: each.path for each in family.projections.inputs}
    (inner,) = family.feed_forward.inputs
    return {
        **{f"attention.{name}": path for name, path in inputs.items()},
        "attention.output": family.projections.output,
        "attention_norm": family.norms.attention,
        "ffn.inner": inner.path,
        "ffn.output": family.feed_forward.output,
        "ffn_norm": family.norms.feed_forward,
    }


def tiny(name: str) -> PreTrainedModel:
    """Build a random classifier of an architecture; DistilBERT has names of its own for sizes."""
    if name == "distilbert":
        sizes = {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": FFN}
    else:
        sizes = {
            "hidden_size": HIDDEN,
            "embedding_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": FFN,
        }
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, vocab_size=VOCAB, max_position_embeddings=POSITIONS, **sizes
    )
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.fixture(params=[name for name in FAMILIES if FAMILIES[name].plain_layers])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny(request.param)


def part(model: PreTrainedModel, path: str) -> nn.Module:
    return model.base_model.get_submodule(path)


def shape_of(module: nn.Module) -> tuple[int, ...]:
    return tuple(module.weight.shape)


def some_ids(length: int = 7) -> torch.Tensor:
    """Token ids (batch=2, seq) that are no special tokens of any row."""
    return torch.arange(5, 5 + 2 * length).reshape(2, length)


def test_layers_in_the_order_they_run(model: PreTrainedModel) -> None:
    layers = encoder_layers(model)
    ran: list[nn.Module] = []
    for layer in dict.fromkeys(layers):  # ALBERT's is one that runs three times
        layer.register_forward_hook(lambda module, *call: ran.append(module))
    model(some_ids())
    assert len(ran) == LAYERS and all(a is b for a, b in zip(ran, layers, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_parts_of_a_layer(model: PreTrainedModel, name: str) -> None:
    family, layers = family_of(model), encoder_layers(model)
    parts = [layer.get_submodule(paths(family)[name]) for layer in layers]
    assert [shape_of(module) for module in parts] == [SHAPES[name]] * LAYERS
    weights = [family.layer_weights(layer)[f"{name}.weight"] for layer in layers]
    assert all(torch.equal(ours, its.weight) for ours, its in zip(weights, parts, strict=True))
    assert all(isinstance(module, nn.Linear | nn.LayerNorm) for module in parts)


def test_no_part_is_named_twice(model: PreTrainedModel) -> None:
    layer, family = encoder_layers(model)[0], family_of(model)
    parts = {id(layer.get_submodule(path)) for path in paths(family).values()}
    assert len(parts) == len(SHAPES)


def test_parts_run_in_the_order_of_an_encoder_layer(model: PreTrainedModel) -> None:
    """Attention before feed-forward, in before out: two parts of one shape are not mixed up."""
    layer, family, ran = encoder_layers(model)[0], family_of(model), []
    for name, path in paths(family).items():
        module = layer.get_submodule(path)
        module.register_forward_hook(lambda *call, name=name: ran.append(name))
    model(some_ids())
    assert set(ran[:3]) == {"attention.query", "attention.key", "attention.value"}
    assert ran[3 : len(SHAPES)] == [
        "attention.output",
        "attention_norm",
        "ffn.inner",
        "ffn.output",
        "ffn_norm",
    ]


def test_query_key_and_value_are_not_mixed_up(model: PreTrainedModel) -> None:
    """Where all keys are one vector, attention is even whatever the queries; values still count."""
    layer, family = encoder_layers(model)[0], family_of(model)
    query, key, value = (layer.get_submodule(stacked.path) for stacked in family.projections.inputs)
    with torch.no_grad():
        key.weight.zero_()
        key.bias.normal_()
        even = model.base_model(some_ids())[0]  # (batch, seq, hidden)
        query.weight.normal_()
        torch.testing.assert_close(model.base_model(some_ids())[0], even, atol=1e-5, rtol=0)
        value.weight.normal_()
        assert (model.base_model(some_ids())[0] - even).abs().max() > 0.01


def test_embeddings(model: PreTrainedModel) -> None:
    family = family_of(model)
    assert part(model, family.word_embeddings) is model.get_input_embeddings()
    assert shape_of(part(model, family.position_embeddings)) == (POSITIONS, HIDDEN)
    assert shape_of(part(model, family.embedding_norm)) == (HIDDEN,)
    if family.token_type_embeddings:
        assert shape_of(part(model, family.token_type_embeddings))[1] == HIDDEN
    else:
        names = [name for name, _ in model.named_parameters() if "token_type" in name]
        assert names == []


def test_first_position_is_the_row_of_the_first_token(model: PreTrainedModel) -> None:
    table = part(model, family_of(model).position_embeddings)
    model(some_ids(7)).logits.sum().backward()
    assert isinstance(table, nn.Embedding) and table.weight.grad is not None
    read = table.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    first = family_of(model).first_position(model.config)
    assert read == list(range(first, first + 7))


def test_groups_of_shared_layers_run_one_after_another() -> None:
    config = AutoConfig.for_model(
        "albert",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_hidden_layers=4,
        num_hidden_groups=2,
    )
    model = AutoModelForSequenceClassification.from_config(config).eval()
    first, second, third, fourth = encoder_layers(model)
    assert first is second and third is fourth and first is not third


def test_relative_positions_are_told(model: PreTrainedModel) -> None:
    names = [name for name, _ in model.named_parameters() if "relative_attention" in name]
    assert bool(names) is family_of(model).relative_positions


def test_an_unknown_architecture_is_named() -> None:
    config = AutoConfig.for_model(
        "roberta-prelayernorm",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
    )
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(
        ModelError, match=r"roberta-prelayernorm.*Did you mean.*Known: albert, bert"
    ):
        family_of(model)
