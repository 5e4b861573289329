"""A teacher's outputs on whole texts, computed once and cached on disk: logits and [CLS] states.

Texts are processed in parts, and each column of a part is a memory-mapped file. A killed run thus
continues after its last finished part, and a run with texts added or removed in one place computes
little more than the parts that changed. For that, the end of a part is decided by a hash of a
text's tokens, not by its position: a change affects its own part, and seldom later ones. Outputs on
a part depend only on its texts.

Logits are cached in float32, at 4 bytes per label: 300,000 texts of two labels are 2.4 MB. Rounded
to float16, which ends at 65504 and has 11 bits, they would no longer be the logits that a method
learns. States have the model's width. They are cached in the precision of the run, bfloat16 or
float32.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.files import cache_directory
from bertender.core.hardware import keep_freed_memory
from bertender.core.progress import Bar, progress_bar
from bertender.models.classifier import input_names, model_inputs
from bertender.models.embedders import SETTING as VECTORS
from bertender.text.batch import length_buckets
from bertender.training.checkpoint import cached_tensor, computing_versions
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads.head import POOLING
from bertender.training.heads.texts import pooled_rows
from distill.losses.signals import TEXT_SIGNALS, Signals, Wanted, joined, read_signals

LOGITS = "teacher_logits"
"""Column of the teacher's logits, (examples, labels)."""
STATES = "teacher_sentence_states_{layer}"
"""Column of the [CLS] states of a layer, (examples, hidden)."""
TAGGER_LOGITS = "teacher_tagger_logits"
TOKENS_PER_BATCH = 8192

LEAST_TEXTS = 4096
"""Fewest texts of a part. Batches of similar length are formed within a part: with the mean size of
ONE_OF, padding costs 4 % more tokens than in one list; parts of 1,024 to 2,048 texts cost 21 %."""
ONE_OF = 8192
"""One text in so many ends its part, if the part has LEAST_TEXTS. With a larger LEAST_TEXTS, ends
would mostly depend on the start of the part."""
MOST_TEXTS = 4 * ONE_OF


Tensors: TypeAlias = dict[str, torch.Tensor]
"""Tensors by column."""


class Rows(Sequence[torch.Tensor]):
    """Rows of several concatenated tensors, each of which may be memory-mapped.

    Args:
        parts: the tensors.
        numbers: indices of the selected rows, in order; None for all.
    """

    def __init__(
        self, parts: Sequence[torch.Tensor], numbers: NDArray[np.int64] | None = None
    ) -> None:
        self.parts = parts
        self.starts = [0, *accumulate(map(len, parts))]
        self.numbers = np.arange(self.starts[-1]) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> torch.Tensor | Rows:
        if isinstance(index, slice):
            return Rows(self.parts, self.numbers[index])
        number = int(self.numbers[index])
        part = bisect_right(self.starts, number) - 1
        return self.parts[part][number - self.starts[part]]

    def at(self, numbers: Sequence[int]) -> Rows:
        """Return some of the rows."""
        return Rows(self.parts, self.numbers[np.asarray(numbers, dtype=np.int64)])


Column: TypeAlias = torch.Tensor | Rows | tuple[torch.Tensor, ...]
"""A row per example, or a tensor per example with a row for each of its token rows."""


def joined_rows(parts: Sequence[torch.Tensor]) -> Column:
    """Concatenate the rows of all parts without copying them."""
    return parts[0] if len(parts) == 1 else Rows(parts)


def rows_at(column: Column, numbers: Sequence[int]) -> Column:
    """Return some rows of a column."""
    if isinstance(column, tuple):
        return tuple(column[number] for number in numbers)
    return column.at(numbers) if isinstance(column, Rows) else column[list(numbers)]


def parts_of(examples: TokenDataset) -> list[TokenDataset]:
    """Cut examples into parts of LEAST_TEXTS to MOST_TEXTS; the last one may be shorter."""
    bounds = [0]
    for end, ids in enumerate(examples.columns["input_ids"], start=1):
        length = end - bounds[-1]
        if length == MOST_TEXTS or (
            length >= LEAST_TEXTS and zlib.crc32(_flat(ids, examples).tobytes()) % ONE_OF == 0
        ):
            bounds.append(end)
    bounds = [*dict.fromkeys((*bounds, len(examples)))]
    return [examples.part(start, end) for start, end in pairwise(bounds)]


