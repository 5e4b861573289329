"""Finished models of one teacher: scored, and timed in turns unless `--untimed`.

With `--served`, each is asked through `bertender serve` instead, by one caller, an example a call.

Models whose names differ by a number at the end (`student-0`, `student-1`) were made by one command
with several seeds, and are one row of a table.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import cells, harness
from benchmarks.making import check_choices, scored_row, task_facts
from benchmarks.servers import ANY_PORTS
from bertender.comparison.accuracy import decoded, score_by
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig, percentiles
from bertender.core.artifact import Artifact
from bertender.core.progress import track
from bertender.models.classifier import open_classifier
from bertender.models.own_models import open_config
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from serve.check import largest_difference, served_outputs
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.server.server import serving

SEEDS = re.compile(r"(-seed)?-\d+$")
EVERY = "every n-th"
SERVED = "served"
RUNS_AS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", None: "PyTorch"}
TITLES = {
    "modern": "ModernBERT, 6 x 384",
    "modern-onnx": "its fused ONNX graph",
    "modern-int8": "its 8 bits",
    "modern-pruned-int8": "a quarter of heads and neurons cut, 8 bits",
    "modern-student-int8": "3 of its layers, 8 bits",
    "bert-onnx": "BERT, 6 x 384 (all-MiniLM-L6-v2)",
    "bert-int8": "that BERT's 8 bits",
    "hard": "student, labels alone",
    "bag-of-words": "bag of words",
}
LEFT_OUT = {"static", "static-onnx", "student-onnx"}
"""Rows of a comparison that nobody would choose."""
SEED_TITLES = {
    "first": "student, 4 layers",
    "first-fused": "its 8 bits",
    "second": "trained once more",
    "deeper": "student, 6 layers",
    "deeper-fused": "8 bits of 6 layers",
    "q-bert-2-bits-one-group": "q-bert-2-bits, one group",
}
SEEDS_LEFT_OUT = {"first-four-bit", "second-fused", "deeper-four-bit"}


KINDS = {
    "mrpc": "one label of a pair: MRPC",
    "stsb": "a number: STS-B",
    "semeval2018-ec": "a set: SemEval-2018 emotions",
    "ncbi": "tags of words: NCBI-disease",
    "tydiqa-train": "an answer: TyDiQA",
    "commonsenseqa": "one of five choices: CommonsenseQA",
    "squad-ranking": "a ranking: SQuAD questions, 10 paragraphs",
    "stsb-embedding": "a vector: STS-B",
    "snips-joint": "intent and slots: SNIPS",
    "sst2,ag_news": "two tasks at once: SST-2 and AG News",
}
"""Task -> the kind of problem, in the order of the table."""


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact that the others come from")],
    models: Annotated[list[Path], typer.Argument(help="artifacts")],
    out: harness.Out = None,
    untimed: Annotated[bool, typer.Option(help="no times, and scores on validation texts")] = False,
    served: Annotated[bool, typer.Option(help="each behind `bertender serve`")] = False,
    dev: Annotated[Path | None, typer.Option(help="untimed, scored on this file")] = None,
    cascade: Annotated[
        bool, typer.Option(help="cascade of the first model and the teacher")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="repetitions of the timing")] = 3,
    threads: harness.Threads = 0,
    noisy: harness.Noisy = False,
) -> None:
    """Score models next to their teacher, and time them."""
    artifacts = harness.loaded([teacher, *models])
    task = recorded_task(artifacts[0], {"dev": dev, "select": 0.0} if dev else {})
    if served:
        with harness.watched(noisy or untimed, None if untimed else out) as meter:
            rows = [served_row(each, task, untimed) for each in artifacts[1:]]
        load = None if untimed else meter.load
        harness.record("models", rows, out, load, part=SERVED, task=task.name)
    elif untimed or dev:
        if not dev:
            check_choices(artifacts[0], task)
        rows = [
            scored_row(each, task, group=group_of(each, teacher), **how_made(each))
            for each in track(artifacts, "score", len(artifacts))
        ]
        part: dict[str, Any] = {"part": dev.stem} if dev else {}
        harness.record("models", rows, out, **task_facts(task), **part)
    else:
        config = CompareConfig(processes=processes, threads=threads, noisy=noisy)
        pair = (artifacts[1], artifacts[0]) if cascade else None
        comparison = compare(artifacts, task, config, cascade=pair)
        harness.save_runs([comparison_run("models", comparison)], out)


def comparison_run(subject: str, comparison: Any, **about: Any) -> harness.Run:
    """Return the record of a comparison."""
    parts = comparison.model_dump(mode="json", exclude={"circumstances": {"environment", "load"}})
    more = parts["circumstances"] | {name: parts[name] for name in ("constant", "noise_floor")}
    return harness.recorded(subject, parts["rows"], comparison.circumstances.load, **more, **about)


def served_row(artifact: Artifact, task: Task, untimed: bool) -> harness.Row:
    """Return a row of an artifact's score by the answers of its endpoint, and of one caller's time.

    The score of the same file here, one example at a time, stands beside it.
    """
    asked = [task.problem.asked([example]) for example in task.dev.examples]
    answers, single_ms = [], []
    with (
        serving(artifact, ServeConfig.parse(ANY_PORTS)) as server,
        Endpoint(server.grpc_url) as endpoint,
    ):
        for texts in track(asked, f"ask {artifact.name}", len(asked)):
            began = time.perf_counter()
            answers.append(endpoint.classify(texts))
            single_ms.append(1000 * (time.perf_counter() - began))
    local = open_classifier(artifact)
    pairs = [*map(partial(served_outputs, local), task.dev.examples, answers)]

    def scored(outputs: Any) -> harness.Row:
        predictions = decoded(local.problem, outputs, task.dev.examples)
        return score_by(task.metric, task.labels, task.dev, predictions, outputs).model_dump()

    served, own = map(scored, zip(*pairs, strict=True))
    latency = {"single": percentiles(np.array(single_ms)).model_dump(), "single_ms": single_ms}
    return {
        "name": artifact.name,
        "digest": artifact.digest,
        "score": served,
        "score_of_file": own,
        "max_abs_difference": largest_difference(pairs),
        "latency": None if untimed else latency,
    }


def group_of(artifact: Artifact, teacher: Path) -> str:
    """Return the name of the row that an artifact is one seed of."""
    return "teacher" if artifact.path == teacher else SEEDS.sub("", artifact.name)


def how_made(artifact: Artifact) -> harness.Row:
    """Return the settings of an artifact; of a student, also the layers that it starts from."""
    card = artifact.card
    settings = {name: value for name, value in card.config.items() if value not in (None, {}, [])}
    if card.stage != "distill":
        return {"stage": card.stage, "settings": settings}
    layers = settings.setdefault("layers", open_config(str(artifact.path)).num_hidden_layers)
    chosen = settings.get("teacher_layers", "")
    named = {"alternating": EVERY, "spread": EVERY, "first-and-last": "first and last"}
    start = named.get(str(chosen), "default")
    if chosen in ("first", [*range(layers)]):
        start = "first"
    elif chosen[:-1] == [*range(layers - 1)]:
        start = "first and last"
    return {"stage": card.stage, "settings": settings, "start": start, "method": settings["method"]}


def table(runs: Sequence[harness.Run]) -> cells.Table:
    """Size, score and speed of compared models, without further seeds."""
    (result,) = runs
    rows = [row for row in result.rows if "-seed-" not in row["name"]]
    shown = [_compared(row) for row in rows if row["name"] not in LEFT_OUT]
    headings = ["Model", "Runs as", "MB", "Score", "One text, ms", "Times as fast"]
    return cells.Table(headings, shown, cells.compared_note(result))


def _compared(row: harness.Row) -> list[str]:
    name = str(row["name"])
    precision = "" if row["precision"] == "float32" else f", {row['precision']}"
    runs_as = RUNS_AS[row["runtime"]] + precision
    return [
        TITLES.get(name, name),
        "scikit-learn" if name == "bag-of-words" else runs_as,
        cells.megabytes(row),
        cells.score(row["score"]),
        cells.single_ms(row),
        cells.DASH if row["change"] is None else cells.times(row["latency"]["speedup"]),
    ]


def cascade_table(runs: Sequence[harness.Run]) -> cells.Table:
    """Score, time and share passed on of a cascade beside the models that it is of."""
    (result,) = runs
    rows = []
    for row in result.rows:
        title = ", then ".join(TITLES.get(each, each) for each in row["name"].split(", then "))
        found, latency = row["cascade"], row["latency"]
        passed_on = cells.DASH if found is None else f"{found['passed_on']:.0%}"
        mean = statistics.fmean(np.ravel(latency["single_ms"]).tolist())
        ms = [cells.two(each) for each in (mean, latency["single"]["p99_ms"])]
        faster = cells.DASH if row["change"] is None else cells.times(latency["speedup"])
        rows.append([title, cells.score(row["score"]), passed_on, *ms, faster])
    (cascade,) = (row["cascade"] for row in result.rows if row["cascade"])
    chosen_on = f"chosen on {cascade['chosen_on']} validation texts"
    note = cells.compared_note(result, f"a threshold of {cascade['threshold']:.3f}, {chosen_on}")
    headings = ["Model", "Score", "Passed on", "Mean, ms", "p99, ms", "Times as fast"]
    return cells.Table(headings, rows, note)


def kinds_table(runs: Sequence[harness.Run]) -> cells.Table:
    """The models of each kind of problem: scores of all, size and time of teacher and 8 bits."""
    found = {(run.about["task"], run.about.get("part")): run for run in runs}
    rows = [
        _of_kind(found[task, None], found.get((task, SERVED)), title)
        for task, title in KINDS.items()
    ]
    steps = ("Teacher", "Half of it", "Student / labels alone", "8 bits", "Served")
    note = (
        'Brackets are 95 % intervals; "8 bits" is the student\'s; milliseconds are those of one '
        'text in process; "served" is the file of 8 bits by `bertender serve`, for one caller of '
        f"one example a call over gRPC. {cells.machine(runs[0])}."
    )
    return cells.Table(["Kind", *steps], rows, note)


def _of_kind(run: harness.Run, served: harness.Run | None, title: str) -> list[str]:
    named = {row["name"].removesuffix("-onnx"): row for row in run.rows}
    scores = {name: cells.score(row["score"]) for name, row in named.items()}
    teacher, last = named["teacher"], named["student-int8"]
    own = teacher["score"]["metric"]
    metric = "mean of both" if "+" in own else cells.METRICS.get(own, own.replace("_", " "))
    return [
        f"{title}, {metric}",
        f"{scores['teacher']}, {_cost(teacher)}",
        scores["pruned"],
        f"{scores['student']} / {scores['hard']}",
        f"{scores['student-int8']}, {_cost(last)}",
        cells.DASH if served is None else _served(served.rows[0]),
    ]


def _served(row: harness.Row) -> str:
    shown = cells.score(row["score"])
    return f"{shown}, {cells.single_ms(row)} ms" if row["latency"] else shown


def default_table(runs: Sequence[harness.Run]) -> cells.Table:
    """Graphs in float, by the default of `quantize`, and by another scheme: each set's scores."""
    *scored, timed = runs
    rows = []
    for run in scored:
        (reference,), *others = harness.grouped(run.rows, "group").values()
        changes = (cells.points(cells.gain(run, [reference], own)) for own in others)
        rows.append([cells.titled(run), cells.score(reference["score"]), *changes])
    before, after = timed.rows
    speeds = (
        cells.over(before["latency"], after["latency"], key) for key in ("single_ms", "batch_ms")
    )
    one, many = map(cells.times, speeds)
    note = (
        f"{timed.about['layers']} layers, {cells.megabytes(before)} MB before and "
        f"{cells.megabytes(after)} after; by default {one} as fast for one text of SST-2, and "
        f"{many} in batches of {timed.about['batch_texts']}. Brackets are 95 % intervals. "
        f"{cells.machine(timed)}."
    )
    headings = ["Data set", "Float", "By default, points", "`dynamic`, points"]
    return cells.Table(headings, rows, note)


