"""The pages: their commands and samples run, what they name exists, and the site is built.

Blocks of `bash` are run one after the other, in a folder where the README's commands have been
run; blocks of `sh`, `js` and of Python with an address are sent to a served model. Blocks without
a language, of a cluster or a second machine, are shown only.
"""

from __future__ import annotations

import csv
import importlib.util
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
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

from bertender.cli.main import COMMANDS, build_app, main
from bertender.core.artifact import Artifact
from bertender.metrics.metric import NO_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.tasks.teacher_files import TeacherColumns, read_teacher_file
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from export.config import ExportConfig
from export.exporter import export
from tests.front import write_fresh_texts
from tests.toy_heads import JOINT
from tests.toy_models import save_encoder
from tests.toy_tagging import TASK as TAGGING
from tests.toys import answer_task, choice_task, ranking_task, similarity_task, toy_task

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAGES = ("README.md", *DOCS)
PRODUCT = ("bertender", "distill", "export", "quantize", "serve")
DEFAULT_ADDRESS = "http://127.0.0.1:8000"
GUARDED_ADDRESS = "https://localhost:8443"

Once = Callable[[str, Callable[[Path], object]], Path]


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.S | re.M)


def shown_lines(page: str, command: str) -> list[list[str]]:
    """The words of every line of a page that runs a command of bertender."""
    lines = re.findall(rf"^bertender {command} (.+)$", text_of(page), re.M)
    return [shlex.split(words) for words in lines]


def test_the_site_is_built(tmp_path: Path) -> None:
    """Strictly: every link, picture and anchor leads somewhere, and nothing is fetched."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    loaded = re.findall(r"<(?:script|img|iframe)[^>]+\bsrc=\"https?:[^\"]+", "".join(pages))
    loaded += re.findall(r"<link rel=\"(?:stylesheet|preconnect)\" href=\"https?:[^\"]+", pages[0])
    assert not loaded
    reference = (tmp_path / "reference/commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="{name}"' not in reference] == []


def shown_commands(page: str) -> Iterator[list[str]]:
    """The words of every `bertender COMMAND ...` that a page shows, in blocks and in sentences."""
    names = "|".join(COMMANDS)
    spans = re.findall(rf"`bertender ((?:{names}) [^`\n]+)`", text_of(page))
    lines = re.findall(rf"^bertender ((?:{names}) .+)$", text_of(page), re.M)
    for line in (*spans, *lines):
        yield shlex.split(line, comments=True)


@cache
def flags_of(command: str) -> frozenset[str]:
    group: Any = typer.main.get_command(build_app(command))
    parameters = group.commands[command].params
    return frozenset(flag for each in parameters for flag in (*each.opts, *each.secondary_opts))


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_flag_that_is_shown_exists(page: str) -> None:
    for command, *words in shown_commands(page):
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= flags_of(command) | {"--help"}, " ".join([command, *words])


def test_every_page_that_the_code_names_exists() -> None:
    files = [
        *(path for name in PRODUCT for path in (ROOT / name).rglob("*.py")),
        *(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
    ]
    named = re.compile(r"(?<![/\w])(?:docs|benchmarks/reports)/[\w/-]+\.md")
    missing = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in files
        for page in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / page).is_file()
    }
    assert not missing


SAMPLES = {
    "csv": {},
    "tsv": {"text_column": "review", "label_column": "stars"},
    "jsonl": {"text_column": "question", "pair_column": "answer", "label_column": "fits"},
}
"""Language of the sample's block -> the columns that the page says."""


@pytest.mark.parametrize("language", SAMPLES)
def test_the_samples_of_data_are_read(language: str, tmp_path: Path) -> None:
    sample, *_ = blocks("docs/how-to/data.md", language)
    path = tmp_path / f"train.{language}"
    path.write_text(sample, encoding="utf-8")
    task = load_task(TaskConfig(train=path, dev=path, **SAMPLES[language]))
    assert (len(task.train), len(task.labels)) == (2, 2)
    assert len(task.train.examples[0]) == (2 if language == "jsonl" else 1)


def test_the_sample_of_sets_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(blocks("docs/how-to/data.md", "jsonl")[1], encoding="utf-8")
    task = load_task(TaskConfig(train=path, dev=path, problem_type="multi_label_classification"))
    assert (task.labels, task.train.label_ids) == (("anger", "sadness"), ((0, 1), ()))


@pytest.mark.parametrize("language", ["json", "csv", "jsonl"])
def test_the_samples_of_questions_are_read(language: str, tmp_path: Path) -> None:
    path = tmp_path / f"train.{language}"
    path.write_text(blocks("docs/how-to/questions.md", language)[0], encoding="utf-8")
    task = load_task(TaskConfig(train=path, dev=path, problem_type="question_answering"))
    assert task.train.label_ids == ((("Miles Davis", 8),), ())


