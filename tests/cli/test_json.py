"""Every command's --json: one line on standard output, and nothing else there."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bertender.cli.main import COMMANDS
from bertender.core.artifact import Artifact
from serve.server.installation import is_installed
from tests.cli.fakes import FakeEndpoint
from tests.cli.made import FAST, QUICK, Made
from tests.front import WRITERS, last_line, succeed, write_fresh_texts, write_toy_files
from tests.quick import quick
from tests.serve.scripted import Script, http_server
from tests.stand_in_hub import WRITER, stand_in_hub
from tests.toys import toy_task

Words = tuple[str | Path, ...]
TOY_RECIPE = """
summary: one step
task: {{task: toy, train: {train}, dev: {dev}}}
steps:
  - {{name: words, stage: baseline}}
"""


def run_words(made: Made, out: Path) -> Words:
    path = out.parent / "mine.yaml"
    text = TOY_RECIPE.format(train=made.files.train, dev=made.files.dev)
    path.write_text(text, encoding="utf-8")
    return ("run", path, "--out", out)


def sweep_words(made: Made, out: Path) -> Words:
    folder = out.parent
    files = write_toy_files(folder, toy_task(400, 20))
    text = TOY_RECIPE.format(train=files.train, dev=files.dev)
    (folder / "mine.yaml").write_text(text.replace("task: toy", "task: toy, select: 0.2"))
    return ("sweep", folder / "mine.yaml", "--grid", "longest_ngram=1,2", "--out", out)


def pretrain_words(made: Made, out: Path) -> Words:
    shape = ("--vocabulary-size", "200", "--layers", "1", "--hidden-size", "16", "--heads", "2")
    return ("pretrain", "--corpus", made.files.corpus, *shape, "--epochs", "1", "--out", out)


def deploy_words(made: Made, out: Path) -> Words:
    succeed("serve", made["int8"], "--repository-only", out)
    return ("deploy", made["int8"], "--to", out)


def installed_words(made: Made, out: Path) -> Words:
    if not is_installed():
        pytest.skip("needs `bertender install-server`, which needs a network")
    return ("install-server",)


@cache
def toy_server() -> str:
    """The address of a server that runs as long as the tests do."""
    server = http_server(Script())
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


def calibrate_words(made: Made, out: Path) -> Words:
    path = write_fresh_texts(out.with_name("fresh.csv"), toy_task(180))
    return (
        *("calibrate", made["student"], "--train", path, "--dev", made.files.dev),
        *("--select", "0.5", "--out", out),
    )


def drift_words(made: Made, out: Path) -> Words:
    path = out.with_name("texts.csv")
    path.write_text("\n".join(["text", *["saw drill", "pear"] * 90]), encoding="utf-8")
    return ("drift", made["student"], path, "--reference", path)


COMMAND_LINES: dict[str, Callable[[Made, Path], Words]] = {
    "run": run_words,
    "sweep": sweep_words,
    "pretrain": pretrain_words,
    "distill-general": lambda made, out: (
        *("distill-general", "--teacher", made["teacher"], "--corpus", made.files.corpus),
        *("--layers", "1", *QUICK, "--epochs", "1", "--out", out),
    ),
    "baseline": lambda made, out: ("baseline", *made.files.flags, "--out", out),
    "finetune": lambda made, out: (
        *("finetune", "--teacher", made["teacher"], *made.files.flags),
        *(*QUICK, "--epochs", "1", "--out", out),
    ),
    "distill": lambda made, out: (
        *("distill", "--teacher", made["teacher"], "--layers", "1", *QUICK, "--epochs", "1"),
        *("--out", out),
    ),
    "prune": lambda made, out: (
        *("prune", made["teacher"], "--heads", "0.5", *QUICK, "--epochs", "1", "--out", out),
    ),
    "export": lambda made, out: ("export", made["student"], "--out", out),
    "quantize": lambda made, out: ("quantize", made["onnx"], "--out", out),
    "bundle": lambda made, out: ("bundle", made["onnx"], "--to", "browser", "--out", out),
    "calibrate": calibrate_words,
    "import": lambda made, out: ("import", made["theirs"], "--out", out),
    "verify": lambda made, out: ("verify", made["student"], made["int8"]),
    "compare": lambda made, out: ("compare", made["student"], made["int8"], *FAST),
    "report": lambda made, out: (
        *("report", made["student"], made["int8"], *FAST, "--html", out.with_suffix(".html")),
    ),
    "analyse": lambda made, out: ("analyse", made["teacher"], "--texts", "4", "--out", out),
    "score": lambda made, out: ("score", made["int8"], made.files.dev, "--out", out),
    "diff": lambda made, out: ("diff", made["student"], made["int8"], made.files.dev),
    "drift": drift_words,
    "compress": lambda made, out: (
        *("compress", "--teacher", made["teacher"], "--out", out, "--dry-run", "--students", ""),
        *("--threads", "1"),
        *("--layers", "1", "--heads", "0", "--ffn", "0", "--noisy"),
    ),
    "serve": lambda made, out: ("serve", made["int8"], "--repository-only", out),
    "deploy": deploy_words,
    "classify": lambda made, out: ("classify", "saw drill"),
    "loadtest": lambda made, out: (
        *("loadtest", toy_server(), "--input", made.files.dev, "--concurrency", "1"),
        *("--duration-s", "0.1", "--warmup-s", "0"),
    ),
    "tune": lambda made, out: (
        *("tune", made["int8"], "--input", made.files.dev, "--settings", "one-instance"),
        *("--rounds", "3", "--duration-s", "0.1", "--warmup-s", "0", "--concurrency", "1"),
        *("--texts-per-request", "1", "--noisy"),
    ),
    "api-key": lambda made, out: ("api-key", "reader"),
    "install-server": installed_words,
    "tasks": lambda made, out: ("tasks",),
    "methods": lambda made, out: ("methods",),
    "schemes": lambda made, out: ("schemes",),
    "recipes": lambda made, out: ("recipes",),
    "show": lambda made, out: ("show", made["int8"]),
    "card": lambda made, out: ("card", made["int8"]),
    "doctor": lambda made, out: ("doctor",),
    "push": lambda made, out: ("push", made["int8"], "anna/toy", "--private"),
}

LONG = {"compress", "deploy", "serve", "tune"}

WRITTEN = frozenset(
    {"artifact", "digest", "stage", "kind", "precision", "size", "findings", "timing", "left_out"}
)

KEYS: dict[str, Collection[str]] = {
    **dict.fromkeys(WRITERS, WRITTEN),
    "run": {"recipe", "out", "steps"},
    "sweep": {"recipe", "step", "metric", "texts", "variants", "best", "held_out"},
    "import": WRITTEN,
    "verify": {"reference", "candidate", "tolerance", "failures", "cases"},
    "compare": {"circumstances", "rows", "constant", "noise_floor"},
    "report": {"html", "deploy", "sentence"},
    "analyse": {"artifact"},
    "score": {"out", "shard", "parts", "texts", "complete", "texts_per_s"},
    "diff": {"first", "second", "n", "agreement", "differences"},
    "drift": {"artifact", "reference", "measures", "max_effect"},
    "compress": {"config", "candidates", "probes", "verdict"},
    "serve": {"repository", "not_tried", "tritonserver"},
    "deploy": {"model", "version", "digest", "state", "golden", "repository", "earlier_versions"},
    "classify": {"label", "score", "logits"},
    "loadtest": {"config", "runs", "limit", "environment", "load"},
    "tune": {"settings", "machine", "model", "tried", "choice", "visits", "environment", "load"},
    "api-key": {"name", "key", "row"},
    "install-server": {"version", "folder", "changed"},
    "tasks": {"task", "summary", "metric", "labels"},
    "methods": {"method", "summary", "on a corpus"},
    "schemes": {"schemes", "target", "calibrator", "sensitivity"},
    "recipes": {"quickstart", "sst2", "from-scratch"},
    "show": {"artifact", "card", "digest"},
    "card": {"out", "card"},
    "doctor": {"environment", "findings"},
    "push": {"repository", "url", "commit", "digest", "private", "files", "removed"},
}
"""What the JSON of each command holds, or each of its rows."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    with stand_in_hub(monkeypatch):
        yield


