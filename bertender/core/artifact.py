"""Artifacts: a directory with a model, its tokenizer and `artifact.json`.

Every stage reads artifacts and writes one. A `torch` artifact is also a plain transformers
directory (safetensors), an `onnx` artifact a plain Optimum one. `artifact.json` says where the
model came from and has the digest of every file; reading checks them. Two more files may lie next
to it: the duration of the run, which differs between equal runs and is in no digest, and golden
texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from bertender.core.card import (
    CARD_NAME,
    TIMING_NAME,
    Card,
    FileRecord,
    Kind,
    Parent,
    TaskRecord,
    library_versions,
    read_card,
)
from bertender.core.config import Record
from bertender.core.errors import ArtifactError, DamagedArtifactError, NotAnArtifactError
from bertender.core.files import (
    FILE_MODE,
    cache_directory,
    replacing_directory,
    save_text,
    unusable_parent,
)
from bertender.core.findings import Findings

IMPORT_STAGE = "import"
"""Stage of a finished model that was trained elsewhere."""
IMPORTED = "imported"
"""Folder in the cache for finished models that were given to commands directly."""
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Artifact:
    """A directory written by a stage, with its card read.

    Example:
        teacher = bertender.Artifact.load("runs/teacher")
        print(teacher.card.stage, teacher.card.task.labels, teacher.digest)
    """

    path: Path
    card: Card
    labels_on_disk: tuple[str, ...] | None = None
    """Labels on the card in its folder, where `of_task` has given it those of a task."""

    @classmethod
    def load(cls, path: Path | str, *, verify: bool = True, checked_at: str | None = None) -> Self:
        """Read the artifact at `path` and, by default, check every file's digest.

        Args:
            path: its directory.
            verify: check the digests.
            checked_at: stamp of the files at their last check; files with this stamp are not read
                again.

        Raises:
            NotAnArtifactError: the directory or a readable `artifact.json` is missing.
            DamagedArtifactError: files are missing or changed; the message names all of them.
        """
        directory = Path(path)
        artifact = cls(directory, read_card(directory))
        if verify and (checked_at is None or artifact.stamp != checked_at):
            artifact.check_files()
        return artifact

    @property
    def uncalibrated(self) -> Self:
        """The artifact without its calibration."""
        task = self.card.task.model_copy(update={"calibration": None})
        return replace(self, card=self.card.model_copy(update={"task": task}))

    @property
    def has_own_calibration(self) -> bool:
        """Whether its calibration was fitted for it, and not for its parent."""
        own = self.card.task.calibration
        return own is not None and own.fitted_for == self.uncalibrated.digest

    @property
    def stamp(self) -> str:
        """A stamp of the files on the card that changes with any change and any copy, without
        reading them."""
        files = {name: self.path / name for name in sorted(self.card.files)}
        states = [
            (name, file_state(file) if file.is_file() else None) for name, file in files.items()
        ]
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

    def check_files(self) -> None:
        """Raise DamagedArtifactError, naming every file that is missing or changed."""
        problems = []
        for name, record in self.card.files.items():
            file = self.path / name
            if not file.is_file():
                problems.append(f"{name} is missing")
            elif sha256_of(file) != record.sha256:
                problems.append(f"{name} differs from its recorded sha256 {record.sha256[:12]}...")
        if problems:
            raise DamagedArtifactError(
                f"artifact {self.path} is damaged: {'; '.join(problems)}. "
                f"Build it again (stage {self.card.stage!r}) or copy it again from its source."
            )

    def of_task(self, task: TaskRecord) -> Self:
        """Return the artifact with a task that its card does not record, as for an imported model,
        whose folder names no data. If it has a task or the labels differ, return it unchanged.

        An imported model that scores choices has only the first label: it takes any number of
        choices.
        """
        own = self.card.task
        known = task.labels[: len(own.labels)], task.problem_type
        if own.source or (own.labels, own.problem_type) != known:
            return self
        task = task.model_copy(update={"calibration": own.calibration, "fitted": own.fitted})
        on_disk = own.labels if self.labels_on_disk is None else self.labels_on_disk
        card = self.card.model_copy(update={"task": task})
        return replace(self, card=card, labels_on_disk=on_disk)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def place(self) -> str:
        """Name for use in a command: the source of a finished model in the cache folder, else the
        path."""
        is_cached = self.path.resolve().is_relative_to((cache_directory() / IMPORTED).resolve())
        # an artifact from a hub is stored as it was pushed, and its config names no hub
        return str(self.card.config.get("source", self.path) if is_cached else self.path)

    @property
    def digest(self) -> str:
        """Identity of the artifact's outputs: digest of its kind, task, calibration and files, as
        its folder has them."""
        labels = self.card.task.labels if self.labels_on_disk is None else self.labels_on_disk
        identity: dict[str, Any] = {
            "kind": self.card.kind,
            "family": self.card.family,
            "precision": self.card.precision,
            "labels": labels,
            "files": {name: record.sha256 for name, record in sorted(self.card.files.items())},
        }
        if calibration := self.card.task.calibration:
            identity["calibration"] = calibration.model_dump(mode="json")
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass
class Draft:
    """An artifact being written: put files into `directory`, and set its `findings`."""

    directory: Path
    task: TaskRecord
    findings: Findings = field(default_factory=Findings)


@contextmanager
def new_artifact(
    out: Path,
    *,
    kind: Kind,
    family: str,
    task: TaskRecord,
    stage: str,
    config: Record,
    seed: int,
    precision: str = "float32",
    max_length: int | None = None,
    parent: Artifact | None = None,
) -> Iterator[Draft]:
    """Write an artifact at `out` atomically: it appears complete at the end of the block, or not at
    all.

    The draft is a temporary directory next to `out`, synced to disk and then renamed. Only then is
    an artifact at `out` replaced. Any exception, Ctrl-C included, removes the draft.

    Raises:
        ArtifactError: `out` exists and is not an artifact or has other files too, is the parent
            itself, or lies inside an artifact, so that writing it would destroy work.
    """
    out = out.resolve()
    check_writable(out, parent)
    with replacing_directory(out) as directory:
        draft = Draft(directory, task)
        yield draft
        own_parent = None
        if parent is not None:
            path = os.path.relpath(parent.path.resolve(), out)
            own_parent = Parent(digest=parent.digest, path=path)
        card = Card(
            kind=kind,
            family=family,
            task=draft.task,
            precision=precision,
            max_length=max_length,
            stage=stage,
            config=config.model_dump(mode="json"),
            seed=seed,
            parent=own_parent,
            versions=library_versions(),
            files={
                path.relative_to(directory).as_posix(): FileRecord(
                    sha256=sha256_of(path), size_bytes=path.stat().st_size
                )
                for path in sorted(directory.rglob("*"))
                if path.is_file()
            },
            findings=draft.findings,
        )
        text = card.model_dump_json(indent=2) + "\n"
        (directory / CARD_NAME).write_text(text, encoding="utf-8")
        for file in filter(Path.is_file, directory.rglob("*")):
            file.chmod(FILE_MODE)  # safetensors makes its own private
        check_replaceable(out)  # again: minutes may have passed


def copy_artifact(artifact: Artifact, out: Path) -> Artifact:
    """Copy the files of an artifact to `out` atomically; its path to the parent stays valid.

    Raises:
        ArtifactError: `out` exists and is not an artifact or has other files too, or is this
            artifact.
    """
    place, out = out, out.resolve()
    check_writable(out, artifact)
    with replacing_directory(out) as directory:
        for name in (*artifact.card.files, TIMING_NAME):
            if (artifact.path / name).is_file():
                _copy(artifact, name, directory)
        write_moved_card(artifact, directory)
    return Artifact.load(place)


MODEL_FILES = ("model.onnx", "model.safetensors")
"""Beginnings of the names of a model's files."""


