"""The command line as a whole: every command, what it exits with, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import typer
from safetensors import SafetensorError
from typer.testing import Result

from bertender.cli import looking_up
from bertender.cli import main as cli
from bertender.cli.main import COMMANDS, build_app
from bertender.comparison.differences import DiffConfig
from bertender.comparison.drift import DriftConfig
from bertender.comparison.records import CompareConfig
from bertender.compression.config import CompressConfig
from bertender.core import errors
from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ConfigError
from bertender.gate.artifacts import VerifyConfig
from bertender.publishing.model_card import ModelCardConfig
from bertender.publishing.push import PushConfig
from bertender.report.analyses import AnalyseConfig
from bertender.report.choice import LimitsConfig
from bertender.scoring.config import ScoreConfig
from bertender.tasks.task import Task, TaskConfig
from serve.bulk import ClassifyConfig
from serve.client.access import AccessConfig
from serve.config import DeployConfig, ServeCommandConfig
from serve.loadtest import LoadConfig
from serve.tuning import TuneConfig
from tests.forked import command, signalled, start
from tests.front import WRITERS, fail, invoke, succeed, write_toy_files
from tests.listening import listed_steps

CONFIGS: dict[str, tuple[type[Any], ...]] = {
    **{
        name: (TaskConfig, stage.config) if stage.needs_task else (stage.config,)
        for name, stage in WRITERS.items()
    },
    "verify": (TaskConfig, VerifyConfig),
    "compare": (TaskConfig, CompareConfig),
    "report": (TaskConfig, LimitsConfig, CompareConfig),
    "analyse": (TaskConfig, AnalyseConfig),
    "diff": (DiffConfig,),
    "drift": (TaskConfig, DriftConfig),
    "score": (ScoreConfig,),
    "import": (TaskConfig,),
    "compress": (TaskConfig, CompressConfig),
    "serve": (ServeCommandConfig,),
    "deploy": (DeployConfig,),
    "classify": (ClassifyConfig, AccessConfig),
    "loadtest": (LoadConfig, AccessConfig),
    "tune": (TuneConfig,),
    "card": (ModelCardConfig,),
    "push": (PushConfig,),
}
"""The configs whose fields are a command's flags; commands that are not here have none."""

WITHOUT_A_FLAG = {"--teacher-file"}
"""Settings of recipes that another flag gives: --teacher takes a file too."""

OWN_FLAGS = {
    "run": {"--out", "--set", "--tasks", "--teacher", "--seed", "--fresh", "--force"},
    "sweep": {"--grid", "--out", "--set", "--step", "--random"},
    "pretrain": {"--out", "--force"},
    "distill-general": {"--out", "--force"},
    "baseline": {"--out", "--force"},
    "finetune": {"--out", "--force"},
    "distill": {"--out", "--teacher", "--force"},
    "prune": {"--out", "--force"},
    "export": {"--out", "--force"},
    "quantize": {"--out", "--force"},
    "bundle": {"--out", "--force"},
    "calibrate": {"--out", "--force"},
    "score": {"--out", "--force"},
    "import": {"--out", "--revision", "--labels", "--pooling", "--force"},
    "verify": {"--out"},
    "compare": {"--out", "--saved", "--html", "--markdown", "--wide", "--cascade"},
    "report": {"--html", "--analysis"},
    "analyse": {"--out"},
    "diff": {"--output"},
    "drift": {"--out"},
    "compress": {"--out", "--teacher", "--dry-run", "--force"},
    "deploy": {"--to"},
    "classify": {"--pair", "--url"},
    "loadtest": {"--out", "--plot"},
    "tune": {"--out"},
    "api-key": {"--file", "--tokens-per-second"},
    "card": {"--out"},
    "push": {"--force"},
}
"""Flags beside those of the configs and --json, which every command has."""

LIGHT = (
    *("--help", "tasks", "recipes", "methods", "schemes"),
    *("show --help", "serve --help", "classify --help", "loadtest --help"),
    "tune --help",
)
"""They show names and settings at once: these libraries stay unloaded."""
HEAVY = {"torch", "transformers", "onnxruntime", "datasets", "pandas", "pyarrow", "sklearn"}
LOADED = """
import sys
from bertender.cli.main import main
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("\\nLOADED", *sys.modules)
"""


