"""Rescaling: what is left writes what went, as far as it can, and never makes an output worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from bertender.comparison.fitting import evaluated
from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.models.classifier import load_torch_classifier
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import PRUNABLE, heads_of, neurons_of
from bertender.tasks.task import Task
from bertender.training.examples import token_dataset
from distill.pruning.cutting import Remaining, cut
from distill.pruning.importance import gated
from distill.pruning.rescaling import fold, rescale
from tests.distill.pruning.toys import everything, twice_as_wide, with_copied_parts
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer

UNEVEN = Remaining(
    heads=((0, 2), (1,), (0, 1, 2, 3), (3, 1, 0)),
    neurons=(tuple(range(0, 64, 2)), (5,), tuple(range(64)), tuple(range(40, 64))),
)
WITHOUT_COPIES = Remaining(((0, 2, 3),) * 4, ((0, *range(2, 64)),) * 4)
TEXTS = [
    "apple pear",
    "saw",
    "the hammer and the drill from the box",
    "plum number 7 and number 9",
    "grape grape melon chisel",
]


def tokens() -> dict[str, torch.Tensor]:
    batch = tiny_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def precise(model_type: str) -> PreTrainedModel:
    return tiny_classifier(model_type).double().eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(**tokens()).logits
    return found


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_folded_scales_are_gates_of_that_size(model_type: str) -> None:
    model = precise(model_type)
    family = family_of(model)
    scales = [
        [torch.randn(count, dtype=torch.float64) for count in counts]
        for counts in (heads_of(model.config), neurons_of(model.config))
    ]
    with gated(model, *scales):
        expected = logits(model)
    for path, each in zip(
        (family.projections.output, family.feed_forward.output), scales, strict=True
    ):
        for layer, of_layer in zip(encoder_layers(model), each, strict=True):
            fold(layer.get_submodule(path), of_layer)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_what_was_a_copy_is_made_up_for(model_type: str) -> None:
    whole = with_copied_parts(precise(model_type))
    pruned = cut(whole, WITHOUT_COPIES)
    assert (logits(pruned) - logits(whole)).abs().max() > 1e-3
    done = rescale(pruned, whole, [tokens()], damping=1e-12)
    torch.testing.assert_close(logits(pruned), logits(whole), rtol=0, atol=1e-6)
    assert max(each.error_after for each in done) < 1e-12 < min(each.error_before for each in done)


@pytest.mark.parametrize("damping", [1e-9, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("model_type", PRUNABLE)
def test_no_output_gets_worse(model_type: str, damping: float) -> None:
    whole = precise(model_type)
    pruned = cut(whole, UNEVEN)
    done = rescale(pruned, whole, [tokens()], damping)
    assert [(each.layer, each.part) for each in done] == [
        (layer, part) for layer in range(4) for part in ("heads", "neurons")
    ]
    assert all(each.error_after <= each.error_before for each in done)
    assert done[0].error_after < done[0].error_before
    again = rescale(pruned, whole, [tokens()], damping)
    assert again[0].error_before == pytest.approx(done[0].error_after), "it is what is foretold"


def test_a_whole_model_stays_as_it_is() -> None:
    whole = precise("bert")
    same = cut(whole, everything(whole.config))
    done = rescale(same, whole, [tokens()])
    assert all(each.error_before == each.error_after == 0 for each in done)
    assert torch.equal(logits(same), logits(whole))


def test_padding_and_batches_have_no_part() -> None:
    whole, batch = precise("bert"), tokens()
    together, apart = cut(whole, UNEVEN), cut(whole, UNEVEN)
    rows = [{name: each[row : row + 1] for name, each in batch.items()} for row in range(5)]
    shorter = [
        {name: each[:, : row["attention_mask"].sum()] for name, each in row.items()} for row in rows
    ]
    rescale(together, whole, [batch])
    rescale(apart, whole, shorter)
    torch.testing.assert_close(logits(together), logits(apart), rtol=0, atol=1e-9)


def test_of_the_last_layer_the_first_token_counts() -> None:
    """The first tokens of two texts have 64 numbers, fewer than there are unknowns."""
    whole = precise("bert")
    kept = everything(whole.config)
    pruned = cut(whole, replace(kept, neurons=(*kept.neurons[:3], tuple(range(4, 64)))))
    two_texts = {name: each[1:3] for name, each in tokens().items()}
    *_, last = rescale(pruned, whole, [two_texts], damping=1e-9)
    assert last.error_after < 1e-9 < last.error_before
    with torch.inference_mode():
        ours, theirs = (model(**two_texts).logits for model in (pruned, whole))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_part_whose_scales_run_away_gets_a_constant_alone() -> None:
    whole = with_copied_parts(precise("bert"), share=20.0)
    pruned = cut(whole, WITHOUT_COPIES)
    before = {name: weight.clone() for name, weight in pruned.state_dict().items()}
    first, *_ = rescale(pruned, whole, [tokens()], damping=1e-12)
    assert 0 < first.error_after < first.error_before
    name = "bert.encoder.layer.0.attention.output.dense"
    assert torch.equal(pruned.state_dict()[f"{name}.weight"], before[f"{name}.weight"])
    assert not torch.equal(pruned.state_dict()[f"{name}.bias"], before[f"{name}.bias"])


def test_what_is_always_the_same_is_made_up_for_by_the_constant() -> None:
    """Neurons that no token moves, and a damping that lets no scale move."""
    whole = precise("bert")
    family = family_of(whole)
    with torch.no_grad():
        for layer in encoder_layers(whole):
            inner = family.feed_forward.weights(layer)
            inner["inner.weight"][:32], inner["inner.bias"][:32] = 0.0, 2.0
    kept = everything(whole.config)
    pruned = cut(whole, replace(kept, neurons=(tuple(range(32, 64)),) * 4))
    assert (logits(pruned) - logits(whole)).abs().max() > 1e-3
    rescale(pruned, whole, [tokens()], damping=1e12)
    torch.testing.assert_close(logits(pruned), logits(whole), rtol=0, atol=1e-6)


def test_planted_redundancy_is_worth_its_score(trained_teacher: Artifact, task: Task) -> None:
    """Of two of each head and neuron the one goes that made up for what the other writes."""
    teacher = load_torch_classifier(trained_teacher)
    whole, tokenizer = twice_as_wide(teacher, share=-0.5), tiny_tokenizer()
    kept = Remaining((tuple(range(4)),) * 4, (tuple(range(64)),) * 4)
    plain, rescaled = cut(whole, kept), cut(whole, kept)
    texts = token_dataset(task.train, tokenizer)
    rescale(rescaled, whole, [texts.collate([texts[row] for row in range(48)])])
    score_whole, score_plain, score_rescaled = (
        evaluated(model, tokenizer, task, task.dev)[0].value for model in (whole, plain, rescaled)
    )
    assert score_plain < 0.9 * score_rescaled and score_rescaled == score_whole


def test_without_texts_there_is_nothing_to_rescale_on() -> None:
    whole = precise("bert")
    with pytest.raises(DataError, match="no text to rescale"):
        rescale(cut(whole, UNEVEN), whole, [])
