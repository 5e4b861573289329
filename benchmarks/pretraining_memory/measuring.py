"""Measures what memory pre-training takes on a corpus: its vocabulary, its tokens, some steps.

    python -m benchmarks.pretraining_memory --out FILE.json [--tokenizers wordpiece,bpe,unigram]

Each tokenizer has a process of its own, which goes through the parts of `bertender pretrain` and
ends the training after a few steps. The corpus is the folder `wiki` of $BERTENDER_DATA.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import torch
import typer
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from benchmarks.common.options import OutFile, names_in
from bertender.core.config import Record
from bertender.core.environment import DATA_VARIABLE, Environment, data_directory, environment
from bertender.core.errors import ConfigError
from bertender.core.saving import save_result
from bertender.training.examples import Padding, TokenDataset
from bertender.training.loop import train
from distill.corpora.corpus import Corpus, survey
from distill.corpora.token_store import TokenRow, stored_parts
from distill.objectives import OBJECTIVES, PretrainingObjective
from distill.pretraining.pretrain import PretrainConfig, encoder_config
from distill.vocabularies import TOKENIZERS

__all__ = ["MemoryBenchmark", "MemoryRun", "StageUse", "measured"]

Made = TypeVar("Made")

NOTE = (
    "memory is what is measured; the seconds are those of a machine with other work on it, and "
    "cpu_seconds of all threads together"
)


class StageUse(Record):
    """Memory that the process had used when a stage ended."""

    stage: str
    seconds: float = Field(description="of the wall clock, in this stage")
    cpu_seconds: float = Field(description="of the processor, in this stage")
    peak_resident_bytes: int = Field(description="of the process so far, as the system counts it")


class MemoryRun(Record):
    """One tokenizer's way through the corpus."""

    tokenizer: str
    entries: int = Field(description="of the vocabulary")
    training_rows: int
    held_out_rows: int
    bytes_of_rows: int = Field(description="on disk")
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
    surveyed = stages.run("reading", lambda: survey(corpus))
    kind, objective = TOKENIZERS[config.tokenizer], OBJECTIVES[config.objective]
    tokenizer = stages.run(
        "vocabulary", lambda: kind.train(corpus, config.vocabulary_size, config.max_length)
    )
    rows = partial(_rows, objective, tokenizer, config)
    padding, together = Padding.of(tokenizer), objective.held_out_run
    training, held_out = stages.run(
        "rows", lambda: stored_parts(corpus, surveyed, rows, work, padding, together)
    )
    stages.run(
        f"{steps} steps", lambda: _train(objective, training, tokenizer, config, work, steps)
    )
    return MemoryRun(
        tokenizer=config.tokenizer,
        entries=len(tokenizer),
        training_rows=len(training),
        held_out_rows=len(held_out),
        bytes_of_rows=sum(file.stat().st_size for file in work.glob("*/*.arrow")),
        stages=tuple(stages.uses),
    )


def _rows(
    objective: PretrainingObjective,
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainConfig,
    passages: Iterable[str],
) -> Iterator[TokenRow]:
    return objective.rows(passages, tokenizer, config.max_length, config.seed)


def _train(
    objective: PretrainingObjective,
    examples: TokenDataset,
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainConfig,
    work: Path,
    steps: int,
) -> None:
    """Train some steps as `pretrain` does, with the whole run laid out."""
    torch.manual_seed(config.seed)
    trained = objective.pretraining_module(objective.model(encoder_config(config, tokenizer)))
    minimised = objective.objective(tokenizer, config.mask_probability, config.seed)
    train(trained, examples, minimised, config, work, steps=steps)


def run(
    out: OutFile,
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
            for name in names_in("--tokenizers", tokenizers, required=True)
        ]
    surveyed = survey(Corpus(config.corpus))
    benchmark = MemoryBenchmark(
        corpus=f"wiki: {', '.join(path.name for path in files)}",
        text_bytes=sum(len(passage.encode()) + 1 for passage in Corpus(config.corpus)),
        passages=surveyed.passages,
        documents=surveyed.documents,
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
