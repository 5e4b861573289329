"""Visits: a server with some settings, measured once in a round, and saved for the next run."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.machine_load import MachineLoad
from bertender.core.saving import save_result
from bertender.measure.load import LoadMeter, check_load
from bertender.text.example import Example
from serve.config import ServeConfig
from serve.loadtest.measure import closed_runs
from serve.loadtest.records import LoadRun
from serve.loadtest.slow_servers import texts_per_second
from serve.profiles import ProfileKey, TunedSettings
from serve.server import serving
from serve.tuning.config import TuneConfig
from serve.tuning.objectives import Cell

__all__ = ["SavedVisits", "Visit", "conditions_of", "visit"]

logger = logging.getLogger(__name__)

NOT_MEASURED = ("settings", "objective", "slo_p99_ms", "rounds")
"""Settings of `tune` that change which visits there are, or what is made of them: not a visit."""


class Visit(Record):
    """Results of all loads on one server."""

    setting: str
    round: int
    cells: tuple[Cell, ...]
    load: MachineLoad


def visit(
    artifact: Artifact,
    texts: Sequence[Example],
    config: TuneConfig,
    place: tuple[str, int],
    settings: TunedSettings,
) -> Visit:
    """Serve an artifact with some settings on free ports, and measure every load.

    Args:
        artifact: what to serve.
        texts: what to send.
        config: the loads.
        place: the name of the settings, and the round.
        settings: of the server.

    Raises:
        ServingError: the server does not start.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    served = ServeConfig(http_port=0, metrics_port=0, runtime=config.runtime, **dict(settings))
    with serving(artifact, served) as server:
        meter = LoadMeter()
        runs = closed_runs(server.http_url, lambda columns: texts, config.loads())
        load = meter.stop()  # while the server is there: its time is not other work
    check_load(load, config.noisy)
    name, number = place
    return Visit(setting=name, round=number, cells=tuple(map(_cell, runs)), load=load)


def _cell(run: LoadRun) -> Cell:
    return Cell(
        concurrency=run.concurrency or 0,
        texts_per_request=run.texts_per_request,
        texts_per_second=texts_per_second(run),
        p50_ms=run.latency.p50_ms if run.latency else None,
        p99_ms=run.p99_ms,
    )


class SavedVisits(Record):
    """The visits of a run that has not ended, from which the same command continues."""

    conditions: str
    """See `conditions_of`."""
    visits: tuple[Visit, ...] = ()

    @classmethod
    def load(cls, path: Path, conditions: str) -> Self:
        """Return what an earlier run has saved; nothing where it is of other conditions."""
        try:
            saved = cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls(conditions=conditions)
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: every setting is measured anew", path)
            return cls(conditions=conditions)
        if saved.conditions != conditions:
            logger.info("%s is of another model, texts or loads: it is not used", path)
            return cls(conditions=conditions)
        return saved

    def of(self, setting: str, number: int) -> Visit | None:
        """Return the visit of a setting in a round."""
        place = (setting, number)
        return next((each for each in self.visits if (each.setting, each.round) == place), None)

    def with_visit(self, visit: Visit, path: Path) -> Self:
        """Return them with one more, saved."""
        more = self.model_copy(update={"visits": (*self.visits, visit)})
        save_result(more, path)
        return more


def conditions_of(
    artifact: Artifact, texts: Sequence[Example], key: ProfileKey, config: TuneConfig
) -> str:
    """Return a digest of all that a visit depends on."""
    measured = config.model_dump(mode="json", exclude=set(NOT_MEASURED))
    values = [artifact.digest, key.model_dump(mode="json", exclude_none=True), measured, texts]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