def test_the_samples_of_queries_are_read(tmp_path: Path) -> None:
    page = "docs/how-to/ranking.md"
    samples = [("jsonl", text) for text in blocks(page, "jsonl")] + [
        ("csv", blocks(page, "csv")[0])
    ]
    for number, (language, text) in enumerate(samples):
        path = tmp_path / f"{number}.{language}"
        path.write_text(text, encoding="utf-8")
        task = load_task(TaskConfig(train=path, dev=path, problem_type="ranking"))
        assert len(task.train) == 2
        assert sorted(task.train.label_ids[0]) == [0, 1]


def test_the_sample_of_several_heads_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(blocks("docs/how-to/heads.md", "jsonl")[0], encoding="utf-8")
    (words,) = (own for own in shown_lines("docs/how-to/heads.md", "finetune") if "--train" in own)
    columns, kinds = (words[words.index(x) + 1] for x in ("--label-column", "--problem-type"))
    task = load_task(TaskConfig(train=path, dev=path, label_column=columns, problem_type=kinds))
    assert task.train.label_ids[1:] == ((1, (0,)), (NO_LABEL, (0, 1, 2)))
    assert task.labels[:2] == ("intent:play", "intent:volume")


def test_the_sample_of_soft_labels_is_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(blocks("docs/how-to/labels.md", "jsonl")[0], encoding="utf-8")
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nSo good,good\nSo bad,bad\n", encoding="utf-8")
    task = load_task(TaskConfig(dev=dev), has_model=True)
    file = read_teacher_file(path, task, TeacherColumns())
    assert file.labels == ("bad", "good")
    assert file.outputs[:, 1].tolist() == [0.97, 0.05, 0.62]


PACKAGED = "all-MiniLM-L6-v2"
"""The encoder that students on pages start from; a tiny one stands for it."""
FRESH = "--train fresh.csv --dev dev.csv"
"""Of these few training texts, none is a validation text."""
TINY = {
    "finetune": "--teacher {teacher} --learning-rate 3e-3",
    "compare": "--processes 1 --rounds 2 --single-texts 5 --noisy",
    "distill": "--learning-rate 3e-3",
    "calibrate": FRESH,
    "drift": "--reference earlier.csv",
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
    added += f" {FRESH}" if "--cascade" in words else ""
    stand_in = str(teacher.path) if words[1] == "distill" else PACKAGED
    own = [stand_in if word == PACKAGED else word for word in words[2:]]
    quick = [*words[:2], *added.format(teacher=teacher.path).split(), *own]
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
    fresh = toy_task(900)
    write_fresh_texts(folder / "fresh.csv", fresh)
    bare = [text.split(" number")[0] for text in fresh.train.texts()]
    for name, rows_of in (("earlier", bare[::3]), ("recent", bare[1::3])):
        (folder / f"{name}.csv").write_text("\n".join(["text", *rows_of]), encoding="utf-8")
    asked = answer_task(96, 32)
    for name, split in (("train", asked.train), ("dev", asked.dev)):
        pairs = zip(split.examples, split.label_ids, strict=True)
        paragraphs = [
            {
                "context": context,
                "qas": [
                    {
                        "id": str(number),
                        "question": question,
                        "answers": [{"text": text, "answer_start": at} for text, at in answers],
                    }
                ],
            }
            for number, ((question, context), answers) in enumerate(pairs)
        ]
        content = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"{name}-v2.0.json").write_text(content, encoding="utf-8")
    for name, split in (("requests", JOINT.train), ("requests-dev", JOINT.dev)):
        lines = [
            {"words": words, **JOINT.problem.by_names(target, JOINT.labels)}
            for words, target in zip(split.examples, split.label_ids, strict=True)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    ranked = ranking_task(96, 32)
    for name, split in (("queries", ranked.train), ("queries-dev", ranked.dev)):
        queries = [
            {"query": query, "passages": passages, "relevance": target}
            for (query, *passages), target in zip(split.examples, split.label_ids, strict=True)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    soft = [
        {
            "text": text,
            "probabilities": {
                name: 0.9 if number == label else 0.1 for number, name in enumerate(task.labels)
            },
        }
        for (text,), label in zip(task.train.examples, task.train.label_ids, strict=True)
    ]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, soft)), encoding="utf-8")
    for name in trained.card.files:
        (folder / "my-model").mkdir(exist_ok=True)
        shutil.copy(trained.path / name, folder / "my-model" / name)
    more = "\n".join(text.replace("number", "with") for (text,) in task.train.examples)
    (folder / "more.txt").write_text(more, encoding="utf-8")


