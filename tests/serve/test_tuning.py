"""`bertender tune`: what is tried, what is chosen, and that an interrupted run continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bertender.core.artifact import Artifact
from bertender.core.errors import MachineBusyError, ServingError, UnknownNameError
from bertender.core.machine import MachineLoad, Speedup
from bertender.problems.problem import Problem
from bertender.text.batch import Example
from serve import tuning as measuring
from serve.config import ServeConfig
from serve.profiles import MachineKey, ModelShape, ServeProfile, TunedSettings
from serve.tuning import (
    DEFAULT_SETTING,
    LEAST_ROUNDS,
    MOST_ROUNDS,
    SETTINGS,
    TUNE_OBJECTIVES,
    Cell,
    Choice,
    Tried,
    TuneConfig,
    TuneResult,
    Visit,
    choose,
    confirmed,
    ratio_over_rounds,
    scores_of,
    tried,
    tune,
    visit,
)
from tests.front import fail, last_line, succeed

QUIET = MachineLoad(other_work=0.0, steal=0.0)
QUICK = {"input": "texts.txt", "rounds": 3, "noisy": True}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The file of `--out`."""
    return tmp_path / "tuned.json"


def texts(columns: int, problem: Problem[Any]) -> list[Example]:
    return [("apple",), ("saw drill",)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5, 64])
