"""A process that has one rival open: `python -m benchmarks.rivals.worker`, in its own environment.

The first line of standard input has what to open, and where: `opens` (module:function) with the
fields of `Opening`, and `packages`, whose versions are the line that follows. Each further line is
{"predict": examples}, followed by their probabilities, or {"singles": examples, "batch": examples,
"warmup": number}, followed by the milliseconds of each single one and of the batch.
It imports nothing that the rival does not.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.rivals.opening import Example, Opening, Predict

__all__ = ["Timer", "main", "opened", "versions_of"]


def opened(request: Mapping[str, Any]) -> Predict:
    """Open the model of a request."""
    module, _, function = request["opens"].partition(":")
    opening = Opening(
        folder=Path(request["folder"]),
        threads=request["threads"],
        max_length=request["max_length"],
        settings=request["settings"],
    )
    predict: Predict = getattr(importlib.import_module(module), function)(opening)
    return predict


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that are installed here."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


class Timer:
    """Times a model a turn at a time, examples in and probabilities out."""

    def __init__(self, predict: Predict) -> None:
        self.predict = predict
        self._prepared: set[tuple[tuple[str, ...], ...]] = set()

    def take(
        self, singles: Sequence[Example], batch: Sequence[Example], warmup: int
    ) -> tuple[Any, float]:
        """Return the milliseconds of each single example, and of the batch.

        Everything runs once before it is timed, since some libraries compile for a shape; then
        `warmup` examples let the row before leave the caches.
        """
        for examples in (*([single] for single in singles), batch):
            self._prepare(examples)
        for single in singles[:warmup]:
            self.predict([single])
        return [self._time_ms([single]) for single in singles], self._time_ms(batch)

    def _prepare(self, examples: Sequence[Example]) -> None:
        key = tuple(map(tuple, examples))
        if key not in self._prepared:
            self._prepared.add(key)
            self.predict(examples)

    def _time_ms(self, examples: Sequence[Example]) -> float:
        started = time.perf_counter_ns()
        self.predict(examples)
        return round((time.perf_counter_ns() - started) / 1e6, 4)


def main() -> None:
    """Open a rival, and do what is asked for until the input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as results:
        os.dup2(2, 1)  # what libraries print is not a result
        assert isinstance(sys.stdin, io.TextIOWrapper)
        sys.stdin.reconfigure(encoding="utf-8")  # whatever the locale is
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it sends events
        request = json.loads(sys.stdin.readline())
        predict = opened(request)
        timer = Timer(predict)
        gc.collect()
        gc.disable()
        print(json.dumps(versions_of(request["packages"])), file=results)
        for line in sys.stdin:
            print(json.dumps(_result(json.loads(line), predict, timer)), file=results)


def _result(asked: Mapping[str, Any], predict: Predict, timer: Timer) -> Any:
    if "predict" in asked:
        return [[float(each) for each in row] for row in predict(asked["predict"])]
    return timer.take(asked["singles"], asked["batch"], asked["warmup"])


if __name__ == "__main__":
    main()
