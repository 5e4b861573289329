"""Scoring: predictions for the texts of a source, by the engine in the settings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.card import LeftOutRows
from bertender.core.config import Record
from bertender.core.progress import Bar, progress_bar
from bertender.scoring.config import ScoreConfig
from bertender.scoring.job import Job, PartRecord
from bertender.tasks.rows import together


class ScoreRun(Record):
    """The output of a run, and whether it is complete."""

    out: str
    shard: str
    parts: int = Field(description="of this shard")
    resumed: int = Field(description="parts of an earlier run among them")
    texts: int = Field(description="predictions in them")
    truncated: int
    blank: int
    left_out: LeftOutRows | None
    complete: bool = Field(description="whether every part of every shard is there")
    parts_done: int = Field(description="of all shards")
    parts_in_all: int
    texts_per_s: float | None = Field(description="of what this run computed; None of nothing")


def score(artifact: Artifact, source: str, out: Path, config: ScoreConfig, force: bool) -> ScoreRun:
    """Write the predictions for the texts of a source that earlier runs have not written.

    Args:
        artifact: artifact of the model.
        source: a file, a folder of files, or a pattern.
        out: folder for the parts.
        config: settings of `score`.
        force: start again over the parts of another command.

    Raises:
        ConfigError: the folder has the parts of another command, or other files; or a column has
            the name of a prediction column.
        DataError: a file cannot be read, or a row cannot be used and `skip_bad_rows` is not set.
        ModelError: the model cannot be opened, or its logits are not finite.
    """
    job = Job.begin(artifact, source, out, config, force)
    own = job.own_parts()
    done = job.records()
    missing = [number for number in own if number not in done]
    if missing and config.engine == "local":
        assert job.scorer.classifier  # opened here, so that rates exclude its time
    started, computed = time.monotonic(), 0
    rows = sum(job.size_of(number) for number in own)
    with progress_bar(f"score {out.name}", rows, "texts") as bar:
        bar.skip(rows - sum(job.size_of(number) for number in missing))
        for record in _computed(job, missing, bar):
            done[record.number] = record
            computed += record.texts
    took_s = time.monotonic() - started
    records = [done[number] for number in own]
    everywhere = job.finish()
    return ScoreRun(
        out=str(out),
        shard="{}/{}".format(*config.share),
        parts=len(own),
        resumed=len(own) - len(missing),
        texts=sum(each.texts for each in records),
        truncated=sum(each.truncated for each in records),
        blank=sum(each.blank for each in records),
        left_out=together(*(each.left_out for each in records)),
        complete=everywhere == job.manifest.parts,
        parts_done=everywhere,
        parts_in_all=job.manifest.parts,
        texts_per_s=computed / took_s if computed else None,
    )


def _computed(job: Job, numbers: Sequence[int], bar: Bar) -> Iterator[PartRecord]:
    """Compute parts; yield the record of each finished part."""
    if not numbers:
        return iter(())
    if job.config.engine == "ray":
        from bertender.scoring.on_ray import run_on_ray  # imports ray

        return run_on_ray(job, numbers, bar)
    return job.compute(numbers, bar)
