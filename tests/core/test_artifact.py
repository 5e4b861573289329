"""The artifact: written whole or not at all, read with every file checked."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact, check_writable, new_artifact, sha256_of
from bertender.core.card import CARD_NAME, TaskRecord, library_versions
from bertender.core.errors import ArtifactError, DamagedArtifactError, NotAnArtifactError
from bertender.core.files import FILE_MODE
from bertender.core.findings import Findings, LargestNumber, ScoreFindings
from bertender.tasks.task import Task
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import NoConfig, new_toy

LABELS = ("fruit", "tool")
FILES = {"model.safetensors": "weights", "vocab/words.txt": "words", "config.json": "{}"}


def write(out: Path, files: dict[str, str] | None = None, **changes: Any) -> Artifact:
    """Write an artifact of text files."""
    labels = changes.pop("labels", LABELS)
    findings = changes.pop("findings", Findings())
    task = TaskRecord(
        name="toy",
        problem_type="single_label_classification",
        labels=labels,
        text_columns=("text",),
        metric="accuracy",
    )
    settings = {"kind": "torch", "family": "bert", "stage": "finetune", "seed": 0, **changes}
    with new_artifact(out, task=task, config=NoConfig(), **settings) as draft:
        for name, text in (files or FILES).items():
            (draft.directory / name).parent.mkdir(exist_ok=True)
            (draft.directory / name).write_text(text)
        draft.findings = findings
    return Artifact.load(out)


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_written_and_read(tmp_path: Path) -> None:
    findings = Findings(parameters=7, scores=ScoreFindings(chosen_on="dev", score=0.5, scores={}))
    artifact = write(tmp_path / "deep" / "model", findings=findings, precision="int8")
    card = artifact.card
    assert card.files.keys() == FILES.keys()
    assert card.files["model.safetensors"].sha256 == sha256_of(artifact.path / "model.safetensors")
    assert card.files["model.safetensors"].size_bytes == len("weights")
    assert (card.precision, card.findings, card.parent) == ("int8", findings, None)
    assert card.versions == library_versions() and "torch" in card.versions
    assert names_in(tmp_path / "deep") == {"model"}, "nothing but the artifact stays"


def test_every_file_is_as_readable_as_any_other(task: Task, tmp_path: Path) -> None:
    """safetensors writes weights that their owner alone may read."""
    written = save_artifact(tiny_classifier("bert"), task, tmp_path / "model").path
    modes = {path.name: path.stat().st_mode & 0o777 for path in written.iterdir()}
    assert modes.keys() >= {"model.safetensors", "config.json"} and {*modes.values()} == {FILE_MODE}


def test_equal_work_gives_equal_cards(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    assert (first.path / CARD_NAME).read_bytes() == (second.path / CARD_NAME).read_bytes()


def test_labels_of_any_language_in_any_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "latin-1")
    monkeypatch.setattr("locale.getencoding", lambda: "latin-1")
    labels = ("猫", "café")
    assert write(tmp_path / "a", labels=labels).card.task.labels == labels
    assert "猫" in (tmp_path / "a" / CARD_NAME).read_text(encoding="utf-8")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existing", [False, True])
def test_an_exception_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException], existing: bool
) -> None:
    before = write(tmp_path / "model").digest if existing else None
    with pytest.raises(error):
        _raise_in_block(tmp_path / "model", error)
    assert names_in(tmp_path) == ({"model"} if existing else set())
    if existing:
        assert Artifact.load(tmp_path / "model").digest == before


def _raise_in_block(out: Path, error: type[BaseException]) -> None:
    task = TaskRecord(
        name="toy",
        problem_type="single_label_classification",
        labels=LABELS,
        text_columns=("text",),
        metric="accuracy",
    )
    with new_toy(out, kind="torch", family="bert", task=task, stage="s") as draft:
        (draft.directory / "model.safetensors").write_text("half")
        raise error


def test_ctrl_c_between_the_renames_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path / "model").digest
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if (self / CARD_NAME).is_file() and target == tmp_path / "model" and not target.exists():
            monkeypatch.undo()
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "model", {"model.safetensors": "new"})
    assert Artifact.load(tmp_path / "model").digest == before
    assert names_in(tmp_path) == {"model"}


KILLED = """
import os, signal, sys
from pathlib import Path
from bertender.core import artifact, files
from bertender.core.config import Config