def built(once: Once, task: Task, trained: Artifact, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has run the commands of the README, from a tiny encoder."""

    def fill(folder: Path) -> None:
        write_files(folder, task, trained)
        monkeypatch.chdir(folder)
        for line in command_lines("README.md"):
            run(line, trained, monkeypatch)

    return once("readme", fill)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")])
def test_the_commands_of_a_page_run(
    page: str,
    once: Once,
    task: Task,
    trained: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From where the README's commands end."""
    readme = built(once, task, trained, monkeypatch)
    if page == "README.md":
        names = [Artifact.load(readme / "mine" / name).card.stage for name in ("teacher", "int8")]
        assert names == ["finetune", "quantize"]
        return
    own = tmp_path / "own"
    shutil.copytree(readme, own)
    monkeypatch.chdir(own)
    if page.startswith("docs/start"):  # a tutorial makes all of it itself
        shutil.rmtree("mine")
        shutil.rmtree("small")
    for line in command_lines(page):
        run(line, trained, monkeypatch)


@pytest.mark.slow
def test_an_artifact_opens_without_bertender(
    once: Once, task: Task, trained: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(built(once, task, trained, monkeypatch))
    for block in blocks("docs/how-to/export.md", "python"):
        opened: dict[str, object] = {}
        exec(block, opened)
        assert {"student", "tokenizer"} <= opened.keys() or "session" in opened
    (block,) = blocks("docs/reference/python.md", "python")
    exec(block, {})


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


ASK = {
    "classify": "--url {url}",
    "loadtest": "{url} --duration-s 1 --warmup-s 0.1 --noisy",
}
"""Commands that ask the endpoint -> what is added to them: the address, and a short time."""


TASKS_OF_PAGES: dict[str, Task] = {
    "docs/how-to/entities.md": TAGGING,
    "docs/how-to/questions.md": answer_task(96, 32),
    "docs/how-to/ranking.md": ranking_task(64, 32),
    "docs/how-to/data.md": choice_task(96, 32),
    "docs/how-to/heads.md": JOINT,
    "docs/how-to/embeddings.md": similarity_task(),
}
"""Pages that ask a model of another kind than one label a text."""


def served_on(page: str, once: Once) -> Path:
    """A graph of a tiny model of the page's kind."""
    task = TASKS_OF_PAGES[page]

    def fill(folder: Path) -> None:
        encoder = save_encoder("bert", folder / "encoder")
        config = FinetuneConfig(
            teacher=str(encoder), epochs=1, precision="fp32", allow_constant=True
        )
        made = finetune_by_name(task, config, folder / "model")
        export(made, task, ExportConfig(), folder / "graph")

    return once(f"served-{task.problem_type}", fill) / "graph"


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(shown_lines(page, command) for command in ASK)]
)
def test_the_endpoint_answers_as_the_page_says(
    page: str,
    once: Once,
    task: Task,
    trained: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What needs two terminals, with free ports: commands, curl, JavaScript, and Python."""
    monkeypatch.chdir(built(once, task, trained, monkeypatch))
    model = served_on(page, once) if page in TASKS_OF_PAGES else "mine/int8"
    options = [words[1:] for words in shown_lines(page, "serve") if "--abstain-below" in words]
    with served_by([str(model), *chain(*options)]) as urls:
        url = urls["http"]
        for name, added in ASK.items():
            for words in shown_lines(page, name):
                # test_client_access.py and test_serving_pages.py run those
                if GUARDED_ADDRESS in words or "--model" in words:
                    continue
                own = [word for word in words if word != DEFAULT_ADDRESS]
                asked = ["bertender", name, *own, *added.format(url=url).split()]
                monkeypatch.setattr(sys, "argv", asked)
                with pytest.raises(SystemExit) as ended:
                    main()
                said = capsys.readouterr().err
                late = "load generator" in said  # where tests share the cores
                assert ended.value.code == 0 or (late and name == "loadtest"), (words, said)
        for block in blocks(page, "python"):
            if DEFAULT_ADDRESS in block:
                exec(block.replace(DEFAULT_ADDRESS, url), {})
        for block in blocks(page, "sh"):
            for line in re.findall(r"^curl (?:.*\\\n)*.*$", block, re.M):
                run_curl(line.replace(DEFAULT_ADDRESS, url))
        for block in blocks(page, "js"):
            run_node(block.replace(DEFAULT_ADDRESS, url))


def run_curl(line: str) -> None:
    """Run curl, whose texts must come back with a label each."""
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    (texts,) = map(int, re.findall(r'"shape": \[(\d+), 1\]', line))
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = {each["name"]: each["data"] for each in json.loads(done.stdout)["outputs"]}
    if "SPAN_TEXT" in outputs:
        assert len(outputs["SPAN_TEXT"]) == len(outputs["SPAN_START"]) > 0
        return
    assert len(outputs["LABEL"]) == len(outputs["SCORE"]) == texts
    assert all(isinstance(label, str) for label in outputs["LABEL"])


def run_node(block: str) -> None:
    """Run JavaScript as a module, which must print an array of labels, or of spans."""
    if not shutil.which("node"):
        pytest.skip("needs node")
    command = ["node", "--input-type=module"]
    done = subprocess.run(command, input=block, capture_output=True, text=True)
    assert done.returncode == 0 and re.match(r"\[ '|\[\]|\[\n? *{", done.stdout), done.stderr
