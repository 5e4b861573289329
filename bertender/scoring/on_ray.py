"""Parts of a job as the tasks of a ray cluster, by a pool of actors with a model each.

What a task gives back is the record of a part, which is on disk by then. A task that is lost with
its worker is run again by ray, and writes the same part.
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
"""The row of RUNTIMES that takes a GPU."""


class PartScorer:
    """Computes the parts that batches name; an actor of ray."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the records of the parts, or the message of an error; the batch is not written
        into, as its arrays are shared memory."""
        records, errors = [], []
        for number in batch["part"].tolist():
            try:
                (record,) = self.job.compute([number], Bar())
                records.append(record.model_dump_json())
                errors.append("")
            except BertenderError as error:  # ray's own would have this one's traceback as message
                records.append("")
                errors.append(str(error))
        return {"record": np.array(records), "error": np.array(errors)}


def run_on_ray(job: Job, numbers: Sequence[int], bar: Bar) -> Iterator[PartRecord]:
    """Compute parts on a cluster; yield the record of each as it is done.

    Raises:
        RuntimeMissingError: ray is not installed.
        BertenderError: what went wrong in a worker.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # ray reads it when it starts
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