def copy_companions(artifact: Artifact, folder: Path) -> None:
    """Copy config and tokenizer: all files except the card, the model and its outputs."""
    for name in artifact.card.files:
        if name != GOLDEN_NAME and not name.startswith(MODEL_FILES):
            _copy(artifact, name, folder)


def _copy(artifact: Artifact, name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(artifact.path / name, folder / name)


def write_moved_card(artifact: Artifact, out: Path) -> None:
    """Write the card of a copied artifact into the folder `out`, with the path to the parent from
    there."""
    parent, card = artifact.card.parent, artifact.card
    if parent is not None:
        path = (artifact.path.resolve() / parent.path).resolve()
        moved = Parent(digest=parent.digest, path=os.path.relpath(path, out.resolve()))
        card = card.model_copy(update={"parent": moved})
    (out / CARD_NAME).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def check_writable(out: Path, parent: Artifact | None) -> None:
    """Raise ArtifactError where writing an artifact at `out` would destroy work.

    `out` exists and is not an artifact or has other files too, is the parent itself, or lies inside
    an artifact.
    """
    out = out.resolve()
    check_replaceable(out)
    if parent is not None and parent.path.resolve() == out:
        raise ArtifactError(
            f"{out} is the artifact to start from; writing there would destroy it. "
            "Choose another --out."
        )
    for folder in out.parents:
        if (folder / CARD_NAME).is_file():
            raise ArtifactError(
                f"{out} lies inside the artifact {folder}, whose next build would remove it. "
                "Choose an --out next to it."
            )


def check_replaceable(out: Path) -> None:
    """Raise ArtifactError when `out` has files that no stage has written, or cannot be written."""
    out = out.resolve()
    if nearest := unusable_parent(out):
        raise ArtifactError(
            f"{out} cannot be written: {nearest} is not a folder that this user may write to. "
            "Choose another --out."
        )
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / CARD_NAME).is_file():
        raise ArtifactError(
            f"{out} exists and is not an artifact, so it will not be replaced. "
            "Choose another --out, or remove it yourself."
        )
    try:
        foreign = foreign_files(out)
    except NotAnArtifactError:
        raise ArtifactError(
            f"{out} holds files that bertender may not have written, and they would be gone: its "
            f"{CARD_NAME} cannot be read as a card of bertender. Choose another --out, or remove "
            "the folder yourself."
        ) from None
    if foreign:
        raise ArtifactError(
            f"{out} holds files that no stage of bertender has written, and they would be gone: "
            f"{shown_names(foreign)}. Choose another --out, or move them."
        )


