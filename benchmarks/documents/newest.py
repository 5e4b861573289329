"""NEWEST: measurements that are repeated; a document shows the newest of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bad_clients.table import bad_clients_block
from benchmarks.compression.table import compression_block
from benchmarks.documents.block import RESULTS, ROOT, Block, of_one
from benchmarks.documents.readings.demo import demo_reading
from benchmarks.documents.tune_table import tune_block
from benchmarks.endpoint.table import endpoint_block
from benchmarks.foreign_load.table import foreign_load_block
from benchmarks.new_lengths.table import new_lengths_block
from benchmarks.objectives.table import objectives_block
from benchmarks.profiles.table import profile_block
from benchmarks.replicas.table import replicas_block
from benchmarks.request_costs.table import request_costs_block
from benchmarks.rivals.table import rivals_block
from benchmarks.serving.table import serving_block
from benchmarks.soak.table import soak_block
from benchmarks.startup.table import startup_block
from benchmarks.students.table import students_block

__all__ = ["NEWEST", "Newest", "newest_blocks"]


@dataclass(frozen=True)
class Newest:
    """A row of NEWEST."""

    write: Callable[[str, Path], str]
    """name and place of the file -> Markdown"""
    document: str = "docs/serving.md"


NEWEST: Mapping[str, Newest] = {
    "docs-demo": Newest(demo_reading, "README.md"),
    "endpoint": Newest(endpoint_block),
    "serving": Newest(serving_block),
    "startup": Newest(startup_block),
    "soak": Newest(soak_block),
    "bad-clients": Newest(bad_clients_block),
    "bad-clients-nginx": Newest(bad_clients_block),
    "replicas": Newest(replicas_block),
    "foreign-load": Newest(foreign_load_block),
    "request-costs": Newest(request_costs_block),
    "tune": Newest(tune_block),
    "rivals": Newest(rivals_block, "docs/comparing.md"),
    "rivals-pairs": Newest(rivals_block, "docs/comparing.md"),
    "profiles": Newest(profile_block, "docs/runtimes.md"),
    "new-lengths": Newest(new_lengths_block, "docs/runtimes.md"),
    "students": Newest(students_block, "docs/results.md"),
    "objectives": Newest(objectives_block, "docs/pretraining.md"),
    "sst2-compression": Newest(compression_block, "docs/systems.md"),
    "cola-compression": Newest(compression_block, "docs/systems.md"),
    "mrpc-compression": Newest(compression_block, "docs/systems.md"),
    "mrpc-again": Newest(compression_block, "docs/systems.md"),
    "cola-same-start": Newest(compression_block, "docs/systems.md"),
    "mrpc-same-start": Newest(compression_block, "docs/systems.md"),
}
"""Measurements of one model among others: name of the block and of its files -> its table."""


def newest_blocks(results: Path = ROOT / RESULTS) -> dict[str, Block]:
    """Return the blocks of the newest `DAY-...-NAME-cpu.json` of each row of NEWEST.

    One without a file has no block yet; its marks in the document stay empty until then.
    """
    blocks = {}
    for name, row in NEWEST.items():
        if files := sorted(path.name for path in results.glob(f"*-{name}-cpu.json")):
            file = f"{RESULTS}/{files[-1]}"
            blocks[name] = Block(row.document, (file,), of_one(row.write))
    return blocks
