"""Tiny training runs for other processes to execute, some of which kill themselves on the way."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, PreTrainedModel

from bertender.core.build_once import work_directory
from bertender.text.tokenizer import padding_of
from bertender.training import checkpoint
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.loop import train
from bertender.training.steps import LossParts, Objective
from distill.finetuning.finetune import label_objective
from distill.pretraining.objectives import MaskedLanguageModel
from distill.pretraining.vocabularies import train_wordpiece
from tests.toys import tiny_bert, toy_task

CONFIG = TrainingConfig(
    epochs=2, batch_size=8, learning_rate=1e-3, precision="fp32", checkpoint_steps=4, seed=5
)


class Start(NamedTuple):
    """What a run starts from."""

    model: PreTrainedModel
    examples: TokenDataset
    objective: Objective


class Death(NamedTuple):
    """When a run kills itself: at the start of a step, or while it writes that checkpoint."""

    moment: str
    step: int


def toy_texts() -> list[str]:
    return [text for (text,) in toy_task().train.examples]


@functools.cache
def tiny_tokenizer() -> BertTokenizerFast:
    """A tokenizer that is the same in every process."""
    return train_wordpiece(toy_texts(), 300, 64)


def toy_examples() -> TokenDataset:
    """The toy task, tokenised."""
    task, tokenizer = toy_task(), tiny_tokenizer()
    tokens = tokenizer(toy_texts())
    return TokenDataset({**tokens, "labels": task.train.label_ids}, padding_of(tokenizer))


def classification() -> Start:
    """Labels, on a model with dropout; the loss is shaken by every source of random numbers."""
    return Start(tiny_bert(len(tiny_tokenizer()), ("fruit", "tool")), toy_examples(), shaken_labels)


def shaken_labels(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
    """Return a loss that depends on the state of Python's, numpy's and torch's generators."""
    noise = random.random() + np.random.standard_normal() + float(torch.rand(()))
    return {"hard": label_objective(model, batch, step)["hard"] * (1 + 0.1 * noise)}


def masked_language_model() -> Start:
    """The pre-training objective, as `pretrain` builds it."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(1)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )
    return Start(model, toy_examples(), MaskedLanguageModel(tokenizer, 0.15, 5))


STARTS: Mapping[str, Callable[[], Start]] = {
    "classification": classification,
    "masked language model": masked_language_model,
}


def run(name: str, out: Path, death: Death | None = None) -> None:
    """Train a row of STARTS and write the model to `out`, with the steps that this process did."""
    torch.set_num_threads(1)
    start = STARTS[name]()
    steps: list[int] = []

    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if death == Death("step", step):
            kill()
        steps.append(step)
        return start.objective(model, batch, step)

    if death and death.moment == "checkpoint":
        die_while_writing(f"checkpoint-{death.step}")
    with work_directory(out, name, CONFIG.model_dump()) as work:
        report = train(start.model, start.examples, objective, CONFIG, work)
        start.model.save_pretrained(out)
    (out / "losses.txt").write_text(str(report.losses))
    (out / "steps.txt").write_text(" ".join(map(str, steps)))


def die_while_writing(directory: str) -> None:
    """Kill this process when it has written half of a checkpoint."""
    save_file = checkpoint.save_file

    def save_or_die(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if path.parent.name == directory and path.stem == "scheduler":
            kill()
        save_file(tensors, path)

    checkpoint.save_file = save_or_die


def kill() -> NoReturn:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