def check_not_finished(out: Path, force: bool) -> None:
    """Raise ArtifactError where a finished artifact would be replaced without `force`.

    Commands and Python functions check this first; the library replaces artifacts, as recipes do
    when they build a step again.
    """
    check_replaceable(out)
    if force or not (out / CARD_NAME).is_file():
        return
    raise ArtifactError(
        f"--out {out}: a finished artifact is there already (stage "
        f"{read_card(out).stage!r}). Give --force (force=True in Python) to replace it, or another "
        "--out."
    )


def foreign_files(folder: Path) -> list[str]:
    """Return the names of files in an artifact's folder that its card does not list.

    Raises:
        NotAnArtifactError: the folder has no `artifact.json`.
    """
    own = {CARD_NAME, TIMING_NAME, *read_card(folder).files}
    names = (
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )
    return sorted(name for name in names if name not in own)


def shown_names(names: Sequence[str]) -> str:
    """Return the first of some names for an error, and the number of others."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def digest_of(path: Path) -> str:
    """Return the digest of an artifact whose files were checked, or the sha256 of a file."""
    return sha256_of(path) if path.is_file() else Artifact.load(path).digest


def file_state(path: Path) -> tuple[int, ...]:
    """Return a file's stamp, which changes with any change or copy, without reading it."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lineage(artifact: Artifact) -> Iterator[Artifact | str]:
    """Yield an artifact and its ancestors; a missing or replaced ancestor is a text."""
    yield artifact
    while parent := artifact.card.parent:
        path = (artifact.path.resolve() / parent.path).resolve()
        task = artifact.card.task
        try:
            artifact = Artifact.load(path)
        except (ArtifactError, OSError) as error:
            yield f"parent {parent.digest[:12]}: {error}"
            return
        # a finished model of choices was once recorded with the labels of the task
        of_task = replace(artifact.of_task(task), labels_on_disk=None)
        if parent.digest not in (artifact.digest, of_task.digest):
            yield f"parent {parent.digest[:12]}: {path} holds another artifact by now"
            return
        yield artifact