def test_every_setting_takes_no_more_threads_than_cores(name: str, cores: int) -> None:
    row = SETTINGS[name]
    if cores < row.least_cores:
        assert name not in TuneConfig(**QUICK).tried(cores)
        return
    settings = row.of_cores(cores)
    config = ServeConfig.parse(dict(settings))
    runs = config.instances * config.concurrent_buckets
    assert runs * (config.threads_per_instance or cores // runs) <= cores
    others = [SETTINGS[each].of_cores(cores) for each in TuneConfig(**QUICK).tried(cores)]
    assert others.count(settings) == 1, "two settings are the same"


def test_the_default_is_that_of_serve_and_always_the_first() -> None:
    assert SETTINGS[DEFAULT_SETTING].of_cores(8) == TunedSettings()
    for few in ("instances", "small-buckets,one-instance", ""):
        config = TuneConfig.parse({**QUICK, "settings": few})
        assert config.tried(8)[0] == DEFAULT_SETTING
    with pytest.raises(UnknownNameError, match="instances"):
        TuneConfig.parse({**QUICK, "settings": "instance"})


@pytest.mark.parametrize("rounds", range(LEAST_ROUNDS, MOST_ROUNDS + 1))
def test_the_interval_is_that_of_students_t(rounds: int) -> None:
    draw = np.random.default_rng(rounds)
    default, other = draw.uniform(90, 110, rounds), draw.uniform(100, 120, rounds)
    ratio = ratio_over_rounds(default.tolist(), other.tolist())
    logs = np.log(other / default)
    low, high = stats.t.interval(0.95, rounds - 1, logs.mean(), stats.sem(logs))
    expected = np.exp([logs.mean(), low, high])
    np.testing.assert_allclose([ratio.value, ratio.low, ratio.high], expected, rtol=2e-4)


def cell(size: int, clients: int, speed: float, p99_ms: float | None = 10.0) -> Cell:
    return Cell(
        concurrency=clients, texts_per_request=size, texts_per_second=speed, p50_ms=5, p99_ms=p99_ms
    )


CELLS = [cell(1, 1, 10), cell(1, 8, 40, 90), cell(16, 1, 100), cell(16, 8, 160, None)]


@pytest.mark.parametrize(
    ("objective", "slo", "score"),
    [("throughput", 1, 80), ("p99", 100, 4000**0.5), ("p99", 9, 0)],
)
def test_the_score_is_the_mean_over_sizes_of_the_best_load(
    objective: str, slo: float, score: float
) -> None:
    assert TUNE_OBJECTIVES[objective].score(CELLS, slo) == pytest.approx(score)


def chosen(scores: Mapping[str, Sequence[float]]) -> Choice:
    return choose(tried(scores, {}), TuneConfig(**QUICK, objective="p99"))


EQUAL, NOISY = [100.0, 100.0, 100.0], [90.0, 130.0, 100.0]
CASES: Mapping[str, tuple[Mapping[str, Sequence[float]], str, str]] = {
    "one is faster": ({"a": [120, 121, 119]}, "a", "1.20x [1.1"),
    "the fastest of two": ({"a": [120, 121, 119], "b": [140, 141, 142]}, "b", "1.41x"),
    "not beyond the rounds' own differences": ({"a": NOISY}, DEFAULT_SETTING, "default stays"),
    "slower": ({"a": [80, 81, 79]}, DEFAULT_SETTING, "default stays"),
    "no other": ({}, DEFAULT_SETTING, "default stays"),
    "fast, but late in a round": ({"a": [140, 0, 140]}, DEFAULT_SETTING, "default stays"),
    "the default is late": (
        {DEFAULT_SETTING: [100, 0, 100], "a": [50, 50, 50], "b": [60, 60, 0]},
        "a",
        "one-instance does not",
    ),
    "all are late": (
        {DEFAULT_SETTING: [0, 0, 0], "a": [0, 1, 1]},
        DEFAULT_SETTING,
        "no setting holds a p99 of 50 ms",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_choice(name: str) -> None:
    scores, setting, said = CASES[name]
    choice = chosen({DEFAULT_SETTING: EQUAL, **scores})
    assert choice.setting == setting and said in choice.reason


def visit_of(name: str, number: int, speed: float, load: MachineLoad = QUIET) -> Visit:
    return Visit(setting=name, round=number, cells=(cell(1, 1, speed),), load=load)


def test_scores_are_in_the_order_of_the_rounds() -> None:
    visits = [visit_of(name, n, n + 1) for n in (2, 0, 1) for name in ("a", "b")]
    scores = scores_of(visits, ("b", "a"), TuneConfig(**QUICK))
    assert [*scores] == ["b", "a"]
    assert all(own == pytest.approx([1, 2, 3]) for own in scores.values())


class Visits:
    """Stands in for `visit`: settings have known speeds, and one visit may fail."""

    def __init__(self, speeds: Mapping[str, float]) -> None:
        self.speeds = speeds
        self.places: list[tuple[str, int]] = []
        self.fail_at = -1
        self.cannot_start: dict[str, int] = {}
        """Setting -> the round from which on its server fails."""
        self.fails_once = ""
        """The setting whose server fails the first time."""
        self.fresh: tuple[int, float] = (99, 0.0)
        """The round from which on all settings but the default have this speed."""

    def __call__(
        self, artifact: Any, texts: Any, config: Any, place: tuple[str, int], settings: Any
    ) -> Visit:
        assert settings == SETTINGS[place[0]].of_cores(tuning_cores())
        if len(self.places) == self.fail_at:
            raise KeyboardInterrupt
        self.places.append(place)
        if place[1] >= self.cannot_start.get(place[0], 99):
            raise ServingError("/dev/shm has 64.0 MiB free")
        if self.fails_once == place[0]:
            self.fails_once = ""
            raise ServingError("port 8000 is taken")
        speed = self.speeds.get(place[0], 100.0)
        if place[1] >= self.fresh[0] and place[0] != DEFAULT_SETTING:
            speed = self.fresh[1]
        return visit_of(*place, speed + place[1])


def tuning_cores() -> int:
    from bertender.core.hardware import usable_cores

    return usable_cores()


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Visits]:
    standing_in = Visits({"large-buckets": 150.0})
    monkeypatch.setattr(measuring, "visit", standing_in)
    return standing_in


FEW = {**QUICK, "settings": "small-buckets,large-buckets"}
NAMES = (DEFAULT_SETTING, "small-buckets", "large-buckets")


def test_every_setting_is_measured_once_a_round_in_turns(
    visits: Visits, onnx_artifact: Artifact
) -> None:
    result = tune(onnx_artifact, texts, TuneConfig(**{**FEW, "rounds": 6}, concurrency=(2,)))
    places, fresh = visits.places[:18], visits.places[18:]
    assert sorted(places) == sorted((name, n) for n in range(6) for name in NAMES)
    assert [number for _, number in places] == sorted(3 * [*range(6)])
    assert sorted(fresh) == sorted((name, n) for n in range(6, 12) for name in (NAMES[0], NAMES[2]))
    orders = {tuple(name for name, n in places if n == number) for number in range(6)}
    assert len(orders) > 1, "the order is drawn anew in each round"
    assert [row.name for row in result.tried] == [*NAMES]
    assert result.choice.setting == "large-buckets"
    assert result.settings == TunedSettings(tokens_per_bucket=512)


def test_the_ratio_is_that_of_rounds_that_did_not_choose(
    visits: Visits, onnx_artifact: Artifact
) -> None:
    visits.fresh = (3, 120.0)
    result = tune(onnx_artifact, texts, TuneConfig(**FEW))
    assert result.choice.setting == "large-buckets"
    assert "1.19x [" in result.choice.reason and "did not choose it" in result.choice.reason
    assert [row.name for row in result.fresh] == [DEFAULT_SETTING, "large-buckets"]
    (chosen,) = (row for row in result.tried if row.name == "large-buckets")
    assert chosen.against_default and chosen.against_default.value > 1.4


@pytest.mark.parametrize("speed", [100.0, 80.0])
def test_the_default_stays_where_fresh_rounds_do_not_confirm(
    speed: float, visits: Visits, onnx_artifact: Artifact
) -> None:
    visits.fresh = (3, speed)
    result = tune(onnx_artifact, texts, TuneConfig(**FEW))
    assert result.choice.setting == DEFAULT_SETTING
    assert result.settings == TunedSettings()
    assert result.choice.reason.startswith("large-buckets was the best, but not beyond chance")


def row_of(texts_per_second: float | None, ratio: float | None = None, **more: str) -> Tried:
    """Return a row of a setting."""
    against = None if ratio is None else Speedup(value=ratio, low=ratio, high=ratio)
    return Tried(
        name=more.pop("name", "large-buckets"),
        texts_per_second=texts_per_second,
        against_default=against,
        **more,
    )


@pytest.mark.parametrize(
    ("default", "fresh_default", "fresh", "setting", "words"),
    [
        (1.0, 1.0, row_of(2.0, 1.5), "large-buckets", "1.50x"),
        (1.0, 1.0, row_of(1.0, 0.9), DEFAULT_SETTING, "not beyond chance"),
        (1.0, 1.0, row_of(None), DEFAULT_SETTING, "missed a p99"),
        (1.0, 1.0, row_of(None, failure="gone"), DEFAULT_SETTING, "could not be served"),
        (None, 1.0, row_of(1.0, 0.9), "large-buckets", "first"),
        (None, None, row_of(None), DEFAULT_SETTING, "missed a p99"),
    ],
)
def test_fresh_rounds_confirm_or_say_why_not(
    default: float | None, fresh_default: float | None, fresh: Tried, setting: str, words: str
) -> None:
    """A default that has missed the p99 once is not taken for its luck later."""
    rows = [row_of(default, name=DEFAULT_SETTING), row_of(2.0)]
    again = [row_of(fresh_default, name=DEFAULT_SETTING), fresh]
    choice = confirmed(Choice(setting="large-buckets", reason="first"), rows, again, TuneConfig())
    assert choice.setting == setting and words in choice.reason


def test_fresh_rounds_are_measured_once(visits: Visits, onnx_artifact: Artifact, out: Path) -> None:
    visits.fail_at = 12
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    visits.fail_at = -1
    result = tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    assert len(visits.places) == len({*visits.places}) == 9 + 6
    assert result.choice.setting == "large-buckets"


@pytest.mark.parametrize("since", [0, 1])
def test_a_setting_whose_server_cannot_start_has_no_score(
    since: int, visits: Visits, onnx_artifact: Artifact
) -> None:
    visits.cannot_start = {"large-buckets": since}
    result = tune(onnx_artifact, texts, TuneConfig(**FEW))
    tries = [number for name, number in visits.places if name == "large-buckets"]
    assert tries == [*range(since + 1), since], "it is tried twice, and in no later round"
    rows = {row.name: row for row in result.tried}
    failed = rows["large-buckets"]
    assert (failed.texts_per_second, failed.against_default) == (None, None)
    assert failed.failure == "/dev/shm has 64.0 MiB free"
    assert rows["small-buckets"].texts_per_second and rows["small-buckets"].failure is None
    assert result.choice.setting == DEFAULT_SETTING


@pytest.mark.parametrize("name", NAMES)
def test_a_server_may_fail_once(name: str, visits: Visits, onnx_artifact: Artifact) -> None:
    visits.fails_once = name
    result = tune(onnx_artifact, texts, TuneConfig(**FEW))
    assert not [row.failure for row in result.tried if row.failure]
    assert result.choice.setting == "large-buckets"


def test_the_default_must_start(visits: Visits, onnx_artifact: Artifact) -> None:
    visits.cannot_start = {DEFAULT_SETTING: 0}
    with pytest.raises(ServingError, match="/dev/shm"):
        tune(onnx_artifact, texts, TuneConfig(**FEW))


def test_the_command_says_why_a_setting_has_no_score(
    visits: Visits, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("apple\nsaw drill\n")
    visits.cannot_start = {"large-buckets": 0}
    words = ("--input", tmp_path / "texts.txt", "--rounds", "3", "--noisy")
    words = (*words, "--settings", "large-buckets")
    shown = " ".join(succeed("tune", onnx_artifact.path, *words).stdout.split())
    assert "large-buckets: no score, because it could not be served: /dev/shm has" in shown


def test_an_interrupted_run_continues_where_it_was(
    visits: Visits, onnx_artifact: Artifact, out: Path
) -> None:
    visits.fail_at = 4
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    assert not out.exists(), "no profile before the end"
    before, visits.fail_at = [*visits.places], -1
    # what the visits are judged by may change meanwhile
    result = tune(onnx_artifact, texts, TuneConfig(**{**FEW, "rounds": 4}, objective="p99"), out)
    assert len(before) == 4 and len(visits.places) == len({*visits.places}) == 12 + 8
    assert len(result.visits) == 12 + 8


@pytest.mark.parametrize("changes", [{"seed": 5}, {"concurrency": (3,)}, {"duration_s": 9.0}])
def test_visits_of_another_load_are_not_used(
    changes: dict[str, Any], visits: Visits, onnx_artifact: Artifact, out: Path
) -> None:
    visits.fail_at = 4
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    visits.fail_at, visits.places = -1, []
    tune(onnx_artifact, texts, TuneConfig(**FEW, **changes), out)
    assert len(visits.places) == 9 + 6


def test_visits_of_other_texts_are_not_used(
    visits: Visits, onnx_artifact: Artifact, out: Path
) -> None:
    visits.fail_at = 4
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    visits.fail_at, visits.places = -1, []
    tune(onnx_artifact, lambda columns, problem: [("pear",)], TuneConfig(**FEW), out)
    assert len(visits.places) == 9 + 6


def test_visits_of_another_server_are_not_used(
    visits: Visits, onnx_artifact: Artifact, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.config.is_installed", lambda: False)
    visits.fail_at = 4
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    monkeypatch.setattr("serve.config.is_installed", lambda: True)
    visits.fail_at, visits.places = -1, []
    tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    assert len(visits.places) == 9 + 6


def test_damaged_visits_are_named_and_measured_again(
    visits: Visits, onnx_artifact: Artifact, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    visits.fail_at = 2
    with pytest.raises(KeyboardInterrupt):
        tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    saved = out.with_name("tuned.json.visits")
    saved.write_text("{")
    visits.fail_at, visits.places = -1, []
    tune(onnx_artifact, texts, TuneConfig(**FEW), out)
    assert len(visits.places) == 9 + 6 and f"{saved} cannot be read" in caplog.text


def test_a_busy_visit_ends_the_run_unless_noisy(
    onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = MachineLoad(other_work=0.5, steal=0.0)
    monkeypatch.setattr(
        measuring, "visit", lambda a, b, c, place, d: visit_of(*place, 100.0, load=busy)
    )
    assert tune(onnx_artifact, texts, TuneConfig(**FEW)).noisy
    monkeypatch.setattr("serve.tuning.check_load_now", refuse)
    with pytest.raises(MachineBusyError):
        tune(onnx_artifact, texts, TuneConfig(**{**FEW, "noisy": False}))


def refuse() -> None:
    raise MachineBusyError("this machine is busy")


def test_a_file_that_cannot_be_written_is_named_before_any_work(
    visits: Visits, onnx_artifact: Artifact, out: Path
) -> None:
    out.write_text("a file in the place of a folder")
    said = fail("tune", onnx_artifact.path, "--input", "texts.txt", "--out", out / "tuned.json")
    assert "cannot be written" in said and visits.places == []


def test_the_file_is_a_profile_with_every_figure(
    visits: Visits, onnx_artifact: Artifact, out: Path
) -> None:
    config = TuneConfig(**FEW, runtime="onnxruntime")
    result = tune(onnx_artifact, texts, config, out)
    assert TuneResult.model_validate_json(out.read_text()) == result
    profile = ServeProfile.read(out)
    assert profile.settings == TunedSettings(tokens_per_bucket=512)
    assert profile.machine == MachineKey.of_this_machine(ServeConfig())
    assert profile.model == ModelShape.of_card(onnx_artifact.card)
    assert [*out.parent.iterdir()] == [out], "nothing half-written is left"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give one of them"),
        (("--input", "a.txt", "--slo-p99-ms", "9"), "--objective p99"),
        (("--input", "a.txt", "--rounds", "2"), "rounds=2"),
        (("--input", "a.txt", "--concurrency", "0"), "concurrency"),
        (("--input", "a.txt", "--texts-per-request", ""), "texts_per_request"),
    ],
)
def test_settings_that_conflict(
    words: tuple[str, ...], message: str, onnx_artifact: Artifact
) -> None:
    assert message in fail("tune", onnx_artifact.path, *words)


def test_the_command_shows_and_writes_what_it_found(
    visits: Visits, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("apple\nsaw drill\n")
    words = ("--input", tmp_path / "texts.txt", "--rounds", "3", "--noisy")
    words = (*words, "--settings", "large-buckets", "--out", tmp_path / "out.json")
    shown = " ".join(succeed("tune", onnx_artifact.path, *words).stdout.split())
    assert "large-buckets: 1.48x" in shown
    serve = f"bertender serve {onnx_artifact.path}"
    assert f"use it: {serve} --tokens-per-bucket 512 or: {serve} --profile {words[-1]}" in shown
    assert "one-instance 101" in shown
    result = TuneResult.model_validate(
        last_line(succeed("tune", onnx_artifact.path, *words, "--json"))
    )
    assert result == TuneResult.model_validate_json((tmp_path / "out.json").read_text())
    assert len(visits.places) == 2 * (6 + 6)


@pytest.mark.slow
@pytest.mark.server
def test_a_visit_measures_every_load_on_a_server_of_these_settings(
    onnx_artifact: Artifact, texts: tuple[Example, ...]
) -> None:
    quick = {"duration_s": 0.2, "warmup_s": 0.05, "concurrency": (1, 2)}
    config = TuneConfig(**QUICK, **quick, texts_per_request=(1, 4))
    settings = TunedSettings(concurrent_buckets=2, threads_per_instance=1)
    found = visit(onnx_artifact, texts[:50], config, ("concurrent-buckets", 1), settings)
    loads = [(each.texts_per_request, each.concurrency) for each in found.cells]
    assert loads == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert all(each.texts_per_second > 0 and each.p99_ms for each in found.cells)
    assert (found.setting, found.round) == ("concurrent-buckets", 1)


@pytest.mark.server
@pytest.mark.slow
def test_the_whole_of_it_on_real_servers(
    onnx_artifact: Artifact, texts: tuple[Example, ...], tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(text for (text,) in texts[:40]))
    quick = ("--duration-s", "0.1", "--warmup-s", "0.02", "--concurrency", "1", "--rounds", "3")
    words = ("--input", tmp_path / "texts.txt", "--settings", "small-buckets", "--noisy")
    result = last_line(succeed("tune", onnx_artifact.path, *quick, *words, "--json"))
    assert len(result["visits"]) == 6 + 3 * len(result["fresh"])
    assert result["choice"]["setting"] in (DEFAULT_SETTING, "small-buckets")
    assert all(row["texts_per_second"] > 0 for row in result["tried"])
