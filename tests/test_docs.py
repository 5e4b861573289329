"""The pages of docs/ run: commands are executed, samples are read, names and links exist."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from bertender.cli.main import build_app, commands, main
from bertender.core import errors
from bertender.core.artifact import Artifact
from bertender.core.errors import RowError, ServingError
from bertender.gate.figures import CHECKS
from bertender.recipes.recipe import parse_recipe, recipe_names
from bertender.tasks.loading import load_task
from bertender.tasks.rows import READERS
from bertender.tasks.task import Task, TaskConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
TEXTS = (*PAGES, "CONTRIBUTING.md", "CHANGELOG.md")
RUN = tuple(page for page in PAGES if "```bash\n" in (ROOT / page).read_text(encoding="utf-8"))

Once = Callable[[str, Callable[[Path], object]], Path]


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.S | re.M)


def prose(page: str) -> str:
    """A page without the reference of the commands, which is made from them."""
    return re.sub(r"<!-- begin commands -->.*?<!-- end commands -->", "", text_of(page), flags=re.S)


def shown_commands(page: str) -> Iterator[list[str]]:
    """The words of every `bertender COMMAND ...` that a page shows, in blocks and in sentences."""
    spans = re.findall(r"`(bertender [^`\n]+)`", prose(page))
    lines = re.findall(r"^(bertender .+)$", prose(page), re.M)
    for line in (*spans, *lines):
        words = shlex.split(line, comments=True)
        if len(words) > 1 and words[1] in commands():
            yield words[1:]


@cache
def flags_of(command: str) -> frozenset[str]:
    group: Any = typer.main.get_command(build_app(command))
    parameters = group.commands[command].params
    options = [each for each in parameters if each.param_type_name == "option" and not each.hidden]
    return frozenset(flag for each in options for flag in (*each.opts, *each.secondary_opts))


@pytest.mark.parametrize("page", TEXTS)
def test_every_flag_that_is_shown_exists(page: str) -> None:
    for command, *words in shown_commands(page):
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= flags_of(command) | {"--help"}, " ".join([command, *words])


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        path = (ROOT / page).parent / place if place else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_index_has_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", text_of("docs/README.md")))
    assert linked == {Path(page).name for page in PAGES[1:]} - {"README.md"}


def test_every_command_and_check_is_explained() -> None:
    assert re.findall(r"^### (\S+)$", text_of("docs/reference.md"), re.M) == list(commands())
    explained = re.findall(
        r"^\| `(\w+)` \| [^|]{20,} \| [^|]{3,} \|$", text_of("docs/gate.md"), re.M
    )
    assert {check.figure for check in CHECKS} <= set(explained)
    assert all(f"| `{name}` |" in text_of("docs/recipes.md") for name in recipe_names())


def test_the_picture_shows_rooms_that_are_there() -> None:
    (picture,) = blocks("docs/how-it-works.md", "mermaid")
    rooms = set(re.findall(r"(\w+)/", picture))
    assert {"distill", "export", "quantize", "serve", "bertender"} <= rooms
    assert [room for room in rooms if not {*ROOT.glob(room), *ROOT.glob(f"bertender/{room}")}] == []


def test_the_recipe_is_one() -> None:
    (recipe,) = blocks("docs/recipes.md", "yaml")
    assert [step.stage for step in parse_recipe("mine", recipe).steps][:2] == [
        "finetune",
        "distill",
    ]


SAMPLES = {
    "csv": {},
    "tsv": {"text_column": "review", "label_column": "stars"},
    "jsonl": {"text_column": "question", "pair_column": "answer", "label_column": "fits"},
    "python": {},
}
"""Language of the sample's block -> the columns that the page says."""


@pytest.mark.parametrize("language", SAMPLES)
def test_the_samples_of_data_are_read(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sample,) = blocks("docs/data.md", language)
    monkeypatch.chdir(tmp_path)
    path = Path("train.parquet" if language == "python" else f"train.{language}")
    if language == "python":
        exec(sample, {})
    else:
        path.write_text(sample, encoding="utf-8")
    task = load_task(TaskConfig(train=path, dev=path, **SAMPLES[language]))
    assert (len(task.train), len(task.labels)) == (2, 2)
    assert len(task.train.examples[0]) == (2 if language == "jsonl" else 1)


def test_every_format_has_its_row() -> None:
    assert re.findall(r"^\| `(\.\w+)` \|", text_of("docs/data.md"), re.M) == list(READERS)


BAD_ROWS = {
    'text,label\n"",good': "empty. Fill it in, or leave the row out.",
    "text,label\na,b,c": "3 fields where there are 2 columns (text, label).",
}


@pytest.mark.parametrize("content", BAD_ROWS)
def test_a_bad_row_is_told_as_the_page_says(content: str, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RowError) as raised:
        load_task(TaskConfig(train=path, dev=path))
    assert BAD_ROWS[content] in str(raised.value)
    assert BAD_ROWS[content] in text_of("docs/data.md")