class Stopwatch:
    """Adds up the time that a kind of work takes over several turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the block, and wait for its work on a GPU."""
        _wait_for_gpu()
        started = time.perf_counter()
        try:
            yield
        finally:
            _wait_for_gpu()
            self.seconds += time.perf_counter() - started


class Timing(Record):
    """Duration of a run; of an interrupted one, only the time since it was resumed."""

    wall_s: float = Field(description="from the texts to the trained model, scoring included")
    training_s: float = Field(description="steps of training, over all phases")
    samples: int = Field(description="texts in these steps, in each epoch anew")
    teacher_s: float = Field(description="in the teacher, before the training and in its steps")

    @property
    def samples_per_s(self) -> float:
        """Training texts per second of training."""
        return self.samples / self.training_s if self.training_s else 0.0

    @property
    def teacher_share(self) -> float:
        """The teacher's share of the wall time, 0 to 1."""
        return self.teacher_s / self.wall_s if self.wall_s else 0.0

    def summary(self) -> dict[str, float]:
        """Return the measured seconds and derived figures, as plain values."""
        rates = {"samples_per_s": self.samples_per_s, "teacher_share": self.teacher_share}
        return {**self.model_dump(mode="json"), **rates}


def write_timing(timing: Timing, artifact: Path) -> None:
    """Write a timing next to the card of an artifact."""
    save_text(timing.model_dump_json(indent=2) + "\n", artifact / TIMING_NAME)


def read_timing(artifact: Artifact) -> Timing | None:
    """Return the timing next to an artifact's card, or None if it cannot be read."""
    try:
        return Timing.model_validate_json((artifact.path / TIMING_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def _wait_for_gpu() -> None:
    import torch  # slow to import, so not for commands that only show a timing

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


GOLDEN_NAME = "golden.json"


Label = str | float | tuple[str, ...] | None
"""A prediction: a label, a label for each word, an answer's text, a number; None for a vector."""


class GoldenText(Record):
    """A real text of the task, and the model's outputs for it alone.

    On another machine, the model is asked about the same texts to check it. `golden_texts=0` leaves
    them out, because texts of a task may be private.
    """

    example: tuple[str, ...] = Field(description="as the model reads it: its text, or its words")
    label: Label | dict[str, Label] = Field(description="by head where there are several")
    logits: tuple[tuple[float, ...], ...] = Field(description="(rows, labels)")
    places: tuple[int, ...] = Field(description="(rows,): what each row is a prediction of")
    tokens: int = Field(description="that the model reads of it")


class GoldenTexts(Record):
    """The content of `golden.json`."""

    runtime: str = Field(description="row of RUNTIMES that computed the logits")
    tolerance: str = Field(description="row of TOLERANCES by which others are compared with them")
    logit_scale: float = Field(description="the largest of the model's source in the parity gate")
    logit_spread: float = Field(description="standard deviation of those over texts, centred")
    heads: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="both of each of several heads, by name"
    )
    texts: tuple[GoldenText, ...]


def write_golden(golden: GoldenTexts, directory: Path) -> None:
    """Write the golden texts of an artifact into its draft."""
    text = golden.model_dump_json(indent=1) + "\n"
    (directory / GOLDEN_NAME).write_text(text, encoding="utf-8")


def read_golden(artifact: Artifact) -> GoldenTexts:
    """Return the golden texts of an artifact.

    Raises:
        ArtifactError: there are none, or their file cannot be read.
    """
    stage = artifact.card.stage
    if GOLDEN_NAME not in artifact.card.files:
        raise ArtifactError(
            f"{artifact.place} has no golden texts, with which a copy of it is compared elsewhere: "
            f"it was made by an earlier version, with --golden-texts 0, or of long texts alone. "
            f"Make it again with `bertender {stage}`, which stores some."
        )
    try:
        text = (artifact.path / GOLDEN_NAME).read_text(encoding="utf-8")
        return GoldenTexts.model_validate_json(text)
    except (OSError, ValidationError) as error:
        raise ArtifactError(
            f"{artifact.path / GOLDEN_NAME} cannot be read: {type(error).__name__}. Make the "
            f"artifact again with `bertender {stage}`."
        ) from None
