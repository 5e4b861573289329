"""Gradient accumulation: batches in parts give the gradient of the batch at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.text.tokenizer import Padding
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads import head_of
from bertender.training.heads.head import Part, divisor, parts_of_a_batch
from bertender.training.loop import planned, train
from bertender.training.steps import LossParts, Objective, Steps
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import label_objective
from distill.losses.terms import mean
from distill.pretraining.masking import step_generator
from tests.toys import toy_task
from tests.training.runs import CONFIG, classification

EXACT = CONFIG.model_copy(update={"no_dropout": True, "epochs": 2})


def numbers(*rows: list[float]) -> TokenDataset:
    """Examples that are rows of numbers to be approached by one weight."""
    return TokenDataset(
        {"input_ids": [[1] * len(row) for row in rows], "numbers": list(rows)},
        Padding(0, others={"numbers": 0}),
    )


def of_tokens(weight: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Return the mean squared distance over tokens."""
    real = batch["input_ids"].bool()
    return (weight - batch["numbers"])[real].square().sum() / divisor(real.sum().float())


def of_rows(weight: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Return the mean over rows of the weight times the first number."""
    firsts = batch["numbers"][:, 0]
    return (weight * firsts).sum() / divisor(firsts.new_tensor(float(len(firsts))))


def one_step(
    work: Path, *means: Callable[[torch.Tensor, TensorBatch], torch.Tensor]
) -> tuple[float, dict[str, float]]:
    """Return the gradient of the weight of 1 in the only step of three rows, read in two parts, and
    the loss in the log."""
    gradients: list[float] = []
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model.weight.register_post_accumulate_grad_hook(
        lambda weight: gradients.append(float(weight.grad))  # summed up so far
    )

    def objective(model: Any, batch: TensorBatch, step: int) -> LossParts:
        return {each.__name__: each(model.weight.squeeze(), batch) for each in means}

    config = TrainingConfig(
        epochs=1, batch_size=2, accumulation=2, precision="fp32", warmup_ratio=0, learning_rate=0.1
    )
    examples = numbers([0.0], [3.0], [2.0, 4.0, 3.0])
    report = train(model, examples, objective, config, work)
    assert len(gradients) == 2 and report.steps == 1
    return gradients[-1], report.losses[0]


def test_a_mean_is_over_the_tokens_of_the_whole_batch(tmp_path: Path) -> None:
    """Tokens 0, 3 | 2, 4, 3 at weight 1: squares 1, 4, 1, 9, 4 have the mean 19 / 5. The mean of
    the two parts' means, 5/2 and 14/3, would be 3.58."""
    _, losses = one_step(tmp_path, of_tokens)
    assert losses == {"of_tokens": pytest.approx(3.8)}


def test_several_means_have_each_its_own_count(tmp_path: Path) -> None:
    """The gradient of the tokens is 2 (1 - 2 - 1 - 3 - 2) / 5 = -2.8, that of the rows is
    (0 + 3 + 2) / 3; together -1.1333."""
    gradient, losses = one_step(tmp_path, of_tokens, of_rows)
    assert gradient == pytest.approx(-2.8 + 5 / 3, rel=1e-5)
    assert losses == {"of_tokens": pytest.approx(3.8), "of_rows": pytest.approx(5 / 3, rel=1e-5)}


def partly_labelled() -> TokenDataset:
    """The toy texts, some without a label, so that parts have different numbers of them."""
    examples = classification().examples
    known = toy_task().train.label_ids
    labels = [NO_LABEL if row % 7 < 3 else label for row, label in enumerate(known)]
    return TokenDataset({**examples.columns, "labels": labels}, examples.padding)


def with_states(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
    """Return a mean over texts and one over tokens."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    states = model(**inputs, output_hidden_states=True).hidden_states[-1]
    size = mean(states.square().mean(-1), batch["attention_mask"])
    return {**label_objective(model, batch, step), "size": size}


def weights_after(objective: Objective, work: Path, **changes: Any) -> dict[str, torch.Tensor]:
    start = classification()
    config = EXACT.model_copy(update=changes)
    report = train(start.model, partly_labelled(), objective, config, work)
    assert report.steps == 2 * 96 // 24
    return start.model.state_dict()


@pytest.mark.parametrize("objective", [label_objective, with_states])
def test_parts_reach_the_weights_of_large_batches(objective: Objective, tmp_path: Path) -> None:
    """Of 24 texts, by three parts of 8, over two epochs."""
    large = weights_after(objective, tmp_path / "large", batch_size=24)
    parts = weights_after(objective, tmp_path / "parts", batch_size=8, accumulation=3)
    for name, weights in large.items():
        torch.testing.assert_close(parts[name], weights, atol=2e-5, rtol=1e-4, msg=name)


def test_a_run_in_parts_that_was_cut_off_ends_as_a_whole_one(tmp_path: Path) -> None:
    """With dropout. Steps, checkpoints and the schedule are those of whole batches."""
    seen: list[int] = []

    def counted(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        seen.extend([step] * model.training)
        return with_states(model, batch, step)

    def cut_off(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step == 7 and len(seen) == 23:
            raise KeyboardInterrupt
        return counted(model, batch, step)

    config = CONFIG.model_copy(update={"accumulation": 3, "epochs": 3})
    whole, halves, resumed = (classification() for _ in range(3))
    train(whole.model, whole.examples, with_states, config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(halves.model, halves.examples, cut_off, config, tmp_path / "halves")
    seen.clear()
    report = train(resumed.model, resumed.examples, counted, config, tmp_path / "halves")
    assert report.steps == 12 and seen == [step for step in range(4, 12) for _ in range(3)]
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    size=st.integers(1, 8),
    times=st.integers(1, 5),
    processes=st.integers(1, 3),
)
def test_parts_keep_to_the_limits_and_make_the_batch(
    lengths: list[int], size: int, times: int, processes: int
) -> None:
    examples = TokenDataset(
        {"input_ids": [[row] * n for row, n in enumerate(lengths)]}, Padding(-1)
    )
    config = TrainingConfig(epochs=1, batch_size=size, tokens_per_batch=100, accumulation=times)
    plan = planned(examples, config, processes)
    shares = [Steps(plan, examples, config, process, processes) for process in range(processes)]
    for step, batch in enumerate(plan.batches):
        parts = [share[step] for share in shares]
        assert len({len(own) for own in parts}) == 1, "as many parts in each process"
        tensors = [part["input_ids"] for own in parts for part in own]
        assert Counter(int(row[0]) for part in tensors for row in part) == Counter(batch)
        for part in tensors:
            assert len(part) <= size
            assert part.numel() <= 100 or len(part) == 1


def test_each_part_is_masked_by_draws_of_its_own() -> None:
    def draw(number: int) -> float:
        with parts_of_a_batch(Part(number, in_turn=True)):
            return float(torch.rand((), generator=step_generator(1, 2)))

    draws = [draw(number) for number in range(3)]
    assert len({*draws}) == 3 and draws == [draw(number) for number in range(3)]
    assert draws[0] == float(torch.rand((), generator=step_generator(1, 2)))


def test_pairs_that_are_compared_in_a_batch_are_not_cut_apart() -> None:
    with pytest.raises(ConfigError, match=r"accumulation=2: .*Leave it out"):
        head_of(SENTENCE_EMBEDDING).configured(FinetuneConfig(accumulation=2), toy_task())
