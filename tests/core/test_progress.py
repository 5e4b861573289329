"""Progress bars: silence unless a person looks on, and never an obstacle to the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bertender.core.progress import progress_bar, show_progress, track


@pytest.fixture
def shown() -> Iterator[None]:
    """Bars on standard error, for one test."""
    show_progress()
    yield
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


@pytest.mark.parametrize("enabled", [False, True])
def test_track_yields_every_item(enabled: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show_progress(enabled)
    try:
        assert list(track("abc", "spelling", 3)) == ["a", "b", "c"]
    finally:
        show_progress(False)
    assert ("3/3" in capsys.readouterr().err) is enabled


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
