"""What is at --out: replaced where it is a stage's own and somebody asked for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bertender
from bertender.core.artifact import Artifact, check_not_finished, copy_artifact
from bertender.core.build_once import work_directory
from bertender.core.card import TIMING_NAME
from bertender.core.errors import ArtifactError
from bertender.tasks.task import Task
from tests.toys import new_toy


def write(out: Path, task: Task, text: str = "1") -> Artifact:
    with new_toy(
        out, kind="bag-of-words", family="bag-of-words", task=task.record(), stage="baseline"
    ) as draft:
        (draft.directory / "weights" / "part").mkdir(parents=True)
        (draft.directory / "weights" / "part" / "one").write_text(text)
    return Artifact.load(out)


def others_card(folder: Path) -> None:
    folder.mkdir()
    (folder / "artifact.json").write_text('{"made by": "another tool"}')
    (folder / "thesis.tex").write_text("words")


def no_card(folder: Path) -> None:
    folder.mkdir()
    (folder / "artifact.json").write_text("not JSON")


def link_inside(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "another tool's card": (others_card, "cannot be read as a card of bertender"),
    "a card that is none": (no_card, "cannot be read as a card of bertender"),
    "a file": (lambda folder: folder.write_text("words"), "is not an artifact"),
}
FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file more": (lambda folder: (folder / "notes.txt").touch(), r"gone: notes\.txt\."),
    "deep inside": (
        lambda folder: (folder / "weights" / "part" / "two").touch(),
        r"gone: weights/part/two\.",
    ),
    "a link": (link_inside, r"gone: link\."),
    "many": (
        lambda folder: [(folder / f"{number}.txt").touch() for number in range(9)],
        r"gone: 0\.txt, 1\.txt, 2\.txt, 3\.txt, 4\.txt and 4 more\.",
    ),
}


def refuses(out: Path, task: Task, said: str) -> None:
    """Check that every writer refuses, and that nothing is gone."""
    before = sorted(out.rglob("*"))
    other = write(out.with_name("other"), task)
    for writer in (
        lambda: write(out, task),
        lambda: copy_artifact(other, out),
        lambda: check_not_finished(out, force=True),
        lambda: work_directory(out, "run").__enter__(),
    ):
        with pytest.raises(ArtifactError, match=said):
            writer()
    assert sorted(out.rglob("*")) == before and out.exists()


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_artifact_stays(name: str, task: Task, tmp_path: Path) -> None:
    make, said = STRANGE[name]
    make(tmp_path / "out")
    refuses(tmp_path / "out", task, said)


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_the_card_does_not_list_stay(name: str, task: Task, tmp_path: Path) -> None:
    make, said = FOREIGN[name]
    make(write(tmp_path / "out", task).path)
    refuses(tmp_path / "out", task, said)


def test_a_file_that_comes_while_it_is_written_stays(task: Task, tmp_path: Path) -> None:
    out = write(tmp_path / "out", task).path
    with (
        pytest.raises(ArtifactError, match="late"),
        new_toy(
            out, kind="bag-of-words", family="bag-of-words", task=task.record(), stage="baseline"
        ),
    ):
        (out / "late").touch()
    assert (out / "late").exists() and (out / "weights" / "part" / "one").exists()


def test_an_artifact_is_replaced_with_its_timing_or_without_a_file(
    task: Task, tmp_path: Path
) -> None:
    out = write(tmp_path / "out", task).path
    (out / TIMING_NAME).write_text("{}")
    (out / "weights" / "part" / "one").unlink()
    write(out, task, "2")
    assert (out / "weights" / "part" / "one").read_text() == "2"


def test_a_finished_artifact_needs_force(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_not_finished(out, force=False)
    out.mkdir()
    check_not_finished(out, force=False)
    write(out, task)
    check_not_finished(out, force=True)
    with pytest.raises(ArtifactError, match=r"a finished artifact.*'baseline'.*Give --force"):
        check_not_finished(out, force=False)


def test_python_functions_take_force(exported: Artifact, task: Task, tmp_path: Path) -> None:
    out = tmp_path / "onnx"
    first = bertender.quantize(exported, task, out=out, scheme="dynamic", max_drop=100.0)
    with pytest.raises(ArtifactError, match=r"Give --force \(force=True in Python\)"):
        bertender.quantize(exported, task, out=out, scheme="dynamic", max_drop=100.0)
    again = bertender.quantize(
        exported, task, out=out, force=True, scheme="dynamic", max_drop=100.0
    )
    assert again.card == first.card
