"""One model in other libraries and in bertender, in process: speed and predictions.

Each row of RIVALS opens every artifact of the kind that it reads, in a process of its own, and in
its own Python environment where it has requirements (made once). Texts, or pairs of them, go in and
probabilities come out, tokenisation included, one at a time and in batches, with equal threads; all
rows take turns. A row that cannot be installed or cannot open the model is listed with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cells import Table, machine, median_ms, over, times, two
from benchmarks.harness import Noisy, Out, Row, Run, Threads, loaded, names_in, record, watched
from bertender.comparison.latency import LineProcess, line_process
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.files import cache_directory
from bertender.core.hardware import usable_cores
from bertender.metrics import score
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer

BATCH, SINGLES = 32, 50
"""Examples of a batch, and single ones of a round."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    # the versions of constraints.txt, so that libraries are compared and not releases of PyTorch
    "ctranslate2": (
        *("ctranslate2==4.8.5", "safetensors"),
        *("numpy==1.26.4", "torch==2.13.0", "transformers==4.57.6"),
    )
}
"""Row of OPENERS -> packages that pip installs into a separate environment for it."""


@dataclass(frozen=True)
class Rival:
    """A row of RIVALS."""

    title: str
    opens: str
    """A row of OPENERS of `rival_worker`."""
    reads: str
    """The kind of artifact that it opens."""
    setting: str = ""
    precision: str = ""
    """Precision of its computation, where it is not the artifact's."""


RIVALS: Mapping[str, Rival] = {
    "transformers": Rival("transformers, pipeline", "transformers", "torch"),
    "torch-compile": Rival("`torch.compile`", "compiled", "torch", "float32"),
    "torch-compile-bfloat16": Rival("`torch.compile`", "compiled", "torch", "bfloat16", "bfloat16"),
    "optimum": Rival("Optimum, pipeline", "optimum", "onnx"),
    "ctranslate2": Rival("CTranslate2", "ctranslate2", "torch", "float32"),
    "ctranslate2-int8": Rival("CTranslate2", "ctranslate2", "torch", "int8", "int8"),
    "onnxruntime": Rival("ONNX Runtime alone", "onnxruntime", "onnx"),
    "openvino": Rival("OpenVINO alone", "openvino", "onnx"),
    "bertender-torch": Rival("bertender, PyTorch", "bertender", "torch"),
    "bertender": Rival("bertender, ONNX Runtime", "bertender", "onnx", "onnxruntime"),
    "bertender-openvino": Rival("bertender, OpenVINO", "bertender", "onnx", "openvino"),
    "bertender-openvino-bf16": Rival(
        "bertender, OpenVINO bfloat16", "bertender", "onnx", "openvino-bf16", "bfloat16"
    ),
}
"""Rivals by name; the first is the reference."""


def run(
    artifacts: Annotated[list[Path], typer.Argument(help="of one model: torch, onnx, int8")],
    out: Out = None,
    only: Annotated[str, typer.Option(help="rivals by commas; all by default")] = "",
    rounds: Annotated[int, typer.Option(help="of each repetition")] = 4,
    processes: Annotated[int, typer.Option(help="repetitions in fresh processes")] = 3,
    threads: Threads = 0,
    noisy: Noisy = False,
) -> None:
    """Measure every rival that opens a model."""
    models = loaded(artifacts)
    task = recorded_task(models[0], {})
    length = SINGLE_LABEL.encoder(load_tokenizer(models[0].path), None).max_length
    entries = {}
    for name in names_in("--only", only, RIVALS):
        own = [model for model in models if model.card.kind == RIVALS[name].reads]
        for model in own:
            entries[name if len(own) == 1 else f"{name} {model.name}"] = (name, model)
    contest = Contest(task, entries, threads or usable_cores(), length)
    rows, absent = contest.predicted()
    with watched(noisy, out) as meter:
        for number in range(processes):
            contest.time(rows, rounds, number)
    about = {"task": task.name, "n": len(task.dev), "max_length": length, "batch_texts": BATCH}
    record("rivals", rows, out, meter.load, **about, threads=contest.threads, absent=absent)