def kill(*ignored, **options):
    os.kill(os.getpid(), signal.SIGKILL)

out, moment = Path(sys.argv[1]), sys.argv[2]
if moment == "before publishing":
    files.publish = kill
if moment == "between the renames":
    rename = Path.rename
    Path.rename = lambda self, target: rename(self, target) if self == out else kill()
if moment == "before sweeping the old one":
    files.shutil.rmtree = kill
task = artifact.TaskRecord(name="toy", problem_type="single_label_classification",
    labels=("a", "b"), text_columns=("text",), metric="accuracy")
with artifact.new_artifact(out, kind="torch", family="bert", task=task, stage="s",
        config=Config(), seed=0) as draft:
    (draft.directory / "model.safetensors").write_text("new")
    if moment == "in the block":
        kill()
"""


@pytest.mark.parametrize(
    ("moment", "survivors"),
    [
        ("in the block", {"weights"}),
        ("before publishing", {"weights"}),
        ("between the renames", {None}),
        ("before sweeping the old one", {"new"}),
    ],
)
def test_killed_in_the_middle(tmp_path: Path, moment: str, survivors: set[str | None]) -> None:
    out = write(tmp_path / "model").path
    child = subprocess.run([sys.executable, "-c", KILLED, str(out), moment], check=False)
    assert child.returncode == -signal.SIGKILL
    assert len(names_in(tmp_path) - {"model"}) >= 1, "the killed process leaves its draft"
    content = Artifact.load(out).path / "model.safetensors" if out.exists() else None
    assert (content.read_text() if content else None) in survivors
    write(out, {"model.safetensors": "newest"})
    assert names_in(tmp_path) == {"model"}, "the next write sweeps the leftover"


def test_only_leftovers_are_swept(tmp_path: Path) -> None:
    running = f".model.draft-{os.getppid()}-x"
    others = {running, ".model.draft-mine", ".other.draft-1999999999-x"}
    for name in {*others, ".model.draft-1999999999-x"}:
        (tmp_path / name).mkdir()
    write(tmp_path / "model")
    assert names_in(tmp_path) == {*others, "model"}


def test_leftovers_of_a_name_with_brackets(tmp_path: Path) -> None:
    (tmp_path / ".model[1].draft-1999999999-x").mkdir()
    write(tmp_path / "model[1]")
    assert names_in(tmp_path) == {"model[1]"}


def test_every_damaged_file_is_named_at_once(tmp_path: Path) -> None:
    artifact = write(tmp_path / "model")
    (artifact.path / "model.safetensors").write_text("weighty")
    (artifact.path / "vocab/words.txt").unlink()
    with pytest.raises(DamagedArtifactError) as caught:
        Artifact.load(artifact.path)
    message = str(caught.value)
    assert "model.safetensors differs" in message and "vocab/words.txt is missing" in message
    assert "config.json" not in message
    assert Artifact.load(artifact.path, verify=False).card == artifact.card


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_found(tmp_path: Path, name: str) -> None:
    artifact = write(tmp_path / "model")
    (artifact.path / name).write_text(FILES[name][:-1] + "~")
    with pytest.raises(DamagedArtifactError, match=name):
        Artifact.load(artifact.path)


@pytest.mark.parametrize("content", ["directory", "file"])
def test_foreign_work_is_not_replaced(tmp_path: Path, content: str) -> None:
    out = tmp_path / "thesis"
    place = out / "chapter.txt" if content == "directory" else out
    place.parent.mkdir(exist_ok=True)
    place.write_text("years of work")
    with pytest.raises(ArtifactError, match="will not be replaced"):
        write(out)
    assert place.read_text() == "years of work" and names_in(tmp_path) == {"thesis"}


def test_an_artifact_is_not_written_over_its_own_source(tmp_path: Path) -> None:
    source = write(tmp_path / "model")
    with pytest.raises(ArtifactError, match="would destroy it"):
        write(tmp_path / "model", parent=source)
    source.check_files()


def test_an_artifact_is_not_written_inside_another(tmp_path: Path) -> None:
    source = write(tmp_path / "model")
    with pytest.raises(ArtifactError, match="lies inside the artifact"):
        write(tmp_path / "model" / "onnx", parent=source)
    assert names_in(tmp_path) == {"model"}
    source.check_files()


@pytest.mark.parametrize("name", ["../other", "/etc/passwd"])
def test_a_card_names_no_file_outside(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "model").path / CARD_NAME
    card = json.loads(path.read_text())
    card["files"][name] = {"sha256": "0" * 64, "size_bytes": 1}
    path.write_text(json.dumps(card))
    with pytest.raises(NotAnArtifactError, match="must lie inside"):
        Artifact.load(path.parent)


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert write(tmp_path / "model").card.files


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"findings": Findings(parameters=9)}, True),
        ({"seed": 1, "stage": "distill"}, True),
        ({"labels": ("tool", "fruit")}, False),
        ({"files": {**FILES, "model.safetensors": "others"}}, False),
        ({"files": {"model.safetensors": "weights"}}, False),
        ({"kind": "onnx"}, False),
        ({"precision": "int8"}, False),
    ],
)
def test_digest_is_what_the_model_answers(
    tmp_path: Path, changes: dict[str, Any], same: bool
) -> None:
    assert (write(tmp_path / "a").digest == write(tmp_path / "b", **changes).digest) is same


def test_parent_is_found_after_moving_the_whole_folder(tmp_path: Path) -> None:
    parent = write(tmp_path / "here" / "teacher")
    child = write(tmp_path / "here" / "students" / "small", parent=parent)
    assert child.card.parent is not None and child.card.parent.path == "../../teacher"
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = Artifact.load(tmp_path / "there" / "students" / "small")
    assert moved.card.parent is not None
    found = Artifact.load(moved.path / moved.card.parent.path)
    assert found.digest == moved.card.parent.digest == parent.digest


def test_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    write(tmp_path / "link" / "model")
    assert names_in(tmp_path / "disk") == {"model"}


def card_with(**changes: Any) -> str:
    card = {
        "schema_version": 2,
        "kind": "torch",
        "family": "bert",
        "task": {
            "name": "toy",
            "problem_type": "single_label_classification",
            "labels": ["a"],
            "text_columns": ["text"],
            "metric": "accuracy",
        },
        "precision": "float32",
        "stage": "finetune",
        "config": {},
        "seed": 0,
        "parent": None,
        "versions": {},
        "files": {},
    }
    return json.dumps({**card, **changes})


def test_the_smallest_card_is_read(tmp_path: Path) -> None:
    (tmp_path / CARD_NAME).write_text(card_with())
    card = Artifact.load(tmp_path).card
    assert (card.seed, card.findings) == (0, Findings())


def test_the_card_holds_no_part_that_was_not_measured(tmp_path: Path) -> None:
    path = write(tmp_path / "model", findings=Findings(parameters=7)).path / CARD_NAME
    assert json.loads(path.read_text())["findings"] == {"parameters": 7}


def test_a_number_beyond_all_numbers_is_read_as_it_was_written(tmp_path: Path) -> None:
    numbers = LargestNumber(place="Add", largest=math.inf, texts=3)
    artifact = write(tmp_path / "model", findings=Findings(numbers=numbers))
    assert artifact.card.findings.numbers == numbers
    json.loads((artifact.path / CARD_NAME).read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (card_with(schema_version=3), "schema_version is 3.* reads 2. Install the version"),
        (card_with(schema_version="2"), "schema_version is '2'"),
        (card_with(schema_version=2, metrics={}), "metrics"),
        (card_with(schema_version=1), "schema_version is 1"),
        ("[]", "must be an object"),
        (card_with(kind="pickle"), "kind"),
        (card_with(colour="red"), "colour"),
        (card_with(task={}), "problem_type"),
        (card_with()[:-9], "JSON"),
        ("", "JSON"),
        ("\xff", "utf-8"),
    ],
)
def test_a_card_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / CARD_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(NotAnArtifactError, match=said):
        Artifact.load(tmp_path)


def test_no_artifact_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotAnArtifactError, match="no such directory"):
        Artifact.load(tmp_path / "absent")
    with pytest.raises(NotAnArtifactError, match=f"no {CARD_NAME}"):
        Artifact.load(tmp_path)


def test_nothing_is_written_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*file is not a folder that"):
        check_writable(tmp_path / "file" / "artifact", None)
