"""Measures what memory pre-training takes on a corpus: its vocabulary, its tokens, some steps.

    python -m benchmarks.pretraining_memory --out FILE.json [--tokenizers wordpiece,bpe,unigram]

Each tokenizer has a process of its own, which goes through the parts of `bertender pretrain` and
ends the training after a few steps. The corpus is the folder `wiki` of $BERTENDER_DATA.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import torch
import typer
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from bertender.core.config import Record
from bertender.core.environment import DATA_VARIABLE, Environment, data_directory, environment
from bertender.core.errors import ConfigError
from bertender.core.examples import Padding, TensorBatch, TokenDataset
from bertender.core.training import LossParts, train
from bertender.steps import save_result
from distill.corpus import Corpus, pack_rows, survey
from distill.held_out import part_of
from distill.objectives import objective_named
from distill.pretrain import PretrainConfig, encoder_config
from distill.token_store import TokenRow, stored
from distill.vocabularies import TOKENIZERS, tokenizer_named

__all__ = ["MemoryBenchmark", "MemoryRun", "StageUse", "measured"]

Made = TypeVar("Made")

NOTE = (
    "memory is what is measured; the seconds are those of a machine with other work on it, and "
    "cpu_seconds of all threads together"
)


class StageUse(Record):
    """What the process had used when a stage ended."""

    stage: str
    seconds: float = Field(description="of the wall clock, in this stage")
    cpu_seconds: float = Field(description="of the processor, in this stage")
    peak_resident_bytes: int = Field(description="of the process so far, as the system counts it")


class MemoryRun(Record):
    """One tokenizer's way through the corpus."""

    tokenizer: str
    entries: int = Field(description="of the vocabulary")
    training_blocks: int
    held_out_blocks: int
    token_bytes_on_disk: int
    stages: tuple[StageUse, ...]


class MemoryBenchmark(Record):
    """All runs on one corpus."""

    corpus: str
    text_bytes: int
    passages: int
    documents: int
    config: PretrainConfig
    steps: int
    note: str
    environment: Environment
    runs: tuple[MemoryRun, ...]


class _EnoughError(Exception):
    """Ends a training run on purpose."""


class _Stages:
    """Runs parts of the work one after another, and keeps what each has used."""

    def __init__(self) -> None:
        self.uses = [_used("imports", 0.0, 0.0)]

    def run(self, stage: str, work: Callable[[], Made]) -> Made:
        wall, cpu = time.perf_counter(), time.process_time()
        made = work()
        self.uses.append(_used(stage, time.perf_counter() - wall, time.process_time() - cpu))
        return made


def _used(stage: str, seconds: float, cpu_seconds: float) -> StageUse:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return StageUse(
        stage=stage,
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
        peak_resident_bytes=kilobytes * 1024,
    )


def measured(config: PretrainConfig, steps: int, work: Path) -> MemoryRun:
    """Go through the parts of a pre-training run in this process, which nothing else has used."""
    stages = _Stages()
    corpus = Corpus(config.corpus, config.text_column)
    stages.run("reading", lambda: survey(corpus))
    kind = tokenizer_named(config.tokenizer)
    tokenizer = stages.run(
        "vocabulary", lambda: kind.train(corpus, config.vocabulary_size, config.max_length)
    )
    tokens = partial(_stored, corpus, tokenizer, work)
    training = stages.run("training tokens", lambda: tokens("training", held_out=False))
    held_out = stages.run("held-out tokens", lambda: tokens("held-out", held_out=True))
    stages.run(f"{steps} steps", lambda: _train(training, tokenizer, config, steps, work))
    return MemoryRun(
        tokenizer=config.tokenizer,
        entries=len(tokenizer),
        training_blocks=len(training),
        held_out_blocks=len(held_out),
        token_bytes_on_disk=sum(file.stat().st_size for file in work.glob("*/*.arrow")),
        stages=tuple(stages.uses),
    )


def _stored(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, work: Path, name: str, *, held_out: bool
) -> TokenDataset:
    def rows() -> Iterator[TokenRow]:
        part = part_of(corpus, held_out=held_out)
        return pack_rows(part, tokenizer, tokenizer.model_max_length)

    return stored(rows, work / name, Padding.of(tokenizer))


def _train(
    examples: TokenDataset,
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainConfig,
    steps: int,
    work: Path,
) -> None:
    """Train as `pretrain` does, with the whole run laid out, and end after some steps."""
    chosen = objective_named(config.objective)
    objective = chosen.objective(tokenizer, config.mask_probability, config.seed)

    def ending(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step == steps:
            raise _EnoughError
        return objective(model, batch, step)

    torch.manual_seed(config.seed)
    model = chosen.model(encoder_config(config, tokenizer))
    with suppress(_EnoughError):
        train(model, examples, ending, config, work)


def run(
    out: Annotated[Path, typer.Option(help="the JSON to write")],
    tokenizers: Annotated[str, typer.Option(help="by commas")] = ",".join(TOKENIZERS),
    steps: Annotated[int, typer.Option(help="of the training")] = 5,
) -> None:
    """Measure each tokenizer's run in a process of its own, one after another."""
    root = data_directory()
    files = sorted((root / "wiki").glob("*.txt.xz")) if root else []
    if not files:
        raise ConfigError(f"set {DATA_VARIABLE} to a folder that holds wiki/*.txt.xz.")
    config = PretrainConfig(corpus=",".join(map(str, files)))
    with TemporaryDirectory() as work:
        runs = [
            _in_own_process(config.model_copy(update={"tokenizer": name}), steps, Path(work) / name)
            for name in tokenizers.split(",")
        ]
    found = survey(Corpus(config.corpus))
    benchmark = MemoryBenchmark(
        corpus=f"wiki: {', '.join(path.name for path in files)}",
        text_bytes=sum(len(passage.encode()) + 1 for passage in Corpus(config.corpus)),
        passages=found.passages,
        documents=found.documents,
        config=config.model_copy(update={"corpus": "wiki"}),
        steps=steps,
        note=NOTE,
        environment=environment(),
        runs=tuple(runs),
    )
    save_result(benchmark, out)


def _in_own_process(config: PretrainConfig, steps: int, work: Path) -> MemoryRun:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        use = pool.submit(measured, config, steps, work).result()
    typer.echo(use.model_dump_json(indent=1))
    return use


if __name__ == "__main__":
    typer.run(run)