def test_version() -> None:
    assert succeed("--version").stdout.strip() == metadata.version("bertender")


def parameters(name: str) -> list[Any]:
    group: Any = typer.main.get_command(build_app(name))
    return list(group.commands[name].params)


def options(name: str) -> set[str]:
    return {flag for p in parameters(name) if p.param_type_name == "option" for flag in p.opts}


def flags_of(config: type[Any]) -> set[str]:
    return {f"--{name.replace('_', '-')}" for name in config.model_fields}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_the_config_fields(name: str) -> None:
    expected = set().union(*map(flags_of, CONFIGS.get(name, ()))) - WITHOUT_A_FLAG
    assert options(name) == expected | OWN_FLAGS.get(name, set()) | {"--json"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option(name: str) -> None:
    shown = succeed(name, "--help").stdout
    assert COMMANDS[name].summary in shown
    assert sorted(flag for flag in options(name) if flag not in shown) == []
    undescribed = [p.name for p in parameters(name) if not p.help]
    assert undescribed == []


@pytest.mark.parametrize("name", CONFIGS)
def test_no_flag_means_two_things(name: str) -> None:
    names = [field for config in CONFIGS[name] for field in config.model_fields]
    assert len(names) == len(set(names))


def test_what_only_shows_names_loads_no_heavy_library() -> None:
    program = [sys.executable, "-c", LOADED, *LIGHT]
    lines = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    ends = [place for place, line in enumerate(lines) if line.startswith("LOADED ")]
    assert len(ends) == len(LIGHT)
    for words, begin, end in zip(LIGHT, (0, *ends), ends, strict=False):
        assert len("".join(lines[begin:end])) > 200, words
        assert not HEAVY & set(lines[end].split()), words


def test_an_unknown_command_is_wrong_usage() -> None:
    assert "No such command 'distil'. Did you mean 'distill'?" in fail("distil")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export",), "Missing argument"),
        (("finetune", "--task", "sst2"), "--out"),
        (("finetune", "--out", "x", "--epoch", "1"), "No such option"),
        (("finetune", "--out", "x", "--epochs", "many"), "'--epochs'"),
        (("compare",), "at least one ARTIFACT"),
        (("run",), "Missing argument"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_wrong_usage_exits_with_2(words: tuple[str, ...], said: str) -> None:
    assert said in fail(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("finetune", "--task", "sst3", "--out", "x"), "no task 'sst3'. Did you mean 'sst2'?"),
        (("run", "quikstart"), "'quikstart'. Did you mean 'quickstart'?"),
        (("run", "missing.yaml"), "recipe file missing.yaml cannot be read"),
        (("show", "nowhere"), "no model at nowhere"),
        (("finetune", "--epochs", "0", "--out", "x", "--task", "sst2"), "epochs=0"),
        (("finetune", "--task", "docs", "--max-train", "0", "--out", "x"), "max_train=0"),
        (("finetune", "--out", "x"), "--train FILE"),
        (("finetune", "--out", "x"), "--task NAME: docs"),
        (("pretrain", "--objective", "mln", "--corpus", "{corpus}", "--out", "x"), "'mlm'"),
        (("classify", "a", "--url", "gprc://x:1"), "'gprc'. Did you mean 'grpc'?"),
        (("baseline", "--dev", "{train}", "--out", "x"), "without --train"),
    ],
    ids=lambda words: " ".join(words[:3]) if isinstance(words, tuple) else "",
)
def test_our_errors_exit_with_1_and_say_what_is_known(
    words: tuple[str, ...], said: str, tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_toy_files(tmp_path, task)
    places = {"corpus": str(files.corpus), "train": str(files.train)}
    assert said in fail(*(word.format_map(places) for word in words))
    assert not (tmp_path / "x").exists()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Result]:
    """A way to run a command that does nothing but raise an error."""

    def run(error: BaseException) -> Result:
        def show() -> None:
            raise error

        monkeypatch.setattr(looking_up, "show", show)
        return invoke("show")

    return run


