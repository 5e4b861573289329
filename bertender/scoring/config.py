"""Settings of `score`, readable without PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from bertender.core.config import Config
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, RuntimeName

SHARD = re.compile(r"(\d+)/(\d+)")
MACHINE = ("shard", "engine", "workers", "threads", "tokens_per_batch")
"""Settings that may differ between processes that write to the same folder."""


class ScoreConfig(Config):
    """Which texts of a file to predict, in which form, and which share of the work."""

    panel: ClassVar[str] = "Texts"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Parts": ("format", "texts_per_part", "prefix", "shard"),
        "Machine": ("engine", "workers", "runtime", "threads", "tokens_per_batch", "max_length"),
    }
    main: ClassVar[tuple[str, ...]] = ("text_column", "format", "shard")

    text_column: str | None = Field(
        None, description="column of the text in the file; by default that of the model's task"
    )
    pair_column: str | None = Field(
        None, description="column of the second text, of choices or of passages; likewise"
    )
    skip_bad_rows: bool = Field(
        False, description="leave out rows of the file that cannot be used, and list them"
    )
    format: Literal["jsonl", "parquet"] = Field("jsonl", description="of the parts")
    texts_per_part: int = Field(
        10_000,
        ge=1,
        description="rows of the file in a part, which is written whole or not at all, and in "
        "memory until then",
    )
    prefix: str = Field(
        "", description="begins the names of the columns of predictions, where the file has them"
    )
    shard: str | None = Field(
        None,
        description="compute every n-th part alone: 1/4 to 4/4 for four processes or machines that "
        "share the folder",
    )
    engine: Literal["local", "ray"] = Field(
        "local",
        description="ray: on the cluster that RAY_ADDRESS names, or on one of this machine; its "
        "machines share the files and the folder",
    )
    workers: int | None = Field(
        None, ge=1, description="of ray, a model each; by default as many as there are cores for"
    )
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME, description=f"of an onnx artifact: {', '.join(RUNTIMES)}"
    )
    threads: int = Field(0, ge=0, description="of a model; 0: OMP_NUM_THREADS, or every core")
    tokens_per_batch: int = Field(
        4096, ge=1, description="most tokens of a batch, padding included; more suits a GPU"
    )
    max_length: int | None = Field(
        None, ge=1, description="longest input in tokens; by default the model's"
    )

    @field_validator("shard")
    @classmethod
    def _is_a_share(cls, value: str | None) -> str | None:
        match = SHARD.fullmatch(value or "1/1")
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{value!r} is not a shard. Give NUMBER/OF, such as 1/4 to 4/4")
        return value

    @property
    def share(self) -> tuple[int, int]:
        """The number of the shard, from 1, and the number of shards."""
        number, count = (self.shard or "1/1").split("/")
        return int(number), int(count)
