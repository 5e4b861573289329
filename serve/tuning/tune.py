"""tune: what `bertender tune` does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.cache_folder import CACHE_VARIABLE
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.machine_load import MachineLoad
from bertender.core.saving import check_savable
from bertender.measure.load import busiest, check_load_now
from bertender.measure.runtimes import check_installed
from bertender.models.runtime_fit import check_suits
from bertender.text.example import Example
from serve.profiles import ProfileKey, ServeProfile, profile_path, write_profile
from serve.tuning.choice import Choice, Tried, choose, confirmed, scores_of, tried
from serve.tuning.config import TuneConfig
from serve.tuning.measuring import Measuring
from serve.tuning.settings import DEFAULT_SETTING, SETTINGS
from serve.tuning.visits import SavedVisits, Visit, conditions_of

__all__ = ["TuneResult", "tune"]

logger = logging.getLogger(__name__)


class TuneResult(Record):
    """The settings that were tried, with every measurement, and the profile."""

    tried: tuple[Tried, ...] = Field(description="the default of `serve` first")
    fresh: tuple[Tried, ...] = Field(
        description="the default and the fastest, measured once more; the ratio is that of these "
        "rounds, since those that chose a setting flatter it. Empty where the default was chosen"
    )
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

    Settings are served in turns, each once a round, in an order that is drawn anew. The fastest and
    the default then have as many rounds once more, which confirm the choice or not. An interrupted
    run continues where it was.

    Args:
        artifact: an ONNX classifier.
        read: returns the texts to send, for so many texts that the model reads at once.
        config: what to try, and how.

    Raises:
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
        ServingError: the server of the default does not start; another setting whose server does
            not has no score, and the reason.
        ConfigError: the profile cannot be written.
    """
    check_installed(config.runtime)
    check_suits(config.runtime, artifact)
    key = ProfileKey.of_card(artifact.card, config.runtime)
    path = profile_path(key)
    check_savable(f"{CACHE_VARIABLE}:", path, "JSON")
    if not config.noisy:
        check_load_now()
    names = config.tried(key.machine.cores)
    measuring = _measuring(artifact, read(len(artifact.card.task.text_columns)), config, key)
    rows, visits = _rows(measuring, names, first_round=0)
    choice = choose(rows, config)
    fresh: list[Tried] = []
    if choice.setting != DEFAULT_SETTING:
        both = (DEFAULT_SETTING, choice.setting)
        fresh, more = _rows(measuring, both, first_round=config.rounds)
        choice, visits = confirmed(choice, rows, fresh, config), [*visits, *more]
    profile = _profile(key, choice, config, visits)
    write_profile(profile)
    _saved(path).unlink(missing_ok=True)
    return TuneResult(
        tried=tuple(rows),
        fresh=tuple(fresh),
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


def _measuring(
    artifact: Artifact, texts: Sequence[Example], config: TuneConfig, key: ProfileKey
) -> Measuring:
    path = _saved(profile_path(key))
    saved = SavedVisits.load(path, conditions_of(artifact, texts, key, config))
    return Measuring(artifact, texts, config, key.machine.cores, path, saved)


def _rows(
    measuring: Measuring, names: Sequence[str], first_round: int
) -> tuple[list[Tried], list[Visit]]:
    """Measure some settings in as many rounds as the config says, from one on."""
    config = measuring.config
    visits = measuring.visits(names, range(first_round, first_round + config.rounds))
    return tried(scores_of(visits, names, config), measuring.failures), visits


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
