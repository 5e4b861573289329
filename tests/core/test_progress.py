"""Progress bars: silence unless a person looks on, and never an obstacle to the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bertender.core import progress
from bertender.core.progress import progress_bar, show_progress, track


@pytest.fixture(params=["terminal", "log"])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Bars on standard error, for one test."""
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
    show_progress()
    yield request.param
    show_progress(False)


def work() -> None:
    with progress_bar("baking", 3) as bar:
        bar.advance()
        bar.note("smells good")
        bar.advance(2)


def test_silent_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("capsys", "shown")
def test_shown_on_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress()  # again, since the console keeps the stream that it was made with
    work()
    out, err = capsys.readouterr()
    assert out == "" and "baking" in err and "3/3" in err and "smells good" in err


@pytest.mark.parametrize(("line_every_s", "lines"), [(0.0, 3), (60.0, 1)])
def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line_every_s: float,
    lines: int,
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", line_every_s)
    show_progress()
    try:
        work()
    finally:
        show_progress(False)
    err = capsys.readouterr().err.splitlines()
    assert len(err) == lines
    assert err[-1].split() == ["baking", "3/3", "0:00:00", "smells", "good"]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


PACES: dict[str, tuple[int, int, int | None, str, str]] = {
    "texts a second, and the end": (0, 600, 3000, "texts", "20 texts/s 0:02:00 left"),
    "what an earlier run did is no pace": (1800, 600, 3000, "texts", "20 texts/s 0:00:30 left"),
    "steps have no unit": (0, 600, 3000, "", "0:02:00 left"),
    "slow work": (0, 1, 3, "texts", "0.0333 texts/s 0:01:00 left"),
    "no end in sight": (0, 6000, None, "texts", "200 texts/s"),
    "at its end": (0, 3000, 3000, "texts", "100 texts/s"),
}
"""Steps of an earlier run, of 30 seconds of this one, of all; their unit -> what is shown."""


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("case", PACES)
def test_the_pace_and_the_expected_end(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped, done, total, unit, words = PACES[case]
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setenv("COLUMNS", "200")
    show_progress()
    with progress_bar("reading", total, unit) as bar:
        bar.skip(skipped)
        clock.now += 30
        bar.advance(done)
    err = capsys.readouterr().err
    assert words in " ".join(err.replace("\x1b", " ").split())
    assert f"{skipped + done}/" in err


@pytest.mark.parametrize("enabled", [False, True])
def test_track_yields_every_item(enabled: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show_progress(enabled)
    try:
        assert list(track("abc", "spelling", 3)) == ["a", "b", "c"]
    finally:
        show_progress(False)
    assert ("3/3" in capsys.readouterr().err) is enabled


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("every", [1, 2])
def test_track_without_an_end_in_sight(every: int, capsys: pytest.CaptureFixture[str]) -> None:
    show_progress()
    assert list(track("abcde", "spelling", every=every)) == [*"abcde"]
    assert list(track("", "nothing", every=every)) == []
    err = capsys.readouterr().err
    assert "5/?" in err and "0/?" in err


def test_turned_off_again(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress()
    show_progress(False)
    work()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("shown")
def test_a_bar_within_a_bar() -> None:
    """Training shows one while the model is scored at the end of an epoch, which shows another."""
    with progress_bar("training", 2) as outer:
        for _ in range(2):
            assert sum(track([1, 2], "scoring", 2)) == 3
            outer.advance()


@pytest.mark.usefixtures("shown")
def test_an_exception_ends_the_bar() -> None:
    with pytest.raises(KeyboardInterrupt), progress_bar("baking", 3):
        raise KeyboardInterrupt
    work()