TINY = {
    "finetune": "--teacher {teacher} --learning-rate 3e-3",
    "compare": "--processes 1 --rounds 2 --single-texts 5",
    "distill": "--learning-rate 3e-3",
    "pretrain": "--epochs 1 --layers 1 --hidden-size 32 --heads 2 --vocabulary-size 300",
}
"""Added to a shown command: a tiny encoder learns as quickly as it can, and little is timed."""


def command_lines(page: str) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.strip().splitlines()]


def run(line: str, teacher: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    assert words[0] == "bertender", line
    # before the page's own words: the last value of an option wins
    added = "" if "--saved" in words else TINY.get(words[1], "")
    quick = [*words[:2], *added.format(teacher=teacher.path).split(), *words[2:]]
    monkeypatch.setattr(sys, "argv", quick)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, line


def write_files(folder: Path, task: Task, trained: Artifact) -> None:
    """The files that the pages name: data, and a finished model without a file of ours."""
    for name, split in (("train", task.train), ("dev", task.dev)):
        rows = [
            (example[0], task.labels[label])
            for example, label in zip(split.examples, split.label_ids, strict=True)
        ]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        lines = [{"question": text, "answer": text, "fits": text > "m"} for text, _ in rows]
        path = folder / ("pairs.jsonl" if name == "train" else "pairs-dev.jsonl")
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        tagged = [(text.split(), f"B-{label}") for text, label in rows]
        sentences = ["".join(f"{word} {tag}\n" for word in words) for words, tag in tagged]
        (folder / f"{name}.conll").write_text("\n".join(sentences), encoding="utf-8")
    for name in trained.card.files:
        (folder / "my-model").mkdir(exist_ok=True)
        shutil.copy(trained.path / name, folder / "my-model" / name)
    more = "\n".join(text.replace("number", "with") for (text,) in task.train.examples)
    (folder / "more.txt").write_text(more, encoding="utf-8")


@pytest.mark.slow
def test_the_readme_runs_as_it_stands(
    once: Once, task: Task, trained: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(once, task, trained, monkeypatch)
    names = [Artifact.load(folder / "mine" / name).card.stage for name in ("teacher", "int8")]
    assert names == ["finetune", "quantize"]


def built(once: Once, task: Task, trained: Artifact, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has run the commands of the README, from a tiny encoder."""

    def fill(folder: Path) -> None:
        write_files(folder, task, trained)
        monkeypatch.chdir(folder)
        for line in command_lines("README.md"):
            run(line, trained, monkeypatch)

    return once("readme", fill)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if page != "README.md"])
def test_the_commands_of_a_page_run(
    page: str,
    once: Once,
    task: Task,
    trained: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From where the README's commands end, but for the default encoder, which takes minutes."""
    own = tmp_path / "own"
    shutil.copytree(built(once, task, trained, monkeypatch), own)
    monkeypatch.chdir(own)
    if page == "docs/tutorial.md":
        shutil.rmtree("mine")
    for line in command_lines(page):
        run(line, trained, monkeypatch)


@pytest.mark.slow
def test_an_artifact_opens_without_bertender(
    once: Once, task: Task, trained: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(once, task, trained, monkeypatch)
    monkeypatch.chdir(folder)
    (block,) = blocks("README.md", "python")
    opened: dict[str, object] = {}
    exec(block, opened)
    assert {"student", "int8"} <= opened.keys()


FAULTS = (
    "the Python stub dies",
    "the same, with `--restart`",
    "more requests than the model can run",
    "a request waits for too long",
    "the client has gone",
    "more requests than the limit without a pause",
    "minutes of load near the limit",
    "the server rejects a request",
    "no server is there",
    "a run of the model fails, or its logits are not finite",
    "a limit of CPU time",
    "an affinity to fewer cores",
    "SIGTERM with requests in flight and an idle connection",
    "requests that do not end after SIGTERM",
    "the disk is full",
    "a file of the artifact is damaged",
    "`/dev/shm` is too small",
)
"""Faults: each is in the first column of a table of docs/serving.md."""

BAD_INPUTS = (
    "empty",
    "blank",
    "a megabyte (over `--max-text-bytes`)",
    "longer than the model's input",
    "longer than the model's input with `truncate`",
    "invalid UTF-8",
    "NUL bytes",
    "emoji",
    "right to left",
    "wrong dtype",
    "wrong shape",
    "shape `[0,1]`",
    "missing input",
    "batch over the limit",
    "a pair to a single-text model",
    "unknown model",
    "malformed JSON",
    "deeply nested JSON",
    "truncated bodies",
    "chunked bodies",
    "a gzip bomb",
    "a byte a second",
    "500 idle connections",
)
"""Bad inputs, likewise; a row lists several, by commas, where their outcome is the same."""

WITH_TESTS = re.compile(
    r"^\| (?P<noun>[\w ]+) \|.+\| Test \|\n\|[- |]+\n(?P<rows>(?:\|.+\n)+)", re.M
)
"""A table whose last column names tests, of the noun in the head of its first column."""


def rows_with_tests(noun: str) -> list[tuple[str, str]]:
    """The first and the last cell of every row of serving.md's tables of a noun."""
    tables = [
        table["rows"]
        for table in WITH_TESTS.finditer(text_of("docs/serving.md"))
        if table["noun"] == noun
    ]
    rows = [row.strip("| ").split(" | ") for table in tables for row in table.splitlines()]
    return [(row[0], row[-1]) for row in rows]


@pytest.mark.parametrize("noun", ["Error", "Fault", "Bad input"])
def test_every_row_names_tests(noun: str) -> None:
    rows = rows_with_tests(noun)
    assert rows
    for _, cell in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", cell)
        assert cell == ", ".join(f"`{file}::{function}`" for file, function in named) != ""
        for file, function in named:
            texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(file)]
            assert [f"\ndef {function}(" in text for text in texts].count(True) == 1, function


@pytest.mark.parametrize(("noun", "phrases"), [("Fault", FAULTS), ("Bad input", BAD_INPUTS)])
def test_every_fault_and_bad_input_has_its_row(noun: str, phrases: tuple[str, ...]) -> None:
    first = [cell for cell, _ in rows_with_tests(noun)]
    known = {*first, *(part for cell in first for part in cell.split(", "))}
    assert [phrase for phrase in phrases if phrase not in known] == []


def test_every_test_that_the_page_names_is_in_such_a_table() -> None:
    cells = [cell for noun in ("Error", "Fault", "Bad input") for _, cell in rows_with_tests(noun)]
    assert "".join(cells).count("::test_") == text_of("docs/serving.md").count(".py::test_") > 60


def test_the_errors_of_the_client_exist() -> None:
    for error, _ in rows_with_tests("Error"):
        assert issubclass(getattr(errors, error.strip("`")), ServingError)


DEFAULT_ADDRESS = "http://127.0.0.1:8000"
PROXY_ADDRESS = "https://localhost:8443"
PORTS = ("--http-port", "0", "--metrics-port", "0")


@contextmanager
def served_by(words: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run `bertender serve WORDS` with free ports, in a process of its own; yield its addresses."""
    ports = (*PORTS, *(("--grpc-port", "0") if "--grpc-port" in words else ()))
    command = [sys.executable, "-m", "bertender", "serve", *words, *ports, "--json"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())
        finally:
            server.send_signal(signal.SIGINT)


def first_served(page: str) -> list[str]:
    """The words of the first `bertender serve` of a page, in a block or in a sentence."""
    return shlex.split(re.findall(r"(?:^|`)bertender serve (mine/[^`\n]+)", text_of(page), re.M)[0])


def shown_lines(page: str, command: str) -> list[list[str]]:
    """The words of every line of a page that runs a command."""
    return [
        shlex.split(words)
        for words in re.findall(rf"^bertender {command} (.+)$", text_of(page), re.M)
    ]


ASK = {
    "classify": "--url {url}",
    "loadtest": "{url} --duration-s 0.5 --warmup-s 0.1 --noisy",
}
"""Commands that ask the endpoint -> what is added to them: the address, and a short time."""


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/serving.md"])
def test_the_endpoint_answers_as_the_page_says(
    page: str,
    once: Once,
    task: Task,
    trained: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What needs two terminals, with free ports: commands, curl, and Python that asks."""
    monkeypatch.chdir(built(once, task, trained, monkeypatch))
    lines = [
        (name, words)
        for name in ASK
        for words in shown_lines(page, name)
        # tests/serve/test_client_access.py and test_serving_page.py run those
        if PROXY_ADDRESS not in words and "--model" not in words
    ]
    python = [block for block in blocks(page, "python") if DEFAULT_ADDRESS in block]
    assert lines
    with served_by(first_served(page)) as urls:
        url = urls["http"]
        for name, words in lines:
            own = [word for word in words if word != DEFAULT_ADDRESS]
            added = ASK[name].format(url=url).split()
            monkeypatch.setattr(sys, "argv", ["bertender", name, *own, *added])
            with pytest.raises(SystemExit) as ended:
                main()
            late = "load generator" in capsys.readouterr().err  # where tests share the cores
            assert ended.value.code == 0 or (late and name == "loadtest"), words
        for block in python:
            exec(block.replace(DEFAULT_ADDRESS, url), {})
        for block in blocks(page, "sh"):
            for line in re.findall(r"^curl (?:.*\\\n)*.*$", block, re.M):
                run_curl(line.replace(DEFAULT_ADDRESS, url))


def run_curl(line: str) -> None:
    """Run curl, whose texts must come back with a label each."""
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    (texts,) = map(int, re.findall(r'"shape": \[(\d+), 1\]', line))
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = {each["name"]: each["data"] for each in json.loads(done.stdout)["outputs"]}
    assert len(outputs["LABEL"]) == len(outputs["SCORE"]) == texts
    assert all(isinstance(label, str) for label in outputs["LABEL"])
