"""Pre-training: a vocabulary and an encoder from plain text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, TaskRecord, new_artifact
from bertender.core.batching import length_buckets
from bertender.core.distributed import on_main_process
from bertender.core.errors import ConfigError, DataError
from bertender.core.examples import TokenDataset
from bertender.core.training import Objective, TrainingConfig, TrainingReport, train
from bertender.core.work import work_directory
from distill.corpus import pack, read_corpus, train_wordpiece
from distill.objectives import objective_named

__all__ = [
    "PretrainConfig",
    "corpus_digest",
    "encoder_config",
    "held_out_loss",
    "pretrain",
    "pretrain_by_name",
    "refuse_uneven_heads",
    "split_corpus",
    "write_encoder",
]

HELD_OUT_EVERY = 50
"""One passage of so many is kept out of training, to measure the loss on."""
HELD_OUT_STEP = 2**31
"""The step that held-out masks are drawn from: no training step comes so far."""


def _known(name: str) -> str:
    objective_named(name)
    return name


class PretrainConfig(TrainingConfig):
    """How to pre-train a small encoder."""

    corpus: str = Field("docs", description="docs, or .txt and .txt.xz files, by commas")
    objective: Annotated[str, AfterValidator(_known)] = Field(
        "mlm", description="what to learn; mlm predicts masked tokens"
    )
    vocabulary_size: int = Field(8000, ge=100, description="WordPiece entries")
    layers: int = Field(4, ge=1, description="the encoder's layers")
    hidden_size: int = Field(256, ge=8, description="width of the encoder")
    heads: int = Field(4, ge=1, description="attention heads; must divide hidden_size")
    mask_probability: float = Field(0.15, gt=0, lt=1, description="share of tokens to predict")
    learning_rate: float = Field(5e-4, gt=0, description="peak learning rate of AdamW")


def pretrain_by_name(config: PretrainConfig, out: Path) -> Artifact:
    """Read the corpus that `config.corpus` names, then `pretrain` on it."""
    return pretrain(list(read_corpus(config.corpus)), config, out)


def pretrain(passages: Sequence[str], config: PretrainConfig, out: Path) -> Artifact:
    """Train a WordPiece vocabulary and an encoder on passages; write a torch artifact.

    The artifact is a teacher's start (`finetune --teacher`), not a classifier. One passage in
    fifty is held out; its loss and perplexity are measured after each epoch.

    Raises:
        ConfigError: the objective is unknown, or the heads do not divide the width.
        DataError: there are too few passages to train and hold out.
    """
    chosen = objective_named(config.objective)
    refuse_uneven_heads(config)
    training, held_out = split_corpus(passages)
    identity = ("pretrain", config.model_dump(mode="json"), corpus_digest(passages))
    with work_directory(out, *identity) as work:
        tokenizer = train_wordpiece(passages, config.vocabulary_size, config.max_length)
        torch.manual_seed(config.seed)
        model = chosen.model(encoder_config(config, tokenizer))
        objective = chosen.objective(tokenizer, config.mask_probability, config.seed)
        blocks = pack(held_out, tokenizer, config.max_length)
        report = train(
            model,
            pack(training, tokenizer, config.max_length),
            objective,
            config,
            work,
            description=f"pre-train {out.name}",
            at_epoch_end=lambda trained: held_out_loss(trained, objective, blocks),
        )
        write = partial(write_encoder, stage="pretrain", metric="perplexity")
        on_main_process(lambda: write(out, model, tokenizer, config, [report]))
    return Artifact.load(out)


def split_corpus(passages: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the passages to train on, and one in fifty, which is held out.

    Raises:
        DataError: there are too few.
    """
    if len(passages) < HELD_OUT_EVERY:
        raise DataError(
            f"{len(passages)} passages are too few to train on; at least {HELD_OUT_EVERY}."
        )
    training = [text for row, text in enumerate(passages) if row % HELD_OUT_EVERY]
    return training, list(passages[::HELD_OUT_EVERY])


def corpus_digest(passages: Sequence[str]) -> str:
    """Return a sha256 of a corpus."""
    return hashlib.sha256("\n".join(passages).encode()).hexdigest()


def refuse_uneven_heads(config: PretrainConfig) -> None:
    """Raise ConfigError when the heads do not divide the width."""
    if config.hidden_size % config.heads:
        fitting = [heads for heads in range(1, 33) if config.hidden_size % heads == 0]
        raise ConfigError(
            f"heads={config.heads} do not divide hidden_size={config.hidden_size}. "
            f"Heads that do: {', '.join(map(str, fitting))}."
        )


def encoder_config(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> BertConfig:
    """Return the shape of the encoder; the feed-forward part is four times the width, as BERT's."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.hidden_size,
        max_position_embeddings=max(config.max_length, 128),
        pad_token_id=tokenizer.pad_token_id,
    )


def held_out_loss(
    model: torch.nn.Module, objective: Objective, examples: TokenDataset
) -> dict[str, float]:
    """Return loss and perplexity on held-out blocks, masked the same way every time."""
    model.eval()
    device = next(model.parameters()).device
    losses, tokens = 0.0, 0
    for step, bucket in enumerate(length_buckets(examples.lengths, 8192)):
        batch = examples.collate([examples[index] for index in bucket])
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.inference_mode():
            parts = objective(model, batch, HELD_OUT_STEP + step)
        size = batch["input_ids"].numel()
        losses += float(sum(parts.values())) * size
        tokens += size
    return {"loss": losses / tokens, "perplexity": math.exp(losses / tokens)}


def write_encoder(
    out: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: Any,
    reports: Sequence[TrainingReport],
    *,
    stage: str,
    metric: str,
    parent: Artifact | None = None,
) -> None:
    """Write an encoder that was trained on a corpus, by one report a phase, as a torch artifact."""
    *earlier, last = reports
    task = TaskRecord(
        name=Path(config.corpus).name,
        problem_type="masked_language_model",
        labels=(),
        text_columns=("text",),
        metric=metric,
    )
    with new_artifact(
        out,
        kind="torch",
        family=model.config.model_type,
        task=task,
        stage=stage,
        config=config,
        seed=config.seed,
        parent=parent,
    ) as draft:
        model.save_pretrained(draft.directory)
        tokenizer.save_pretrained(draft.directory)
        draft.metrics.update(
            parameters=model.num_parameters(),
            steps=sum(report.steps for report in reports),
            losses=last.losses,
            epochs=last.epochs,
            earlier_losses=[report.losses for report in earlier],
        )