WINDOWS = {
    "mean": "all, in windows of 256 (`--windows mean`)",
    "cut-512": "the first 512",
    "cut-256": "the first 256",
    "cut-128": "the first 128",
}


def windows_table(runs: Sequence[harness.Run]) -> cells.Table:
    """Long texts that are cut, or read in windows: the score of each."""
    (result,) = runs
    named = {row["name"]: row for row in result.rows}
    whole = named["mean"]
    rows = []
    for name, title in WINDOWS.items():
        row = named[name]
        change = None if row is whole else cells.gain(result, [whole], [row])
        rows.append([title, cells.score(row["score"]), cells.points(change)])
    note = (
        f"20 Newsgroups, {result.rows[0]['score']['n']} documents of 200 to 1,200 tokens; "
        "all-MiniLM-L6-v2, 600 training documents, 3 epochs, one seed; brackets are 95 % intervals."
    )
    return cells.Table(["Tokens that are read", "Accuracy", "Points"], rows, note)


LANGUAGES = {"test-de": "German", "test-fr": "French", "test-zh": "Chinese", "test-en": "English"}
"""Held-out file of a language -> its name."""
OF_LANGUAGES = {
    "onnx": "multilingual-e5-small, 12 layers",
    "cut-onnx": "with the tokens of German and French texts",
    "cut-int8": "that in 8 bits, its table in 4",
}


