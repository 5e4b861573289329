"""tune: what `bertender tune` does."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.cache_folder import CACHE_VARIABLE
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import Bar, progress_bar
from bertender.core.saving import check_savable
from bertender.measure.load import busiest, check_load_now
from bertender.measure.runtimes import check_installed
from bertender.text.example import Example
from serve.profiles import ProfileKey, ServeProfile, profile_path, write_profile
from serve.tuning.choice import Choice, Tried, choose, scores_of, tried
from serve.tuning.config import TuneConfig
from serve.tuning.settings import SETTINGS
from serve.tuning.visits import SavedVisits, Visit, conditions_of, visit

__all__ = ["TuneResult", "tune"]

logger = logging.getLogger(__name__)


class TuneResult(Record):
    """The settings that were tried, with every measurement, and the profile."""

    tried: tuple[Tried, ...] = Field(description="the default of `serve` first")
    choice: Choice
    profile: ServeProfile
    path: str = Field(description="file of the profile")
    visits: tuple[Visit, ...]
    environment: Environment
    load: MachineLoad = Field(description="of the busiest visit")


def tune(
    artifact: Artifact, read: Callable[[int], Sequence[Example]], config: TuneConfig
) -> TuneResult:
    """Measure every setting on the real server, and write the profile of the best.

    Settings are served in turns, each once a round, in an order that is drawn anew. An interrupted
    run continues where it was.

    Args:
        artifact: an ONNX classifier.
        read: returns the texts to send, for so many texts that the model reads at once.
        config: what to try, and how.

    Raises:
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
        ServingError: a server does not start.
        ConfigError: the profile cannot be written.
    """
    check_installed(config.runtime)
    key = ProfileKey.of_card(artifact.card, config.runtime)
    path = profile_path(key)
    check_savable(f"{CACHE_VARIABLE}:", path, "JSON")
    if not config.noisy:
        check_load_now()
    visits = _visits(artifact, read(len(artifact.card.task.text_columns)), config, key)
    rows = tried(scores_of(visits, config.tried(key.machine.cores), config))
    choice = choose(rows, config)
    profile = _profile(key, choice, config, visits)
    write_profile(profile)
    _saved(path).unlink(missing_ok=True)
    return TuneResult(
        tried=tuple(rows),
        choice=choice,
        profile=profile,
        path=str(path),
        visits=tuple(visits),
        environment=environment(),
        load=busiest([each.load for each in visits]),
    )


def _saved(profile: Path) -> Path:
    """Return the file of the visits so far, next to that of the profile."""
    return profile.with_suffix(".visits")


def _visits(
    artifact: Artifact, texts: Sequence[Example], config: TuneConfig, key: ProfileKey
) -> list[Visit]:
    """Return a visit of every setting in every round; those of an earlier run are not repeated."""
    path, cores = _saved(profile_path(key)), key.machine.cores
    saved = SavedVisits.load(path, conditions_of(artifact, texts, key, config))
    places = _places(config, cores)
    with progress_bar("tune", total=len(places)) as bar:
        for name, number in places:
            if saved.of(name, number):
                bar.skip(1)
                continue
            _note(bar, name, number)
            settings = SETTINGS[name].of_cores(cores)
            saved = saved.with_visit(visit(artifact, texts, config, (name, number), settings), path)
            bar.advance()
    all_of_them = (saved.of(*place) for place in places)
    return [each for each in all_of_them if each is not None]


def _note(bar: Bar, name: str, number: int) -> None:
    bar.note(f"round {number + 1}: {name}")


def _places(config: TuneConfig, cores: int) -> list[tuple[str, int]]:
    """Return every setting in every round, each round in an order of its own."""
    names = config.tried(cores)
    draw = random.Random(config.seed)  # noqa: S311 - an order, no secret
    orders = [draw.sample(names, len(names)) for _ in range(config.rounds)]
    return [(name, number) for number, order in enumerate(orders) for name in order]


def _profile(
    key: ProfileKey, choice: Choice, config: TuneConfig, visits: Sequence[Visit]
) -> ServeProfile:
    return ServeProfile(
        key=key,
        setting=choice.setting,
        settings=SETTINGS[choice.setting].of_cores(key.machine.cores),
        reason=choice.reason,
        conditions=config.model_dump(mode="json"),
        noisy=any(each.load.noisy for each in visits),
    )