@dataclass(frozen=True)
class Contest:
    """Rivals on the held-out texts of a task."""

    task: Task
    entries: Mapping[str, tuple[str, Artifact]]
    """Name -> the row of RIVALS, and what it opens."""
    threads: int
    max_length: int

    def predicted(self) -> tuple[list[Row], dict[str, str]]:
        """Return a row of each entry that opens and predicts, and why others have none."""
        rows: list[Row] = []
        absent: dict[str, str] = {}
        reference: Any = None
        examples, labels = self.task.dev.examples, self.task.dev.label_ids
        for name, (rival, model) in self.entries.items():
            try:
                with self._opened(rival, model) as (worker, versions):
                    parts = range(0, len(examples), BATCH)
                    asked = [{"predict": examples[start : start + BATCH]} for start in parts]
                    answers = [row for part in asked for row in _answer(worker, part)]
            except (ModelError, subprocess.CalledProcessError) as error:
                absent[name] = str(error).replace(str(model.path.resolve()), model.name)
                print(f"{name} is left out: {error}")
                continue
            probabilities = np.array(answers, np.float64)
            reference = probabilities if reference is None else reference
            chosen = probabilities.argmax(axis=1)
            found = score("accuracy", labels, chosen, label_count=len(self.task.labels))
            row: Row = {"name": name, "rival": rival, "artifact": model.name}
            row["precision"] = RIVALS[rival].precision or model.card.precision
            row |= {"versions": versions, "score": found.model_dump()}
            row["agreement"] = float((chosen == reference.argmax(axis=1)).mean())
            row["max_probability_difference"] = float(np.abs(probabilities - reference).max())
            rows.append({**row, "single_ms": [], "batch_ms": []})
        return rows, absent

    def time(self, rows: Sequence[Row], rounds: int, number: int) -> None:
        """Add a repetition to the rows: each in a process, all in turns."""
        examples, draw = self.task.dev.examples, np.random.default_rng(number)
        with ExitStack() as stack:
            own = (self.entries[row["name"]] for row in rows)
            workers = [stack.enter_context(self._opened(*each))[0] for each in own]
            for row in rows:
                row["single_ms"].append([])
                row["batch_ms"].append([])
            for _ in range(rounds):
                singles, batch = (
                    [examples[place] for place in draw.integers(0, len(examples), count)]
                    for count in (SINGLES, BATCH)
                )
                for row, worker in zip(rows, workers, strict=True):
                    asked = {"singles": singles, "batch": batch}
                    single_ms, batch_ms = _answer(worker, asked)
                    row["single_ms"][-1].append(single_ms)
                    row["batch_ms"][-1].append(batch_ms)

    @contextmanager
    def _opened(self, rival: str, model: Artifact) -> Iterator[tuple[LineProcess, dict[str, str]]]:
        """Open a model in a process of its own; yield the process and versions of its libraries.

        Raises:
            ModelError: it cannot be installed, or cannot open the model.
        """
        row = RIVALS[rival]
        request = {
            "opens": row.opens,
            "folder": str(model.path.resolve()),
            "threads": self.threads,
            "max_length": self.max_length,
            "setting": row.setting,
        }
        counts = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
        with line_process(
            "benchmarks.rival_worker",
            f"the process of {row.title}",
            python=_python(REQUIREMENTS.get(row.opens, ())),
            variables={**OFFLINE, **counts},
        ) as process:
            yield process, _answer(process, request)


def _python(requirements: Sequence[str]) -> str:
    """Return an interpreter with some requirements, installed once."""
    if not requirements:
        return sys.executable
    place = cache_directory() / "rivals" / requirements[0].replace("==", "-")
    if not (place / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        variables = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([*pip, *requirements], check=True, env=variables)
        (place / "made").touch()
    return str(place / "bin" / "python")


def _answer(process: LineProcess, content: Mapping[str, Any]) -> Any:
    """Send a process a line of JSON, and return its answer."""
    return json.loads(process.ask(json.dumps(content)))


def table(runs: Sequence[Run]) -> Table:
    """Times of each library, one text at a time and in batches, over the first one."""
    (result,) = runs
    first = result.rows[0]
    rows = []
    for row in filter(_is_chosen, result.rows):
        name, size = row["artifact"], result.about["batch_texts"]
        kind = f"int8, {name}" if name in ("dynamic", "static") else row["precision"]
        faster = ["-", "-"]
        if row is not first:
            faster = [times(over(first, row, key)) for key in ("single_ms", "batch_ms")]
        batches = [value for rounds in row["batch_ms"] for value in rounds]
        rate = two(1000 * size * len(batches) / sum(batches))
        alone = two(median_ms(row["single_ms"]))
        rows.append([RIVALS[row["rival"]].title, kind, alone, faster[0], rate, faster[1]])
    headings = ["Library", "Model", "One text, ms", "Times as fast", "In batches, texts/s"]
    note = (
        f"{result.about['n']} texts of SST-2, a model of 6 layers; text in, probabilities out; "
        f"brackets are 95 % intervals. {machine(result)}."
    )
    return Table([*headings, "Times as fast"], rows, note)


def _is_chosen(row: Row) -> bool:
    """Return whether somebody would choose a row: OpenVINO is slow with dynamic scales."""
    if "openvino" not in row["rival"]:
        return True
    wanted = {"bertender-openvino": "static", "bertender-openvino-bf16": "float"}
    return bool(row["artifact"] == wanted.get(row["rival"], row["artifact"]) != "dynamic")