def languages_table(runs: Sequence[harness.Run]) -> cells.Table:
    """A multilingual model, and what is left of it with the tokens of two languages."""
    timed = next(run for run in runs if run.about.get("part") is None)
    scored = {run.about.get("part"): {row["name"]: row for row in run.rows} for run in runs}
    rows = []
    for row in timed.rows:
        scores = [cells.score(scored[part][row["name"]]["score"]) for part in LANGUAGES]
        rows.append([OF_LANGUAGES[row["name"]], _cost(row), *scores])
    (count,) = {row["score"]["n"] for part in LANGUAGES for row in scored[part].values()}
    note = (
        f"XNLI, {count} pairs of each language; accuracy, brackets are 95 % intervals; "
        f"milliseconds are those of one pair. {cells.machine(timed)}."
    )
    return cells.Table(["Model", "Size, one pair", *LANGUAGES.values()], rows, note)


def _cost(row: harness.Row) -> str:
    return f"{cells.megabytes(row)} MB, {cells.single_ms(row)} ms"


def seeds_table(runs: Sequence[harness.Run]) -> cells.Table:
    """Models of several seeds: the score of each, and the change from the teacher."""
    (result,) = runs
    groups = harness.grouped(result.rows, "group")
    (teacher,) = groups["teacher"]
    rows = []
    for name, own in groups.items():
        if name in SEEDS_LEFT_OUT:
            continue
        each = ", ".join(f"{row['score']['value']:.3f}" for row in own)
        change = None if name == "teacher" else cells.gain(result, [teacher], own)
        megabytes = cells.two(own[0]["size"]["model_size_bytes"] / 1e6)
        rows.append([SEED_TITLES.get(name, name), megabytes, each, cells.points(change)])
    headings = ["Model", "MB", f"{cells.titled(result)} of each seed", "Points from teacher"]
    note = (
        f"n = {teacher['score']['n']}; brackets are 95 % intervals over texts and seeds. "
        f"{cells.machine(result)}."
    )
    return cells.Table(headings, rows, note)


def starts_table(runs: Sequence[harness.Run]) -> cells.Table:
    """Points of starts from chosen teacher layers over a start from every n-th one."""
    rows = [row for run in runs for row in _starts(run)]
    headings = ["Data set", "Layers", "Method", "Training", "Starts from", "Points over every n-th"]
    note = "Brackets are 95 % intervals over texts, and seeds where there are several."
    return cells.Table(headings, rows, note)


def _starts(run: harness.Run) -> Iterator[list[str]]:
    alike = defaultdict(list)
    for row in run.rows:
        if "start" in row:
            settings = row["settings"]
            alike[row["method"], settings["layers"], settings["epochs"]].append(row)
    budget = run.about.get("budget_s")  # in an equal time, the epochs of rows differ
    for (method, layers, epochs), own in alike.items():
        starts = harness.grouped(own, "start")
        for start, chosen in starts.items():
            if start != EVERY and EVERY in starts:
                training = f"{budget:.0f} s" if budget else f"{epochs} epochs"
                change = cells.points(cells.gain(run, starts[EVERY], chosen))
                yield [cells.titled(run), str(layers), f"`{method}`", training, start, change]
