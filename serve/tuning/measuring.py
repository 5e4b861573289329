"""Measuring settings in turns; every visit is saved, and a server that cannot start is noted."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.errors import ServerMissingError, ServingError
from bertender.core.progress import progress_bar
from bertender.text.example import Example
from serve.tuning.config import TuneConfig
from serve.tuning.settings import DEFAULT_SETTING, SETTINGS
from serve.tuning.visits import SavedVisits, Visit, visit

__all__ = ["Measuring"]

logger = logging.getLogger(__name__)


@dataclass
class Measuring:
    """The visits of a run, and what came of those that could not be made."""

    artifact: Artifact
    texts: Sequence[Example]
    config: TuneConfig
    cores: int
    path: Path
    """File of the visits so far."""
    saved: SavedVisits
    failures: dict[str, str] = field(default_factory=dict)
    """Name of a setting that could not be served -> why; a run that continues tries it again."""

    def visits(self, names: Sequence[str], rounds: range) -> list[Visit]:
        """Return a visit of every setting in every round; those of an earlier run are not repeated.

        Raises:
            ServingError: the server of the default cannot start, or ends, twice. Another setting
                whose server does so is left out.
            MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
        """
        places = self._places(names, rounds)
        with progress_bar("tune", total=len(places)) as bar:
            for name, number in places:
                if name in self.failures or self.saved.of(name, number):
                    bar.skip(1)
                    continue
                bar.note(f"round {number + 1}: {name}")
                self._visit(name, number)
                bar.advance()
        all_of_them = (self.saved.of(*place) for place in places)
        return [each for each in all_of_them if each is not None]

    def _visit(self, name: str, number: int) -> None:
        try:
            made = self._made(name, number)
        except ServingError as error:
            if name == DEFAULT_SETTING:
                raise
            self.failures[name] = str(error)
        else:
            self.saved = self.saved.with_visit(made, self.path)

    def _made(self, name: str, number: int) -> Visit:
        """Make a visit, or make it again: a port is taken in between, or a start is slow once."""
        settings = SETTINGS[name].of_cores(self.cores)
        make = partial(visit, self.artifact, self.texts, self.config, (name, number), settings)
        try:
            return make()
        except ServerMissingError:
            raise
        except ServingError as error:
            logger.warning("%s, round %d, is tried again: %s", name, number + 1, error)
            return make()

    def _places(self, names: Sequence[str], rounds: range) -> list[tuple[str, int]]:
        """Return every setting in every round, each round in an order of its own."""
        draw = random.Random(self.config.seed + rounds.start)  # noqa: S311 - an order, no secret
        orders = [draw.sample(names, len(names)) for _ in rounds]
        return [
            (name, number) for number, order in zip(rounds, orders, strict=True) for name in order
        ]
