"""Parts of a job as tasks of a ray cluster, computed by a pool of actors with a model each.

A task returns the record of a part that is already on disk. If a task is lost with its worker, ray
runs it again, which writes the same part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertender.core.errors import BertenderError, RuntimeMissingError
from bertender.core.progress import Bar
from bertender.scoring.job import Job, PartRecord

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
