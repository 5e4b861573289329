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
