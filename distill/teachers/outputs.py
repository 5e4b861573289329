"""A teacher's outputs on whole texts, computed once and cached on disk: logits and [CLS] states.

Each column of a training set is a file of its own, so that another run with the same teacher, on
the same texts, computes only what is not there yet. They are read memory-mapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.cache import cache_directory
from bertender.core.card import library_versions
from bertender.core.progress import track
from bertender.text.batching import length_buckets
from bertender.training.cached_tensors import cached_tensor
from bertender.training.examples import TensorBatch, TokenDataset, input_names, model_inputs
from distill.losses.signals import TEXT_SIGNALS, Signals, Wanted, joined, read_signals

__all__ = [
    "LOGITS",
    "cacheable",
    "cached_in",
    "size_bytes",
    "teacher_outputs",
    "teacher_token_logits",
]

LOGITS = "teacher_logits"
"""The column of the teacher's logits, (examples, labels)."""
STATES = "teacher_sentence_states_{layer}"
"""That of the [CLS] states of a layer, (examples, hidden)."""
TAGGER_LOGITS = "teacher_tagger_logits"
TOKENS_PER_BATCH = 8192


def cacheable(reads: Iterable[Wanted]) -> Wanted:
    """Return what to keep for phases that read this of the teacher.

    A phase that reads more than can be cached runs the teacher in each step, and takes all from
    there: keeping a part of it would only run the teacher once more.
    """
    return joined(each for each in reads if each.keys() <= TEXT_SIGNALS)


def size_bytes(config: PretrainedConfig, wanted: Wanted, examples: int, bf16: bool) -> int:
    """Return how large the outputs of a teacher of this config are on disk."""
    logits: int = config.num_labels * torch.float32.itemsize if "logits" in wanted else 0
    state: int = config.hidden_size * _state_type(bf16).itemsize
    return examples * (logits + len(wanted.get("sentence_states", ())) * state)


def cached_in(batch: TensorBatch, wanted: Wanted) -> dict[str, Any]:
    """Return those of the requested signals that a batch holds as columns, as fields of Signals.

    Of the states it holds all requested layers, or they count as none.
    """
    columns = {layer: STATES.format(layer=layer) for layer in wanted.get("sentence_states", ())}
    cached: dict[str, Any] = {"logits": batch[LOGITS]} if LOGITS in batch else {}
    if columns and all(name in batch for name in columns.values()):
        cached["sentence_states"] = {layer: batch[name] for layer, name in columns.items()}
    return cached


def teacher_outputs(
    model: PreTrainedModel,
    digest: str,
    examples: TokenDataset,
    wanted: Wanted,
    bf16: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the teacher's outputs as columns of a training set, a row each example.

    Args:
        model: the teacher.
        digest: the teacher artifact's digest.
        examples: the training examples, in the teacher's own tokens.
        wanted: logits, and sentence states of some layers.
        bf16: compute in bf16, as the run that reads them does. The states are then cached in
            bfloat16, which has their range and the precision that they were computed with.
    """
    parts, key = _parts(wanted), _key(model, digest, examples, bf16)
    computed: dict[str, torch.Tensor] = {}

    def column(name: str) -> torch.Tensor:
        """Return a column, computed with all that are missing in one run of the teacher."""
        if name not in computed:
            missing = [other for other in parts if not _path(key, other).exists()]
            together = joined(parts[each] for each in {name, *missing})
            computed.update(_compute(model.eval(), examples, together, bf16))
        return computed.pop(name)

    return {name: cached_tensor(_path(key, name), partial(column, name)) for name in parts}


def teacher_token_logits(
    model: PreTrainedModel, digest: str, examples: TokenDataset, bf16: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return a tagger's logits (seq, labels) on each example, computed once and cached on disk.

    Arguments are those of `teacher_outputs`. The file holds all tokens below one another without
    padding, 4 bytes for each label of each.
    """
    path = _path(_key(model, digest, examples, bf16), TAGGER_LOGITS)
    tokens = cached_tensor(path, lambda: _token_logits(model.eval(), examples, bf16))
    return torch.split(tokens, list(examples.lengths))


def _token_logits(model: PreTrainedModel, examples: TokenDataset, bf16: bool) -> torch.Tensor:
    """Return the logits of all tokens, (tokens, labels), in the order of the examples."""
    rows = [torch.empty(0)] * len(examples)
    for bucket, signals in _batch_outputs(model, examples, {"logits": frozenset()}, bf16):
        for row, logits in zip(bucket, signals.logits.float().cpu(), strict=True):
            rows[row] = logits[: examples.lengths[row]]
    return torch.cat(rows)


def _parts(wanted: Wanted) -> dict[str, Wanted]:
    """Return each column's name, and what to read for it."""
    parts: dict[str, Wanted] = {LOGITS: {"logits": frozenset()}} if "logits" in wanted else {}
    for layer in sorted(wanted.get("sentence_states", ())):
        parts[STATES.format(layer=layer)] = {"sentence_states": frozenset({layer})}
    return parts


def _key(model: PreTrainedModel, digest: str, examples: TokenDataset, bf16: bool) -> str:
    """Return a digest of everything that shapes the outputs, whichever of them are requested."""
    tokens = [examples.columns.get(name) for name in input_names(model)]
    shaping = (digest, bf16, model.device.type, library_versions(), tokens)
    return hashlib.sha256(repr(shaping).encode()).hexdigest()


def _path(key: str, name: str) -> Path:
    return cache_directory() / "teacher-outputs" / f"{key}-{name}.safetensors"


def _compute(
    model: PreTrainedModel, examples: TokenDataset, wanted: Wanted, bf16: bool
) -> dict[str, torch.Tensor]:
    """Return the requested columns, from one run of the teacher over all examples."""
    columns: dict[str, torch.Tensor] = {}
    if not wanted:
        return columns
    for bucket, signals in _batch_outputs(model, examples, wanted, bf16):
        for name, values in _columns(signals, wanted, _state_type(bf16)).items():
            if name not in columns:
                shape = len(examples), values.shape[-1]
                columns[name] = torch.empty(shape, dtype=values.dtype)
            columns[name][bucket] = values
    return columns


def _batch_outputs(
    model: PreTrainedModel, examples: TokenDataset, wanted: Wanted, bf16: bool
) -> Iterator[tuple[list[int], Signals]]:
    """Yield batches of examples of like length, and the teacher's outputs on each."""
    buckets = length_buckets(examples.lengths, TOKENS_PER_BATCH)
    device = model.device
    for bucket in track(buckets, "teacher outputs", len(buckets)):
        batch = examples.collate([examples[index] for index in bucket])
        inputs = {name: ids.to(device) for name, ids in model_inputs(model, batch).items()}
        with (
            torch.inference_mode(),
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16),
        ):
            signals = read_signals(model, inputs, wanted)
        yield bucket, signals


def _columns(signals: Signals, wanted: Wanted, states: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a batch's part of each column."""
    logits = {LOGITS: signals.logits.float().cpu()} if "logits" in wanted else {}
    layers = signals.sentence_states.items()
    return {**logits, **{STATES.format(layer=i): each.to("cpu", states) for i, each in layers}}


def _state_type(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float32