def refusals() -> list[type[BertenderError]]:
    """Every class of what a check says."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [each for each in kinds if issubclass(each, errors.RefusedError)]
    assert len(found) >= 8
    return found


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("a [bold] value"), 2, "error: a [bold] value"),
        *((kind("it says no"), 1, "error: it says no") for kind in refusals()),
        (OSError(28, "No space left on device", "/full"), 2, "No space left on device: '/full'"),
        (
            SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
            *(2, "File too large (os error 27); put that right"),
        ),
        (KeyboardInterrupt(), 130, "run the same command again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_exit_status(
    error: BaseException, status: int, said: str, broken: Callable[[BaseException], Result]
) -> None:
    result = broken(error)
    assert result.exit_code == status
    assert said in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_bug_of_ours_is_not_hidden(broken: Callable[[BaseException], Result]) -> None:
    assert isinstance(broken(ZeroDivisionError()).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    # Python itself would exit with 1 for a bug, as where a check says no
    [(MemoryError(), 2, "MemoryError"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["a bug", "interrupted"],
)
def test_exit_status_while_libraries_load(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "command_of", load)
    monkeypatch.setattr(sys, "argv", ["bertender", "run", "quickstart"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == status and said in capsys.readouterr().err


def test_no_library_calls_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    succeed("show", "--help")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_a_command_in_this_process_leaves_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "command_of", lambda name: lambda: os.kill(os.getpid(), number))
    monkeypatch.setattr(sys, "argv", ["bertender", "doctor"])
    number = signal.SIGTERM
    with pytest.raises(SystemExit, match="143"):
        cli.main()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_option_with_a_home_folder_is_of_that_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands `~` after `=`."""
    given = ["show", "--out=~/x", "--out=~x", "~/x", "--a-b=~/y/z", "a=~/x", "say --out=~/x"]
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "argv", ["bertender", *given])
    monkeypatch.setattr(cli, "build_app", lambda requested: lambda: None)
    cli.main()
    expanded = {"--out=~/x": "--out=/home/me/x", "--a-b=~/y/z": "--a-b=/home/me/y/z"}
    assert sys.argv[1:] == [expanded.get(word, word) for word in given]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_stopped_leaves_no_temporary_files(number: signal.Signals, tmp_path: Path) -> None:
    (folder := tmp_path / "temporary").mkdir()
    process = start(signalled, folder, number, said=tmp_path / "said")
    process.join(30)
    assert process.exitcode == 128 + number, (tmp_path / "said.err").read_text()
    assert not [*folder.iterdir()]
    assert not (tmp_path / "said.err").read_text()


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_broken_and_the_same_command_goes_on(
    tmp_path: Path, task: Task, teacher: Artifact
) -> None:
    out = tmp_path / "tuned"
    words = ("finetune", *write_toy_files(tmp_path, task).flags, "--teacher", teacher.path)
    settings = ("--epochs", "60", "--checkpoint-steps", "10", "--max-length", "16", "--out", out)
    process = start(command, *words, *settings, said=tmp_path / "said")
    wait_for_checkpoint(tmp_path, process)
    assert process.pid
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    complaint = (tmp_path / "said.err").read_text()
    assert process.exitcode == 130, complaint
    assert "run the same command again" in " ".join(complaint.split())
    assert "Traceback" not in complaint
    assert not out.exists() and not list(tmp_path.glob(".tuned.draft-*"))

    with listed_steps() as steps:
        succeed(*words, *settings)
    written = Artifact.load(out)
    assert 0 < len(steps) <= written.card.findings.training.steps - 10, (
        "it went on from a checkpoint"
    )
    assert not list(tmp_path.glob(".tuned.*"))


def wait_for_checkpoint(folder: Path, process: BaseProcess) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(".tuned.work/*/checkpoint-*/complete")):
        assert process.is_alive() and time.monotonic() < deadline, (folder / "said.err").read_text()
        time.sleep(0.02)