def _flat(ids: Any, examples: TokenDataset) -> NDArray[np.int32]:
    """Return the tokens of all rows of an example."""
    return np.asarray(ids if examples.counts is None else [*chain(*ids)], dtype="<i4")


def cacheable(reads: Iterable[Wanted]) -> Wanted:
    """Return the signals to cache for phases with these teacher signals.

    A phase with signals that cannot be cached runs the teacher in each step for all of them:
    caching the others would only run the teacher once more.
    """
    return joined(each for each in reads if each.keys() <= TEXT_SIGNALS)


def size_bytes(config: PretrainedConfig, wanted: Wanted, examples: int, bf16: bool) -> int:
    """Return the size on disk of the outputs of a teacher with this config."""
    width: int = config.hidden_size if hasattr(config, VECTORS) else config.num_labels or 0
    logits = width * torch.float32.itemsize if "logits" in wanted else 0
    state: int = config.hidden_size * _state_type(bf16).itemsize
    return examples * (logits + len(wanted.get("sentence_states", ())) * state)


def cached_in(batch: TensorBatch, wanted: Wanted) -> dict[str, Any]:
    """Return the requested signals that a batch has as columns, as fields of Signals.

    States count only if all requested layers are there.
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
) -> dict[str, Column]:
    """Return the teacher's outputs as columns of a training set, one row per example.

    An example of several token rows has a tensor with a row for each of them; texts read in windows
    have one row of logits, pooled over the windows.

    Args:
        model: the teacher.
        digest: digest of the teacher artifact.
        examples: training examples in the teacher's tokens.
        wanted: logits, and sentence states of some layers.
        bf16: compute in bf16, like the training run. States are then cached in bfloat16, with the
            range and precision in which they were computed.
    """
    names: dict[str, Wanted] = {LOGITS: {"logits": frozenset()}} if "logits" in wanted else {}
    for layer in sorted(wanted.get("sentence_states", ())):
        names[STATES.format(layer=layer)] = {"sentence_states": frozenset({layer})}
    with progress_bar("teacher outputs", len(examples), "texts") as bar:
        parts = [
            _Part(model.eval(), digest, part, bf16, bar).text_columns(names)
            for part in parts_of(examples)
        ]
    columns = {name: [part[name] for part in parts] for name in names}
    if POOLING in examples.columns and LOGITS in columns:
        # a student may read other windows, or another number of them
        assert examples.counts is not None
        pooling = int(examples.columns[POOLING][0])
        own = pooled_rows(torch.cat(columns.pop(LOGITS)), examples.counts, pooling)
        states = {name: _by_example(each, examples.counts) for name, each in columns.items()}
        return {LOGITS: own, **states}
    if examples.counts is not None:
        return {name: _by_example(each, examples.counts) for name, each in columns.items()}
    logits = {LOGITS: torch.cat(columns.pop(LOGITS))} if LOGITS in columns else {}
    return {**logits, **{name: joined_rows(each) for name, each in columns.items()}}


def _by_example(parts: Sequence[torch.Tensor], counts: Sequence[int]) -> Column:
    """Group rows, given part by part, into one tensor per example."""
    if len(set(counts)) == 1:
        return torch.cat(list(parts)).view(len(counts), counts[0], -1)
    rows = Rows(parts)
    ends = [0, *accumulate(counts)]
    of_part = (bisect_right(rows.starts, start) - 1 for start in ends[:-1])
    return tuple(
        parts[part][start - rows.starts[part] : end - rows.starts[part]]
        for part, (start, end) in zip(of_part, pairwise(ends), strict=True)
    )


def teacher_token_logits(
    model: PreTrainedModel, digest: str, examples: TokenDataset, bf16: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return a tagger's logits (seq, labels) on each example, computed once and cached on disk.

    Arguments are those of `teacher_outputs`. A file has the tokens of a part without padding, 4
    bytes per token and label.
    """
    with progress_bar("teacher outputs", len(examples), "texts") as bar:
        parts = [
            _Part(model.eval(), digest, part, bf16, bar).token_logits()
            for part in parts_of(examples)
        ]
    return tuple(logits for part in parts for logits in part)


