"""The command line, called in this process, and toy files for it to work on."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from bertender.cli.main import COMMANDS, build_app
from bertender.core.progress import show_progress
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from tests.toys import FRUIT, TOOLS

WRITERS = {name: stage for name, stage in STAGES.items() if not stage.suffix}
"""The stages that write an artifact; the others report."""


@dataclass(frozen=True)
class ToyFiles:
    """The toy task as CSV files, and a corpus of its words."""

    train: Path
    dev: Path
    corpus: Path

    @classmethod
    def of(cls, folder: Path) -> ToyFiles:
        return cls(folder / "train.csv", folder / "dev.csv", folder / "corpus.txt")

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--train", str(self.train), "--dev", str(self.dev))

    @property
    def task(self) -> dict[str, str]:
        return {"task": "toy", "train": str(self.train), "dev": str(self.dev)}


def write_toy_files(folder: Path, task: Task) -> ToyFiles:
    files = ToyFiles.of(folder)
    write_csv(files.train, task.train, task.labels)
    write_csv(files.dev, task.dev, task.labels)
    words = (*FRUIT, *TOOLS)
    lines = (f"{words[row % 12]} {words[row * 5 % 12]} number {row}" for row in range(240))
    files.corpus.write_text("\n".join(lines), encoding="utf-8")
    return files


def write_csv(path: Path, split: Split, labels: tuple[str, ...]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for (text,), label_id in zip(split.examples, split.label_ids, strict=True):
            writer.writerow([text, labels[label_id]])


def write_fresh_texts(path: Path, task: Task) -> Path:
    """Write the training texts of a task of two labels, a third of them with the wrong one."""
    labels = tuple(
        1 - label if row % 3 == 0 else label for row, label in enumerate(task.train.label_ids)
    )
    write_csv(path, Split(task.train.examples, labels), task.labels)
    return path


def invoke(*words: str | Path, stdin: str | bytes | None = None) -> Result:
    """Run `bertender WORDS...` in this process."""
    arguments = [str(word) for word in words]
    requested = next((word for word in arguments if word in COMMANDS), None)
    try:
        return CliRunner().invoke(build_app(requested), arguments, input=stdin)
    finally:
        show_progress(False)  # the bars of this run would go to a stream that is closed by now


def succeed(*words: str | Path, stdin: str | bytes | None = None) -> Result:
    """Run `bertender WORDS...`, which must exit with 0."""
    result = invoke(*words, stdin=stdin)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result


def fail(*words: str | Path, stdin: str | bytes | None = None, status: int = 2) -> str:
    """Run `bertender WORDS...`, which must exit with `status`; return its message, on one line."""
    result = invoke(*words, stdin=stdin)
    assert result.exit_code == status, (words, result.output, result.exception)
    assert "Traceback" not in result.output
    # what is wrong with an option stands in a frame
    return " ".join(result.stderr.replace("│", " ").split())


def last_line(result: Result) -> Any:
    """Return the JSON on the last line of standard output."""
    return json.loads(result.stdout.rstrip("\n").rpartition("\n")[2], parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