@pytest.mark.parametrize("name", quick(COMMANDS, *COMMANDS.keys() - LONG))
def test_json_is_all_that_standard_output_holds(
    name: str,
    made: Made,
    endpoint: type[FakeEndpoint],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if name == "push":
        request.getfixturevalue("hub")
    result = succeed(*COMMAND_LINES[name](made, tmp_path / "out"), "--json")
    assert result.stdout.count("\n") == 1, result.stdout
    assert result.stdout.isascii()
    assert set(KEYS[name]) <= set(first_of(last_line(result)))


@pytest.mark.parametrize(
    ("name", "shown"),
    [("finetune", "fine-tune out"), ("distill", "distill out"), ("pretrain", "pre-train out")],
)
def test_progress_is_shown_on_standard_error(
    name: str, shown: str, made: Made, endpoint: type[FakeEndpoint], tmp_path: Path
) -> None:
    words = COMMAND_LINES[name](made, tmp_path / "out")
    assert shown in succeed(*words, "--json").stderr
    assert shown not in succeed("--quiet", *words, "--force", "--json").stderr


def test_json_of_a_stage_names_what_it_wrote(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "words"
    said = last_line(succeed("baseline", *made.files.flags, "--out", out, "--json"))
    written = Artifact.load(out)
    assert (said["artifact"], said["digest"]) == (str(out), written.digest)
    assert said["size"]["parameters"] == written.card.findings.parameters


def test_json_of_an_import_names_the_folder_as_it_was_given(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = last_line(succeed("import", made["theirs"].absolute(), "--out", "out", "--json"))
    assert said["artifact"] == "out"


def first_of(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value