@dataclass(frozen=True)
class _Part:
    """A part of the texts, and the teacher that reads it."""

    model: PreTrainedModel
    digest: str
    """Digest of the teacher artifact."""
    texts: TokenDataset
    bf16: bool
    bar: Bar
    """Progress bar, in texts."""

    def text_columns(self, names: Mapping[str, Wanted]) -> Tensors:
        """Return columns with one row per token row; missing columns are computed in one run."""

        def compute(missing: Collection[str]) -> Tensors:
            wanted = joined(names[name] for name in missing)
            columns: Tensors = {}
            counts = self.texts.counts or [1] * len(self.texts)
            ends = [*accumulate(counts)]
            for bucket, signals in self._outputs(wanted):
                rows = [
                    row for text in bucket for row in range(ends[text] - counts[text], ends[text])
                ]
                values = {
                    STATES.format(layer=layer): states.to("cpu", _state_type(self.bf16))
                    for layer, states in signals.sentence_states.items()
                }
                if "logits" in wanted:
                    values[LOGITS] = signals.logits.float().cpu()
                for name, each in values.items():
                    if name not in columns:
                        columns[name] = torch.empty((ends[-1], each.shape[-1]), dtype=each.dtype)
                    columns[name][rows] = each
            return columns

        return self._cached(names, compute)

    def token_logits(self) -> tuple[torch.Tensor, ...]:
        """Return the logits (seq, labels) of each text's tokens."""

        def compute(_: Collection[str]) -> Tensors:
            rows = [torch.empty(0)] * len(self.texts)
            on_the_left = self.texts.padding.side == "left"
            for bucket, signals in self._outputs({"logits": frozenset()}):
                for row, logits in zip(bucket, signals.logits.float().cpu(), strict=True):
                    count = self.texts.lengths[row]
                    rows[row] = logits[-count:] if on_the_left else logits[:count]
            return {TAGGER_LOGITS: torch.cat(rows)}  # (tokens, labels), in the order of the texts

        columns = self._cached([TAGGER_LOGITS], compute)
        return torch.split(columns[TAGGER_LOGITS], list(self.texts.lengths))

    def _cached(
        self, names: Iterable[str], compute: Callable[[Collection[str]], Tensors]
    ) -> Tensors:
        """Return the named columns; `compute` computes all missing ones."""
        tokens = [self.texts.columns.get(each) for each in input_names(self.model)]
        device = self.model.device.type
        shaping = (self.digest, self.bf16, device, computing_versions(), tokens)
        key = hashlib.sha256(repr(shaping).encode()).hexdigest()
        folder = cache_directory() / "teacher-outputs"
        paths = {name: folder / f"{key}-{name}.safetensors" for name in names}
        computed: Tensors = {}
        ran: list[str] = []

        def column(name: str) -> torch.Tensor:
            if name not in computed:
                missing = [other for other, path in paths.items() if not path.exists()]
                computed.update(compute({name, *missing}))
                ran.append(name)
            return computed.pop(name)

        columns = {name: cached_tensor(path, partial(column, name)) for name, path in paths.items()}
        if not ran:
            self.bar.skip(len(self.texts))
        return columns

    def _outputs(self, wanted: Wanted) -> Iterator[tuple[list[int], Signals]]:
        """Yield batches of texts of similar length, and the teacher's outputs on each."""
        keep_freed_memory()
        model, device = self.model, self.model.device
        buckets = length_buckets(self.texts.lengths, TOKENS_PER_BATCH, counts=self.texts.counts)
        for bucket in buckets:
            batch = model_inputs(model, self.texts.batch(bucket))
            inputs = {name: ids.to(device) for name, ids in batch.items()}
            with (
                torch.inference_mode(),
                torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16),
            ):
                signals = read_signals(model, inputs, wanted)
            yield bucket, signals
            self.bar.advance(len(bucket))


def _state_type(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float32
