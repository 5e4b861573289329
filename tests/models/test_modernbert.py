"""ModernBERT: fewer layers that attend as before, and models that hooks can read."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import ModernBertConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.classifier import load_torch_classifier
from bertender.models.families import FAMILIES, encoder_layers
from bertender.models.family import BEFORE_5
from bertender.tasks.task import Task
from distill.losses.signals import read_signals
from distill.methods.distilbert import DistilBertStudent
from distill.pruning.cutting import Remaining, cut, least_missed, without_layers
from distill.pruning.rescaling import rescale
from distill.students import START_LAYERS, ShorterStudent, StudentShape
from tests.distill.pruning.toys import everything
from tests.toy_models import save_artifact, tiny_classifier

ROW = FAMILIES["modernbert"]
DEPTH = 9
"""Of which layers 0, 3 and 6 attend to all tokens."""


def teacher(**changes: Any) -> PreTrainedModel:
    return tiny_classifier("modernbert", num_hidden_layers=DEPTH, **changes)


def config_of(depth: int, every: int) -> ModernBertConfig:
    return ModernBertConfig(num_hidden_layers=depth, global_attn_every_n_layers=every)


def batch() -> dict[str, torch.Tensor]:
    """Texts longer than the window of a local layer, one of them padded."""
    mask = torch.tensor([[1] * 12, [1] * 9 + [0] * 3])
    return {"input_ids": torch.arange(5, 29).reshape(2, 12) * mask, "attention_mask": mask}


SETTINGS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "all that there are": (tuple(range(DEPTH)), 3),
    "the first ones": ((0, 1), 3),
    "the same alternation": ((0, 2, 5, 6), 3),
    "each second to all tokens": ((0, 1, 3, 4, 6), 2),
    "all of them to all tokens": ((0, 3, 6), 1),
    "the first alone to all tokens": ((0, 1, 2, 4, 5), 5),
    "another layer first": ((3, 4, 5), None),
    # a config of transformers 5 states the kind of each layer
    "no regular alternation": ((0, 1, 3, 6), None if BEFORE_5 else 0),
}
"""Layers of the whole, from 0; of how many one attends to all tokens; None where none is built."""


def reach(layer: Any) -> tuple[object, list[torch.Tensor]]:
    """How far a layer sees, and at what rates it turns its queries and keys."""
    if BEFORE_5:
        return layer.attn.local_attention, [layer.attn.rotary_emb.inv_freq]
    return layer.attention_type, []  # the rates are the model's, one a type


@pytest.mark.parametrize("name", SETTINGS)
def test_a_shorter_model_attends_with_each_layer_as_before(name: str) -> None:
    layers, every = SETTINGS[name]
    model = teacher()
    shape = StudentShape(len(layers), teacher_layers=layers)
    if every is None:
        for shorten in (
            lambda: ShorterStudent().build(model, shape),
            lambda: without_layers(model, layers),
        ):
            with pytest.raises(ModelError, match="would compute them in another way"):
                shorten()
        return
    for shorter in (ShorterStudent().build(model, shape), without_layers(model, layers)):
        if BEFORE_5:
            assert shorter.config.global_attn_every_n_layers == every
        pairs = zip(encoder_layers(shorter), layers, strict=True)
        for ours, theirs in ((ours, encoder_layers(model)[layer]) for ours, layer in pairs):
            (seen, rates), (wanted, wanted_rates) = reach(ours), reach(theirs)
            assert seen == wanted and all(map(torch.equal, rates, wanted_rates))
            weights = theirs.state_dict()
            assert ours.state_dict().keys() == weights.keys()
            assert all(torch.equal(each, weights[key]) for key, each in ours.state_dict().items())


def test_layers_of_the_whole_run_alone_to_the_same_states() -> None:
    """The states of a model of the first and third layers are those of a run of these two."""
    model, layers = teacher(), (0, 2, 4)
    shorter = ShorterStudent().build(model, StudentShape(3, teacher_layers=layers)).eval()
    model.model.layers = torch.nn.ModuleList(model.model.layers[layer] for layer in layers)
    with torch.inference_mode():
        torch.testing.assert_close(shorter(**batch()).logits, model(**batch()).logits)


def test_a_refusal_names_layers_that_work() -> None:
    model = teacher()
    with pytest.raises(ModelError, match=r"teacher_layers=\(2, 5, 8\).*such as \(0, 5, 8\)"):
        ShorterStudent().build(model, StudentShape(3, teacher_layers=(2, 5, 8)))
    assert ShorterStudent().build(model, StudentShape(3, teacher_layers=(0, 5, 8))).num_labels == 2


def test_layers_of_choice_are_the_nearest_that_alternate() -> None:
    spread = START_LAYERS["spread"](22, 11)
    assert spread == (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21)
    nearest = (0, 2, 5, 6, 8, 11, 12, 14, 17, 18, 20)
    assert ROW.nearest_layers(config_of(22, 3), spread) == nearest
    student = ShorterStudent().build(teacher(), StudentShape(4))
    ways = [reach(layer)[0] for layer in encoder_layers(student)]
    assert ways == [reach(layer)[0] for layer in encoder_layers(teacher())[:4]]
    first = ShorterStudent().build(teacher(), StudentShape(2, start_layers="first"))
    words = encoder_layers(first)[1].attn.Wqkv.weight
    assert torch.equal(words, encoder_layers(teacher())[1].attn.Wqkv.weight)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.data())
def test_none_is_nearer(depths: tuple[int, int], data: st.DataObject) -> None:
    (depth, count), every = depths, data.draw(st.integers(1, 4))
    wanted = data.draw(st.lists(st.integers(0, depth - 1), min_size=count, max_size=count))

    def distance(layers: tuple[int, ...]) -> int:
        return sum(abs(a - b) for a, b in zip(layers[1:], wanted[1:], strict=True))

    def alternates(layers: tuple[int, ...]) -> bool:
        alike = (layer % every == 0 for layer in layers)
        return layers[0] == 0 and list(alike) == [place % every == 0 for place in range(count)]

    chosen = ROW.nearest_layers(config_of(depth, every), wanted)
    possible = [each for each in combinations(range(depth), count) if alternates(each)]
    assert chosen in possible and distance(chosen) == min(map(distance, possible))
    settings = ROW.settings_of_layers(config_of(depth, every), chosen)
    kinds = ["sliding_attention" if place % every else "full_attention" for place in range(count)]
    assert settings == (
        {"global_attn_every_n_layers": every} if BEFORE_5 else {"layer_types": kinds}
    )


def test_layers_that_go_leave_some_that_alternate() -> None:
    model, labelled = teacher(), {**batch(), "labels": torch.tensor([0, 1])}
    for count in range(1, DEPTH):
        stay = least_missed(model, [labelled], count)
        assert len(stay) == DEPTH - count and stay[0] == 0
        assert without_layers(model, stay).config.num_hidden_layers == DEPTH - count


def test_a_student_of_another_class_is_none_of_its_layers() -> None:
    """The method of DistilBERT makes a shorter ModernBERT."""
    student = DistilBertStudent().build(teacher(), StudentShape(4))
    assert student.config.model_type == "modernbert"


def test_scores_are_turned_and_reach_beyond_the_window() -> None:
    model = tiny_classifier("modernbert", attn_implementation="eager")
    layers = frozenset({1, 2})
    with torch.inference_mode():
        scores = read_signals(model, batch(), {"attention_scores": layers}).attention_scores
        attentions = model(**batch(), output_attentions=True).attentions
    distance = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    for layer, window in ((1, 12), (2, 2)):
        assert scores[layer].abs().min() > 0
        masked = scores[layer][0].masked_fill(distance > window, -torch.inf)
        torch.testing.assert_close(masked.softmax(-1), attentions[layer - 1][0])


def test_it_is_opened_so_that_hooks_see_padded_batches(task: Task, tmp_path: Path) -> None:
    whole = tiny_classifier("modernbert")
    remaining = Remaining(((0,), (1, 2), (3,), (0, 1)), everything(whole.config).neurons)
    for name, model in (("whole", whole), ("pruned", cut(whole, remaining))):
        artifact = save_artifact(model, task, tmp_path / name)
        opened = load_torch_classifier(artifact)
        assert opened.config._attn_implementation == "sdpa"
        assert not getattr(opened.config, "reference_compile", None)
        eager = load_torch_classifier(artifact, attn_implementation="eager")
        assert eager.config._attn_implementation == "eager"
        assert not getattr(eager.config, "reference_compile", None)


def last_states(model: PreTrainedModel) -> torch.Tensor:
    """What the last layer writes, (batch, seq, hidden), before the model's last norm."""
    written: list[Any] = []
    layer = encoder_layers(model)[-1]
    handle = layer.register_forward_hook(lambda _layer, _inputs, output: written.append(output))
    with torch.inference_mode():
        model(**batch())
    handle.remove()
    return written[0] if isinstance(written[0], torch.Tensor) else written[0][0]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_rescaling_reads_the_tokens_that_the_classifier_reads(pooling: str) -> None:
    whole = tiny_classifier("modernbert", classifier_pooling=pooling).double().eval()
    stay = everything(whole.config)
    pruned = cut(whole, Remaining(stay.heads, (*stay.neurons[:3], tuple(range(12, 64)))))
    ours, theirs = (last_states(model) for model in (pruned, whole))
    read = batch()["attention_mask"].bool()
    if pooling == "cls":
        read[:, 1:] = False
    expected = (theirs - ours)[read].square().sum() / theirs[read].square().sum()
    *before, last = rescale(pruned, whole, [batch()])
    assert last.error_before == pytest.approx(float(expected)) and last.error_before > 1e-4
    assert last.error_after < last.error_before and not any(each.error_before for each in before)
