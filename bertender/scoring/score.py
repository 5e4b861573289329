"""Scoring: predictions for the texts of a source, by the engine in the settings.

On a ray cluster, a part of the job is a task, computed by a pool of actors with a model each. A
task returns the record of a part that is already on disk. If a task is lost with its worker, ray
runs it again, which writes the same part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.card import LeftOutRows
from bertender.core.config import Record
from bertender.core.errors import BertenderError, RuntimeMissingError
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
        compute = run_on_ray if config.engine == "ray" else Job.compute
        for record in compute(job, missing, bar) if missing else ():
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


ON_GPU = "onnxruntime-cuda"
"""The row of RUNTIMES that needs a GPU."""


class PartScorer:
    """Computes the parts in a batch; an actor of ray."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the records of the parts, or an error message; the batch is not modified, since
        its arrays are shared memory."""
        records, errors = [], []
        for number in batch["part"].tolist():
            try:
                (record,) = self.job.compute([number], Bar())
                records.append(record.model_dump_json())
                errors.append("")
            except BertenderError as error:  # ray's error would have a traceback as message
                records.append("")
                errors.append(str(error))
        return {"record": np.array(records), "error": np.array(errors)}


def run_on_ray(job: Job, numbers: Sequence[int], bar: Bar) -> Iterator[PartRecord]:
    """Compute parts on a cluster; yield each finished part's record.

    Raises:
        RuntimeMissingError: ray is not installed.
        BertenderError: an error in a worker.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray starts
    try:
        import ray
        import ray.data
    except ModuleNotFoundError:
        raise RuntimeMissingError(
            "--engine ray needs the package 'ray', which is not installed: pip install "
            "'bertender[ray]'"
        ) from None
    began = not ray.is_initialized()
    if began:
        ray.init(log_to_driver=False, logging_level="warning", include_dashboard=False)
    try:
        cores = job.config.threads or 1
        most = int(ray.cluster_resources().get("CPU", 1)) // cores
        workers = min(job.config.workers or max(most, 1), len(numbers))
        ray.data.DataContext.get_current().enable_progress_bars = False
        parts = ray.data.from_items(
            [{"part": number} for number in numbers], override_num_blocks=len(numbers)
        )
        records = parts.map_batches(
            PartScorer,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            fn_constructor_kwargs={"job": job},
            num_cpus=cores,
            num_gpus=1 if job.config.runtime == ON_GPU else 0,
        )
        for row in records.iter_rows():
            if row["error"]:
                raise BertenderError(row["error"])
            record = PartRecord.model_validate_json(row["record"])
            bar.advance(record.rows)
            yield record
    finally:
        if began:
            ray.shutdown()
