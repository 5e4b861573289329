"""What is built is not built again: where it is whole, unchanged and of the same identity."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bertender.core import build_once as module
from bertender.core.artifact import sha256_of
from bertender.core.build_once import (
    STAMPS,
    Fingerprint,
    build_once,
    cached,
    directory_once,
    seconds_of_build,
    sizes_of,
    was_built,
)
from bertender.core.errors import DataError
from tests.forked import start

IDENTITY = {"seed": 1, "files": ["a", "b"]}


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / "model", tmp_path / "table.json"]


def built(
    places: list[Path],
    identity: object = IDENTITY,
    fingerprint: Fingerprint = sizes_of,
    fresh: bool = False,
) -> bool:
    """Whether the places are built anew by a call."""
    directory, file = places
    calls = []

    def build() -> None:
        calls.append(1)
        directory.mkdir(exist_ok=True)
        (directory / "weights").write_text("1234")
        file.write_text("{}")

    reused = build_once(places, identity, build, fingerprint, fresh=fresh)
    assert reused is not bool(calls)
    return bool(calls)


def test_it_is_built_once(places: list[Path]) -> None:
    assert [built(places) for _ in range(3)] == [True, False, False]
    assert built(places, {"files": ["a", "b"], "seed": 1}) is False, "the order of keys is nothing"
    assert built(places, fresh=True) is True


def test_another_identity_builds_again(
    places: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert built(places) and "not there yet" in caplog.text
    assert built(places, {**IDENTITY, "seed": 2}) and "made of something else" in caplog.text
    assert built(places), "only what was built last is there"


HARM: dict[str, Callable[[Path], object]] = {
    "a file is missing": lambda folder: (folder / "model" / "weights").unlink(),
    "a file is cut": lambda folder: (folder / "model" / "weights").write_text("12"),
    "a file is more": lambda folder: (folder / "model" / "more").touch(),
    "the directory is missing": lambda folder: shutil.rmtree(folder / "model"),
    "the second place is missing": lambda folder: (folder / "table.json").unlink(),
    "the second place is cut": lambda folder: (folder / "table.json").write_text(""),
    "no stamp": lambda folder: shutil.rmtree(folder / STAMPS),
    "a stamp that is empty": lambda folder: (folder / STAMPS / "model.json").write_text(""),
    "a stamp of an unknown form": lambda folder: (folder / STAMPS / "model.json").write_text("[]"),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_harmed_is_built_again(harm: str, places: list[Path], tmp_path: Path) -> None:
    assert built(places)
    HARM[harm](tmp_path)
    assert [built(places) for _ in range(2)] == [True, False]


def test_how_content_is_told_from_another_is_the_callers(
    places: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    def digest(place: Path) -> str:
        if place.is_file():
            return sha256_of(place)
        if (place / "weights").read_text() == "oops":
            raise DataError("these are no weights")
        return sha256_of(place / "weights")

    assert built(places, fingerprint=digest)
    places[1].write_text("[]")  # of the same size
    assert built(places, fingerprint=digest) and "not what was written" in caplog.text
    (places[0] / "weights").write_text("oops")
    assert built(places, fingerprint=digest) and "these are no weights" in caplog.text


def test_what_fails_is_not_held_for_built(places: list[Path]) -> None:
    def fails() -> None:
        places[0].mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(places[:1], IDENTITY, fails)
    assert built(places)


def test_what_cannot_be_made_for_the_cache_is_an_error_of_its_own(tmp_path: Path) -> None:
    def fails() -> str:
        raise FileNotFoundError("no texts")

    with pytest.raises(FileNotFoundError, match="no texts"):
        cached(tmp_path / "x", fails, lambda text, path: None, Path.read_text, sizes_of)


def test_what_is_made_once_is_made_by_one_while_the_others_wait(tmp_path: Path) -> None:
    made = []

    def write(draft: Path) -> None:
        made.append(draft)
        time.sleep(0.05)
        (draft / "rows").write_text("whole")

    def found(number: int) -> str:
        return (directory_once(tmp_path / "store", "rows", write) / "rows").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found, range(8))) == ["whole"] * 8
    assert len(made) == 1


def test_what_was_not_finished_is_made_again(tmp_path: Path) -> None:
    def fails(draft: Path) -> None:
        (draft / "rows").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directory_once(tmp_path / "store", "rows", fails)
    assert not (tmp_path / "store").exists()
    directory_once(tmp_path / "store", "rows", lambda draft: (draft / "rows").touch())
    assert (tmp_path / "store" / "rows").read_text() == ""


def test_a_stamp_says_nothing_of_what_was_built_after_it(places: list[Path]) -> None:
    """Killed between the second build and its stamp: the first one's stamp must not hold."""
    assert built(places)

    def killed() -> None:
        places[1].write_text("{}")  # of the size that it had
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(places, "other", killed)
    assert built(places)


SECONDS = 0.2
"""Of a build that is interrupted."""


def build_and_die(place: Path) -> None:
    def build() -> None:
        enough = seconds_of_build(place) + SECONDS
        while seconds_of_build(place) < enough:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    module.NOTED_S = 0.01
    build_once([place], IDENTITY, build)


def build_and_stop(place: Path) -> None:
    def build() -> None:
        time.sleep(SECONDS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once([place], IDENTITY, build)


def kill(place: Path) -> None:
    process = start(build_and_die, place, said=place.with_name("said"))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("interrupt", "may_be_there"), [(kill, True), (build_and_stop, False)])
def test_the_time_of_interrupted_builds_counts(
    interrupt: Callable[[Path], None], may_be_there: bool, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    for _ in range(2):
        interrupt(place)
        assert was_built(place) is may_be_there
    build_once([place], IDENTITY, place.touch)
    taken = seconds_of_build(place)
    assert taken >= 2 * SECONDS
    assert build_once([place], IDENTITY, place.touch)
    assert seconds_of_build(place) == taken


@pytest.mark.parametrize(("identity", "fresh"), [("other", False), (IDENTITY, True)])
def test_the_time_of_another_build_does_not(identity: object, fresh: bool, tmp_path: Path) -> None:
    place = tmp_path / "model"
    build_and_stop(place)
    build_once([place], identity, place.touch, fresh=fresh)
    assert seconds_of_build(place) < SECONDS
