"""`bertender tune`: find the settings of `serve` that are fastest on this machine.

Settings are served in turns, each once per round, under the same loads. The fastest setting that
beats the default beyond chance is chosen, if fresh rounds confirm it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from bertender.core.artifact import Artifact
from bertender.core.config import Record, Rule, Table, parts_of
from bertender.core.errors import ServerMissingError, ServingError
from bertender.core.files import save_result
from bertender.core.machine import (
    Environment,
    LoadMeter,
    MachineLoad,
    Speedup,
    busiest,
    check_load,
    check_load_now,
    environment,
)
from bertender.core.progress import progress_bar
from bertender.models.runtimes import (
    DEFAULT_RUNTIME,
    RUNTIMES,
    RuntimeName,
    check_installed,
    check_suits,
)
from bertender.problems import PROBLEMS
from bertender.text.batch import Example
from serve.config import ServeConfig
from serve.loadtest import LoadConfig, Read, TextsConfig, closed_runs, texts_per_second
from serve.profiles import MachineKey, ModelShape, ServeProfile, TunedSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """A row of SETTINGS."""

    summary: str
    settings: TunedSettings
    counted: str = ""
    """Name of the setting that grows with the cores: one per `cores_each`."""
    cores_each: int = 1
    least_cores: int = 1
    """With fewer cores, it is the same as another row."""

    def of_cores(self, cores: int, runtime: str = DEFAULT_RUNTIME) -> TunedSettings:
        """Return the settings for this many cores."""
        counted = {self.counted: cores // self.cores_each} if self.counted else {}
        return self.settings.model_copy(update={**counted, "runtime": runtime})


DEFAULT_SETTING = "one-instance"

SETTINGS = Table(
    "setting",
    {
        DEFAULT_SETTING: Setting(
            "one copy of the model, whose runs have all cores, small ones one: the default of "
            "`serve`",
            TunedSettings(),
        ),
        "one-thread": Setting(
            "one copy, whose runs have one thread",
            TunedSettings(threads_per_instance=1),
            least_cores=2,
        ),
        "concurrent-buckets": Setting(
            "one copy, as many buckets at once as there are cores, one thread each",
            TunedSettings(threads_per_instance=1),
            counted="concurrent_buckets",
            least_cores=2,
        ),
        "concurrent-small-buckets": Setting(
            "the same with half the tokens in a bucket, so that small batches have several",
            TunedSettings(threads_per_instance=1, tokens_per_bucket=64),
            counted="concurrent_buckets",
            least_cores=2,
        ),
        "instances": Setting(
            "a copy for each core, with one thread",
            TunedSettings(threads_per_instance=1),
            counted="instances",
            least_cores=2,
        ),
        "half-instances": Setting(
            "a copy for every two cores, with two threads",
            TunedSettings(threads_per_instance=2),
            counted="instances",
            cores_each=2,
            least_cores=4,
        ),
        "small-buckets": Setting(
            "the default with half the tokens in a bucket",
            TunedSettings(tokens_per_bucket=128),
            least_cores=2,
        ),
        "large-buckets": Setting(
            "the default with twice the tokens in a bucket", TunedSettings(tokens_per_bucket=512)
        ),
    },
)
"""The first row is the default that the others are compared with."""


class Cell(Record):
    """Results for a load in a round."""

    concurrency: int
    texts_per_request: int
    texts_per_second: float
    p50_ms: float | None = Field(description="of requests with a response; None where none has")
    p99_ms: float | None = Field(
        description="of all requests; None where more than 1 % have no response"
    )


@dataclass(frozen=True)
class Objective:
    """A row of TUNE_OBJECTIVES."""

    summary: str
    holds_p99: bool = False
    """Whether only loads within the p99 limit count."""

    def score(self, cells: Sequence[Cell], slo_p99_ms: float) -> float:
        """Return texts/s: the best load for each request size, then the geometric mean over sizes.

        0 if no load counts for some size.
        """
        best = {cell.texts_per_request: 0.0 for cell in cells}
        for cell in cells:
            p99_ms = math.inf if cell.p99_ms is None else cell.p99_ms
            if p99_ms <= slo_p99_ms or not self.holds_p99:
                size = cell.texts_per_request
                best[size] = max(best[size], cell.texts_per_second)
        return statistics.geometric_mean(best.values()) if all(best.values()) else 0.0


TUNE_OBJECTIVES = Table(
    "objective",
    {
        "throughput": Objective("texts a second, whatever the latency"),
        "p99": Objective(
            "texts a second of the loads whose p99 holds --slo-p99-ms", holds_p99=True
        ),
    },
)
"""Measures for comparing settings."""

T_975: Mapping[int, float] = {
    **{3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262},
    **{11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131, 17: 2.120},
    **{18: 2.110, 19: 2.101, 20: 2.093},
}
"""Rounds -> 97.5th percentile of Student's t with one degree of freedom less, from tables: the
extra `serve` has no scipy."""

LEAST_ROUNDS, MOST_ROUNDS = min(T_975), max(T_975)


def mean_over_rounds(values: Sequence[float]) -> Speedup:
    """Return the mean of one value per round, with the 95 % interval of Student's t.

    Each round starts its servers anew, so that the interval includes differences between processes.

    Args:
        values: values of LEAST_ROUNDS to MOST_ROUNDS rounds.
    """
    mean = statistics.fmean(values)
    half = T_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return Speedup(value=mean, low=mean - half, high=mean + half)


def ratio_over_rounds(references: Sequence[float], candidates: Sequence[float]) -> Speedup:
    """Return the ratio of a candidate's score to the reference's: the geometric mean over rounds.

    Args:
        references: scores above 0, one for each of LEAST_ROUNDS to MOST_ROUNDS rounds.
        candidates: scores in the same rounds.
    """
    logs = [math.log(ours / theirs) for theirs, ours in zip(references, candidates, strict=True)]
    ends = {name: math.exp(value) for name, value in mean_over_rounds(logs)}
    return Speedup(**ends)


TIMEOUT_S = 120.0
"""Timeout of a request, long enough for a slow model on a slow machine."""

Positive = Annotated[int, Field(ge=1, le=500)]
Counts = Annotated[tuple[Positive, ...], BeforeValidator(parts_of), Field(min_length=1)]


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        SETTINGS[name]
    return names


class TuneConfig(TextsConfig):
    """Settings to try, their loads, and the measure to compare them."""

    panel: ClassVar[str] = "Load"
    main: ClassVar[tuple[str, ...]] = ("settings", "objective", "slo_p99_ms", "rounds", "runtime")
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "a limit that nothing reads": Rule(
            lambda config: config.objective != "p99",
            "it is what --objective p99 holds. Give that as well, or leave this out.",
            settings=frozenset({"slo_p99_ms"}),
        ),
    }

    settings: Annotated[tuple[str, ...], BeforeValidator(parts_of), AfterValidator(_known)] = Field(
        tuple(SETTINGS),
        description=f"what to try; {DEFAULT_SETTING}, the default of `serve`, always is",
    )
    objective: Annotated[str, TUNE_OBJECTIVES.validator()] = Field(
        "throughput",
        description="; ".join(f"{name}: {row.summary}" for name, row in TUNE_OBJECTIVES.items()),
    )
    slo_p99_ms: float = Field(50.0, gt=0, description="p99 that must hold, in milliseconds")
    concurrency: Counts = Field((1, 8), description="clients at a time, by commas")
    texts_per_request: Counts = Field((1, 16), description="texts in each request, by commas")
    rounds: int = Field(
        5,
        ge=LEAST_ROUNDS,
        le=MOST_ROUNDS,
        description="how often each setting is served and measured, in turns with the others",
    )
    duration_s: float = Field(1.5, gt=0, description="measured seconds of each load in a round")
    warmup_s: float = Field(0.5, ge=0, description="seconds of the same load before them")
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME, description=f"the runtime of the model: {', '.join(RUNTIMES)}"
    )
    seed: int = Field(0, ge=0, description="which texts are drawn")
    noisy: bool = Field(
        False, description="measure on a busy machine as well, and mark the profile as noisy"
    )

    def loads(self) -> list[LoadConfig]:
        """Return the loads of a round, all of which each setting gets."""
        return [
            LoadConfig(
                concurrency=concurrency,
                texts_per_request=texts,
                duration_s=self.duration_s,
                warmup_s=self.warmup_s,
                timeout_s=TIMEOUT_S,
                seed=self.seed,
            )
            for texts in self.texts_per_request
            for concurrency in self.concurrency
        ]

    def tried(self, cores: int) -> tuple[str, ...]:
        """Return the settings to try with this many cores, the default first."""
        names = dict.fromkeys((DEFAULT_SETTING, *self.settings))
        return tuple(name for name in names if SETTINGS[name].least_cores <= cores)


class Visit(Record):
    """A server with some settings, measured once in a round under all loads."""

    setting: str
    round: int
    cells: tuple[Cell, ...]
    load: MachineLoad


class Tried(Record):
    """A setting, over all rounds."""

    name: str
    texts_per_second: float | None = Field(
        description="by the objective, the geometric mean over rounds; None where the p99 does not "
        "hold in some round, or where it could not be served"
    )
    against_default: Speedup | None = Field(
        description="over the default's in the same round; None of the default itself, and where "
        "one of the two has none"
    )
    failure: str | None = Field(None, description="why it could not be served")


class Choice(Record):
    """A row of SETTINGS, and a sentence with the reason."""

    setting: str
    reason: str


class TuneResult(ServeProfile):
    """The profile of the chosen settings, and all measurements of the tried ones."""

    tried: tuple[Tried, ...] = Field(description="the default of `serve` first")
    fresh: tuple[Tried, ...] = Field(
        description="the default and the fastest, measured once more; the ratio is that of these "
        "rounds, since those that chose a setting flatter it. Empty where the default was chosen"
    )
    choice: Choice
    conditions: dict[str, Any] = Field(description="settings of `bertender tune`")
    visits: tuple[Visit, ...]
    environment: Environment
    load: MachineLoad = Field(description="of the busiest visit")


def tune(
    artifact: Artifact,
    read: Read,
    config: TuneConfig,
    out: Path | None = None,
) -> TuneResult:
    """Measure every setting on the real server, and return the best as a profile.

    Settings are served in turns, each once per round, in a random order. Then the fastest and the
    default have as many rounds again, which confirm the choice or not.

    Args:
        artifact: an ONNX classifier.
        read: returns the texts to send, given how many the model reads at once.
        config: settings to try, and loads.
        out: file to write; an interrupted run with the same file continues.

    Raises:
        MachineBusyError: other work disturbs the figures, and the config does not allow noisy ones.
        ServingError: the server with the default does not start; other settings whose server does
            not start have no score, but the reason.
    """
    check_installed(config.runtime)
    check_suits(config.runtime, artifact)
    machine = MachineKey.of_this_machine(ServeConfig(runtime=config.runtime))
    model = ModelShape.of_card(artifact.card)
    if not config.noisy:
        check_load_now()
    problem = PROBLEMS[artifact.card.task.problem_type]
    texts = read(len(problem.asked_columns(artifact.card.task.text_columns)), problem)
    saved = SavedVisits.load(
        out and out.with_name(f"{out.name}.visits"), _conditions(artifact, texts, machine, config)
    )
    measuring = Measuring(artifact, texts, config, machine.cores, saved)
    rows, visits = measuring.rows(config.tried(machine.cores), first_round=0)
    choice = choose(rows, config)
    fresh: list[Tried] = []
    if choice.setting != DEFAULT_SETTING:
        both = (DEFAULT_SETTING, choice.setting)
        fresh, more = measuring.rows(both, first_round=config.rounds)
        choice, visits = confirmed(choice, rows, fresh, config), [*visits, *more]
    result = TuneResult(
        settings=SETTINGS[choice.setting].of_cores(machine.cores, config.runtime),
        machine=machine,
        model=model,
        noisy=any(each.load.noisy for each in visits),
        conditions=config.model_dump(mode="json"),
        tried=tuple(rows),
        fresh=tuple(fresh),
        choice=choice,
        visits=tuple(visits),
        environment=environment(),
        load=busiest([each.load for each in visits]),
    )
    if out:
        save_result(result, out)
    saved.remove()
    return result


NOT_MEASURED = ("settings", "objective", "slo_p99_ms", "rounds")
"""Settings of `tune` that affect the number or the use of visits, but not a visit."""


def _conditions(
    artifact: Artifact, texts: Sequence[Example], machine: MachineKey, config: TuneConfig
) -> str:
    """Return a digest of everything that a visit depends on."""
    measured = config.model_dump(mode="json", exclude=set(NOT_MEASURED))
    values = [artifact.digest, machine.model_dump(mode="json"), measured, texts]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


class Visits(Record):
    """The content of the file of `SavedVisits`."""

    conditions: str
    visits: tuple[Visit, ...] = ()


class SavedVisits:
    """The visits of an unfinished run, from which the same command continues.

    Without a file, they are kept only during the run.
    """

    def __init__(self, path: Path | None, conditions: str, visits: Sequence[Visit] = ()) -> None:
        self.path = path
        self.conditions = conditions
        self.by_place = {(each.setting, each.round): each for each in visits}
        """Name of a setting and number of a round -> visit."""

    @classmethod
    def load(cls, path: Path | None, conditions: str) -> Self:
        """Return the visits saved by an earlier run; empty if its conditions differ."""
        if path is None:
            return cls(path, conditions)
        try:
            saved = Visits.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls(path, conditions)
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: every setting is measured anew", path)
            return cls(path, conditions)
        if saved.conditions != conditions:
            logger.info(
                "%s is of another machine, server, model, texts or loads: it is not used", path
            )
            return cls(path, conditions)
        return cls(path, conditions, saved.visits)

    def add(self, visit: Visit) -> None:
        self.by_place[visit.setting, visit.round] = visit
        if self.path:
            visits = tuple(self.by_place.values())
            save_result(Visits(conditions=self.conditions, visits=visits), self.path)

    def remove(self) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)


@dataclass
class Measuring:
    """Measures settings in turns, and records servers that cannot start."""

    artifact: Artifact
    texts: Sequence[Example]
    config: TuneConfig
    cores: int
    saved: SavedVisits
    failures: dict[str, str] = field(default_factory=dict)
    """Name of a setting that could not be served -> reason; a continued run tries it again."""

    def rows(self, names: Sequence[str], first_round: int) -> tuple[list[Tried], list[Visit]]:
        """Visit every setting in every round, each round in its own order.

        Visits of an earlier run are not repeated.

        Raises:
            ServingError: the server with the default cannot start, or ends, twice. Other settings
                whose server does so are left out.
            MachineBusyError: other work disturbs the figures, and the config does not allow noisy
                ones.
        """
        draw = random.Random(self.config.seed + first_round)  # noqa: S311 - an order, no secret
        rounds = range(first_round, first_round + self.config.rounds)
        places = [(name, number) for number in rounds for name in draw.sample(names, len(names))]
        with progress_bar("tune", total=len(places)) as bar:
            for name, number in places:
                if name in self.failures or (name, number) in self.saved.by_place:
                    bar.skip(1)
                    continue
                bar.note(f"round {number + 1}: {name}")
                try:
                    self.saved.add(self._visit(name, number))
                except ServingError as error:
                    if name == DEFAULT_SETTING:
                        raise
                    self.failures[name] = str(error)
                bar.advance()
        made = self.saved.by_place
        visits = [made[place] for place in places if place in made]
        return tried(scores_of(visits, names, self.config), self.failures), visits

    def _visit(self, name: str, number: int) -> Visit:
        """Visit, with one repetition, as another process may take a port, or a start may be
        slow."""
        settings = SETTINGS[name].of_cores(self.cores, self.config.runtime)
        place = (name, number)
        try:
            return visit(self.artifact, self.texts, self.config, place, settings)
        except ServerMissingError:
            raise
        except ServingError as error:
            logger.warning("%s, round %d, is tried again: %s", name, number + 1, error)
            return visit(self.artifact, self.texts, self.config, place, settings)


def visit(
    artifact: Artifact,
    texts: Sequence[Example],
    config: TuneConfig,
    place: tuple[str, int],
    settings: TunedSettings,
) -> Visit:
    """Serve an artifact with some settings on free ports, and measure every load.

    Args:
        artifact: artifact to serve.
        texts: texts to send.
        config: settings with the loads.
        place: name of the settings, and number of the round.
        settings: settings of the server.

    Raises:
        ServingError: the server does not start.
        MachineBusyError: other work disturbs the figures, and the config does not allow noisy ones.
    """
    from serve.server.server import serving

    served = ServeConfig(http_port=0, metrics_port=0, **dict(settings))
    with serving(artifact, served) as server:
        meter = LoadMeter()
        runs = closed_runs(server.http_url, lambda columns, problem: texts, config.loads())
        load = meter.load  # while the server runs, so that its time is not other work
    check_load(load, config.noisy)
    cells = tuple(
        Cell(
            concurrency=run.concurrency or 0,
            texts_per_request=run.texts_per_request,
            texts_per_second=texts_per_second(run),
            p50_ms=run.latency.p50_ms if run.latency else None,
            p99_ms=run.p99_ms,
        )
        for run in runs
    )
    name, number = place
    return Visit(setting=name, round=number, cells=cells, load=load)


Scores = Mapping[str, Sequence[float]]
"""Name of a setting -> its score in each round."""


def scores_of(visits: Sequence[Visit], names: Sequence[str], config: TuneConfig) -> Scores:
    """Return the scores of settings, in the order of rounds."""
    objective = TUNE_OBJECTIVES[config.objective]
    ordered = sorted(visits, key=lambda visit: visit.round)
    return {
        name: [
            objective.score(visit.cells, config.slo_p99_ms)
            for visit in ordered
            if visit.setting == name
        ]
        for name in names
    }


def tried(scores: Scores, failures: Mapping[str, str]) -> list[Tried]:
    """Return the settings in order; failed ones (name -> reason) have no score."""
    rows = []
    default = scores[DEFAULT_SETTING]
    for name, own in scores.items():
        speed = ratio = None
        if name not in failures and all(own):
            speed = statistics.geometric_mean(own)
            if name != DEFAULT_SETTING and all(default):
                ratio = ratio_over_rounds(default, own)
        rows.append(
            Tried(
                name=name,
                texts_per_second=speed,
                against_default=ratio,
                failure=failures.get(name),
            )
        )
    return rows


def choose(rows: Sequence[Tried], config: TuneConfig) -> Choice:
    """Return the fastest setting that beats the default beyond chance, or the default."""
    faster = [row for row in rows if row.against_default and row.against_default.low > 1]
    if faster:
        best = max(faster, key=lambda row: row.texts_per_second or 0.0)
        return Choice(
            setting=best.name, reason=f"{best.against_default} the texts/s of {DEFAULT_SETTING}"
        )
    if rows[0].texts_per_second is not None:
        return Choice(
            setting=DEFAULT_SETTING,
            reason="no other setting is faster beyond what differs from round to round: the "
            "default stays",
        )
    holding = [row for row in rows if row.texts_per_second is not None]
    if not holding:
        return Choice(
            setting=DEFAULT_SETTING,
            reason=f"no setting holds a p99 of {config.slo_p99_ms:g} ms in every round: the "
            "default stays. Allow more with --slo-p99-ms",
        )
    best = max(holding, key=lambda row: row.texts_per_second or 0.0)
    return Choice(
        setting=best.name,
        reason=f"it holds a p99 of {config.slo_p99_ms:g} ms in every round, and "
        f"{DEFAULT_SETTING} does not",
    )


def confirmed(
    choice: Choice, rows: Sequence[Tried], fresh: Sequence[Tried], config: TuneConfig
) -> Choice:
    """Return the verdict of fresh rounds on a chosen setting: their ratio, or that the default
    stays.

    The rounds for the choice flatter the chosen setting, which was partly best by chance.

    Args:
        choice: a setting other than the default.
        rows: all settings in the rounds for the choice, the default first.
        fresh: the default and the chosen setting, in rounds that were not used for the choice.
        config: settings of the choice.
    """
    again = choose(fresh, config)
    own = fresh[-1]
    if again.setting == choice.setting:
        reason = f"{again.reason}, in rounds that did not choose it"
        return again.model_copy(update={"reason": reason})
    if rows[0].texts_per_second is None and own.texts_per_second is not None:
        # the default has exceeded the p99 limit before, whatever happened by chance since
        return choice
    if own.failure:
        doubt = "it could not be served"
    elif own.texts_per_second is None:
        doubt = f"it missed a p99 of {config.slo_p99_ms:g} ms"
    else:
        doubt = "not beyond chance"
    return Choice(
        setting=DEFAULT_SETTING,
        reason=f"{choice.setting} was the best, but {doubt} when both were measured once more: "
        "the default stays",
    )
