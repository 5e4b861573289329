"""Spans: their lengths, their shared fate, and the head that sees their boundaries alone."""

from __future__ import annotations

import pytest
import torch

from bertender.metrics.metric import NO_LABEL
from distill.pretraining.masking import WordMarks, WordSpans, run_bounds
from distill.pretraining.objectives import SPAN_LENGTHS, BoundaryHead
from tests.distill.pretraining.batches import (
    TOKENIZER,
    batch_of,
    objective_of,
    pretraining_module_of,
)
from tests.toy_models import VOCABULARY

LONG = torch.randint(5, VOCABULARY, (40, 2000), generator=torch.Generator().manual_seed(1))


def runs(chosen: torch.Tensor) -> list[int]:
    """Lengths of the runs of chosen tokens."""
    first, last = run_bounds(chosen)
    return (last - first + 1)[chosen & (first == torch.arange(chosen.shape[1]))].tolist()


def test_lengths_have_the_papers_mean() -> None:
    """3.8 words, as section 3.1 says of p = 0.2 and at most 10."""
    mean = sum(n * weight for n, weight in enumerate(SPAN_LENGTHS, 1)) / sum(SPAN_LENGTHS)
    assert len(SPAN_LENGTHS) == 10 and mean == pytest.approx(3.8, abs=0.01)


def test_spans_are_as_long_as_drawn_where_there_is_room() -> None:
    """Of words of one piece, few enough not to meet: the mean is nearly that of the draws."""
    choose = WordSpans(WordMarks(torch.zeros(VOCABULARY, dtype=torch.bool)), SPAN_LENGTHS)
    chosen = choose(LONG, LONG > 4, 0.02, torch.Generator().manual_seed(0))
    lengths = runs(chosen)
    assert sum(lengths) / len(lengths) == pytest.approx(3.8, abs=0.5)
    assert len(set(lengths)) >= 10


@pytest.mark.parametrize("words", [1, 3])
def test_a_row_uses_its_share_up_exactly_where_words_are_single_pieces(words: int) -> None:
    choose = WordSpans(
        WordMarks(torch.zeros(VOCABULARY, dtype=torch.bool)), [0.0] * (words - 1) + [1.0]
    )
    chosen = choose(LONG, LONG > 4, 0.15, torch.Generator().manual_seed(0))
    assert chosen.sum(dim=1).tolist() == [300] * len(LONG)


def test_a_word_longer_than_the_share_is_chosen_where_there_is_no_other() -> None:
    continues = torch.zeros(VOCABULARY, dtype=torch.bool)
    continues[7] = True
    ids = torch.tensor([[TOKENIZER.cls_token_id, 6, 7, 7, 7, TOKENIZER.sep_token_id]])
    chosen = WordSpans(WordMarks(continues), (1.0,))(
        ids, ids > 4, 0.01, torch.Generator().manual_seed(0)
    )
    assert chosen.tolist() == [[False, True, True, True, True, False]]


def test_a_span_is_masked_replaced_or_left_as_a_whole() -> None:
    objective = objective_of("span")
    batch = batch_of(400)
    generator = torch.Generator().manual_seed(0)
    ids, targets = objective.masking(batch["input_ids"], generator)
    chosen = targets != NO_LABEL
    first, last = run_bounds(chosen)
    masked = ids == TOKENIZER.mask_token_id
    begin = chosen & (first == torch.arange(ids.shape[1]))
    # a random token is [MASK] once in the size of the vocabulary
    agrees = masked[chosen] == masked.gather(1, first)[chosen]
    assert agrees.float().mean() > 0.99
    share = float(masked[begin].float().mean())
    assert abs(share - 0.8) < 4 * (0.16 / int(begin.sum())) ** 0.5
    assert int((last - first)[begin].max()) > 5


def test_what_stands_beside_a_span_is_never_masked_nor_padding() -> None:
    objective, batch = objective_of("span", share=0.3), batch_of(200)
    batch["input_ids"][1::2, -1] = 9  # packed blocks need not end in [SEP]
    chosen = objective.masking.chosen(batch["input_ids"], torch.Generator().manual_seed(0))
    assert not chosen[:, 0].any() and not chosen[:, -1].any()
    first, last = run_bounds(chosen)
    row = chosen.nonzero()[:, 0]
    for beside in (first[chosen] - 1, last[chosen] + 1):
        assert not chosen[row, beside].any()
        assert (batch["input_ids"][row, beside] != TOKENIZER.pad_token_id).all()


def test_bounds_of_runs_by_hand() -> None:
    chosen = torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 1, 0]]).bool()
    first, last = run_bounds(chosen)
    assert first[chosen].tolist() == [1, 1, 4, 6, 6, 6]
    assert last[chosen].tolist() == [2, 2, 4, 8, 8, 8]


def test_the_boundary_head_is_the_equation_of_the_paper() -> None:
    torch.manual_seed(0)
    head = BoundaryHead(hidden_size=8, places=12, vocabulary_size=20, eps=1e-12)
    states, words = torch.randn(1, 6, 8), torch.randn(20, 8)
    chosen = torch.tensor([[0, 0, 1, 1, 0, 0]]).bool()
    found = head(states, chosen, words)
    first, _, first_norm, second, _, second_norm = head.layers
    for row, place in enumerate((0, 1)):
        told = torch.cat([states[0, 1], states[0, 4], head.places.weight[place]])
        inner = first_norm(torch.nn.functional.gelu(first(told)))
        outer = second_norm(torch.nn.functional.gelu(second(inner)))
        assert torch.allclose(found[row], words @ outer + head.bias, atol=1e-5)


def test_only_boundaries_and_places_reach_the_second_loss() -> None:
    """The states of the span itself get no gradient from it."""
    pretraining_module = pretraining_module_of("span").eval()
    states = torch.randn(1, 8, 32, requires_grad=True)
    chosen = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0]]).bool()
    pretraining_module.boundary(states, chosen, torch.randn(VOCABULARY, 32)).sum().backward()
    assert states.grad is not None
    touched = states.grad.abs().sum(-1)[0] > 0
    assert touched.tolist() == [False, True, False, False, False, True, False, False]
