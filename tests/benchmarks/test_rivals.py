"""The benchmark of rivals: rows that open are measured alike, others have a reason."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.common.pinning import Pins
from benchmarks.common.saving import RESULTS
from benchmarks.rivals import __main__ as command
from benchmarks.rivals.environments import python_of
from benchmarks.rivals.figures import RivalFigures
from benchmarks.rivals.libraries import FIRST, RIVALS, Rival
from benchmarks.rivals.measuring import Contest, entries_of
from benchmarks.rivals.probabilities import softmax
from benchmarks.rivals.reading import rivals_reading
from benchmarks.rivals.records import MeasuredModel, RivalBenchmark, RivalResults, RivalRow
from benchmarks.rivals.table import TITLES, rivals_block
from benchmarks.rivals.worker import Timer, opened, versions_of
from benchmarks.serving.prepared import check_servable
from benchmarks.serving.records import ServingConfig
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError, UnknownNameError
from bertender.core.machine_load import MachineLoad
from bertender.measure.latency import LatencyConfig, Turn, time_in_turns
from bertender.metrics.records import Score
from bertender.models.cpu_flags import lacking_flags
from bertender.models.opening import open_classifier
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export

SMALL = LatencyConfig(
    single_texts=3,
    batch_size=4,
    processes=2,
    rounds=2,
    warmup_rounds=0,
    warmup_texts=1,
    threads=1,
    noisy=True,  # a process sees the machine as it is
)
TOYS = "tests.benchmarks.toy_rivals"
TOY = Rival("a toy", f"{TOYS}:open_constant", "torch", ("numpy", "no-such-package"))
LOST = replace(TOY, opens=f"{TOYS}:open_nothing")
NEEDY = replace(TOY, requirements=("/no/such/place/toy-1.0-py3-none-any.whl",))


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"toy": TOY, "doubtful": replace(TOY, settings={"first": 0.75}), "lost": LOST}
    for name, row in rows.items():
        monkeypatch.setitem(RIVALS, name, row)


def benchmark_of(artifacts: Sequence[Artifact], task: Task, *rivals: str) -> RivalBenchmark:
    return RivalBenchmark(
        task=task.name,
        n=len(task.dev),
        max_length=16,
        models=tuple(
            MeasuredModel(name=each.name, digest=each.digest, kind="torch", precision="float32")
            for each in artifacts
        ),
        rivals=rivals,
        config=SMALL,
        environment=environment(),
    )


def contest_of(artifact: Artifact, task: Task, folder: Path, *rivals: str) -> Contest:
    entries = entries_of(rivals, [artifact])
    return Contest(entries, task, benchmark_of([artifact], task, *rivals), folder)


def test_a_row_opens_every_artifact_that_it_reads(
    plain_export: Callable[[str], tuple[Artifact, Artifact]],
) -> None:
    torch, onnx = plain_export("bert")
    names = [each.name for each in entries_of([*RIVALS], [torch, onnx])]
    assert names == [*RIVALS]
    other = replace(torch, path=torch.path.with_name("other"))
    several = entries_of(["onnxruntime", "transformers"], [onnx, torch, other])
    assert [(each.name, each.artifact) for each in several] == [
        ("onnxruntime", onnx),
        (f"transformers {torch.name}", torch),
        ("transformers other", other),
    ]
    assert entries_of(["onnxruntime"], [torch]) == []
    with pytest.raises(ConfigError, match="one name"):
        entries_of(["transformers"], [torch, torch])


def test_precisions_are_the_artifacts_own_unless_a_row_has_another(teacher: Artifact) -> None:
    entries = entries_of(["ctranslate2-int8", "ctranslate2", "transformers"], [teacher])
    assert [each.precision for each in entries] == ["int8", "float32", "float32"]
    row = RIVALS["bertender-openvino-bf16"]
    assert [row.computes_in(each) for each in ("float32", "int8")] == ["bfloat16", "int8"]


def test_the_reference_is_the_first_row_of_the_table() -> None:
    assert next(iter(RIVALS)) == FIRST
    assert {name for name, row in RIVALS.items() if row.own} == {
        "bertender-torch",
        "bertender",
        "bertender-openvino",
        "bertender-openvino-bf16",
    }


@pytest.mark.usefixtures("toys")
def test_what_does_not_open_is_a_row_with_the_reason(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    results = contest_of(teacher, task, tmp_path, "lost", "toy", "doubtful").predictions()
    first, second = results.rows
    assert results.absent == {
        "lost": f"lost ended with status 1: ValueError: no conversion for {teacher.name}"
    }
    truth = np.array(task.dev.label_ids)
    assert first.score.value == pytest.approx((truth == 0).mean()) == second.score.value
    assert (first.agreement, first.max_probability_difference) == (1.0, 0.0)
    assert (second.agreement, second.max_probability_difference) == (1.0, 0.25)
    assert first.versions == {"numpy": np.__version__}


@pytest.mark.usefixtures("toys")
def test_a_contest_without_any_model_is_an_error(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="no rival opens a model"):
        contest_of(teacher, task, tmp_path, "lost").predictions()


@pytest.mark.usefixtures("toys")
def test_agreement_is_with_the_first_row(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    logits = open_classifier(teacher).logits(task.dev.examples)
    own, toy = contest_of(teacher, task, tmp_path, "bertender-torch", "toy").predictions().rows
    assert own.agreement == 1.0
    assert toy.agreement == pytest.approx((logits.argmax(axis=1) == 0).mean())
    furthest = 1 - softmax(logits)[:, 0].min()
    assert toy.max_probability_difference == pytest.approx(furthest, abs=1e-3)


@pytest.mark.usefixtures("toys")
def test_repetitions_are_timed_and_continued(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    contest = contest_of(teacher, task, tmp_path, "toy", "doubtful")
    results = contest.predictions()
    first = next(contest.timed(results))
    (second,) = contest.timed(first)
    assert second.repetitions[0] == first.repetitions[0] and len(second.repetitions) == 2
    for report in second.repetitions:
        assert [row.name for row in report.rows] == ["toy", "doubtful"]
        assert report.noise_floor and report.noise_floor.name == "toy"
        assert report.load is not None and report.threads == 1
    assert [*contest.timed(second)] == []
    benchmark = contest.benchmark.model_copy(update={"results": second})
    raw = RivalFigures(benchmark).latency["doubtful"].single_ms
    assert np.array(raw).shape == (SMALL.processes, SMALL.rounds, SMALL.single_texts)
    assert RivalBenchmark.model_validate_json(benchmark.model_dump_json()) == benchmark


def brittle(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> None:
    """Add a row that fails so many times after its predictions."""
    settings["seen"] = str(folder / "seen")
    row = replace(TOY, opens=f"{TOYS}:open_brittle", settings=settings)
    monkeypatch.setitem(RIVALS, "brittle", row)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("timed", [False, True])
def test_a_row_that_fails_while_it_is_timed_is_absent(
    timed: bool, teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brittle(monkeypatch, tmp_path, timed=timed, failures=99)
    contest = contest_of(teacher, task, tmp_path, "toy", "brittle", "doubtful")
    before = contest.predictions()
    assert [row.name for row in before.rows] == ["toy", "brittle", "doubtful"]
    *_, after = contest.timed(before)
    assert after.absent == {"brittle": "brittle ended with status 1: ValueError: no memory left"}
    assert [row.name for row in after.rows] == ["toy", "doubtful"]
    names = [[row.name for row in report.rows] for report in after.repetitions]
    assert names == [["toy", "doubtful"]] * SMALL.processes


@pytest.mark.usefixtures("toys")
def test_a_row_may_fail_once(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brittle(monkeypatch, tmp_path, timed=True, failures=1)
    contest = contest_of(teacher, task, tmp_path, "toy", "brittle")
    *_, after = contest.timed(contest.predictions())
    assert after.absent == {} and len(after.repetitions) == SMALL.processes
    assert [row.name for row in after.rows] == ["toy", "brittle"]


def test_the_reference_must_not_fail_twice(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brittle(monkeypatch, tmp_path, timed=True, failures=99)
    contest = contest_of(teacher, task, tmp_path, "brittle")
    with pytest.raises(ModelError, match="no memory left"):
        [*contest.timed(contest.predictions())]


def test_a_row_is_taken_out_of_earlier_repetitions_too() -> None:
    report = time_in_turns(["a", "b"], lambda row, number: Turn((1.0,), 1.0), 4, SMALL)
    results = RivalResults(rows=(), absent={"c": "missing"}, repetitions=(report,))
    after = results.without("b", "ended")
    assert [row.name for row in after.repetitions[0].rows] == ["a"]
    assert after.absent == {"c": "missing", "b": "ended"}


def test_everything_runs_once_before_it_is_timed() -> None:
    calls: list[str] = []
    timer = Timer(lambda examples: calls.append("".join(text for (text,) in examples)))
    single_ms, batch_ms = timer.take([["a"], ["b"]], [["b"], ["c"]], 1)
    assert calls == ["a", "b", "bc", "a", "a", "b", "bc"]
    assert len(single_ms) == 2 and batch_ms >= 0
    calls.clear()
    timer.take([["a"], ["d"]], [["b"], ["c"]], 0)
    assert calls == ["d", "a", "d", "bc"]


def test_versions_are_of_what_is_installed() -> None:
    assert versions_of(["numpy", "no-such-package"]) == {"numpy": np.__version__}


NEEDS = {
    "sentence-transformers-openvino": "optimum.intel",
    "sentence-transformers": "sentence_transformers",
    "openvino": "openvino",
    "ctranslate2": "ctranslate2",
}
COMPILED = {"torch-compile", "torch-compile-bfloat16"}


def is_absent(name: str) -> bool:
    """Return whether its packages, or instructions of the CPU, are not here."""
    runtime = RUNTIMES.get(str(RIVALS[name].settings.get("runtime")))
    if runtime is not None and lacking_flags(runtime):
        return True
    return any(word in name and find_spec(package) is None for word, package in NEEDS.items())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(name, count, marks=[pytest.mark.slow] * (name in COMPILED))
        for name, row in RIVALS.items()
        for count in (1, 2)
        if count > 1 or row.single_texts
    ],
)
def test_rivals_predict_what_the_model_does(
    name: str, count: int, task: Task, plain_export: Callable[[str], tuple[Artifact, Artifact]]
) -> None:
    """Of texts and of pairs."""
    if is_absent(name):
        pytest.skip(
            f"the packages of {name} are not installed here, or the CPU lacks what it needs"
        )
    torch, onnx = plain_export("bert")
    row = RIVALS[name]
    request = {
        "opens": row.opens,
        "folder": str((torch if row.reads == "torch" else onnx).path),
        "threads": 1,
        "max_length": 8 * count,
        "settings": dict(row.settings),
    }
    texts = [text for (text,) in task.dev.examples[: 5 * count]]
    texts[1] = " ".join([texts[1]] * 9)  # which is cut
    examples = [tuple(texts[place::5]) for place in range(5)]
    local = open_classifier(torch, max_length=8 * count, threads=1)
    expected = softmax(local.logits(examples))
    predict = opened(request)
    within = 5e-3 if row.precision or "openvino" in name else 1e-4
    np.testing.assert_allclose(predict(examples), expected, atol=within)
    np.testing.assert_allclose(predict(examples[:1]), expected[:1], atol=within)


def wheel(folder: Path, name: str) -> Path:
    """Write a package that pip installs without any other file."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_an_environment_is_made_once_and_runs_the_row(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = (str(wheel(tmp_path, "toypackage")),)
    row = replace(TOY, packages=("toypackage", "numpy"), requirements=requirements)
    monkeypatch.setitem(RIVALS, "elsewhere", row)
    folder = tmp_path / "environments"
    (result,) = contest_of(teacher, task, folder, "elsewhere").predictions().rows
    assert result.versions == {"toypackage": "1.0"}  # and this environment's numpy is not there
    python = Path(python_of(requirements, folder))
    made = python.lstat().st_mtime_ns
    assert Path(python_of(requirements, folder)).lstat().st_mtime_ns == made
    (installed,) = python.parents[1].glob("lib/*/site-packages/toypackage-1.0.dist-info")
    shutil.rmtree(installed)
    python_of(requirements, folder)
    assert installed.is_dir()


@pytest.mark.slow
def test_unwanted_packages_of_an_environment_are_removed_again(tmp_path: Path) -> None:
    requirements = tuple(str(wheel(tmp_path, name)) for name in ("wanted", "unwanted"))
    python = Path(python_of(requirements, tmp_path / "environments", ("unwanted",)))
    (packages,) = python.parents[1].glob("lib/*/site-packages")
    assert (packages / "wanted.py").is_file() and not (packages / "unwanted.py").exists()


@pytest.mark.slow
def test_what_pip_cannot_install_is_a_row_with_the_reason(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RIVALS, "needy", NEEDY)
    monkeypatch.setitem(RIVALS, "toy", TOY)
    results = contest_of(teacher, task, tmp_path, "needy", "toy").predictions()
    assert "its environment cannot be made: " in results.absent["needy"]
    assert "toy-1.0-py3-none-any.whl" in results.absent["needy"]
    with pytest.raises(RuntimeMissingError):  # nothing half made is taken for an environment
        python_of(NEEDY.requirements, tmp_path)


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch, task: Task) -> typer.Typer:
    monkeypatch.setattr(command, "recorded_task", lambda artifact, changes: task)
    app = typer.Typer()
    app.command()(command.run)
    return app


@pytest.mark.usefixtures("toys")
def test_the_command_writes_and_continues(
    application: typer.Typer, teacher: Artifact, tmp_path: Path
) -> None:
    out = tmp_path / "rivals.json"
    words = [str(teacher.path), "--out", str(out), "--noisy", "--only", "lost,toy"]
    words += ["--rounds", "2", "--processes", "1", "--threads", "1"]
    done = CliRunner().invoke(application, words)
    assert done.exit_code == 0, done.output
    assert "lost is left out: lost ended with status 1" in done.output
    assert "toy: accuracy" in done.output and "ms one at a time" in done.output
    written = RivalBenchmark.model_validate_json(out.read_text())
    assert written.rivals == ("toy", "lost") and len(written.measured.repetitions) == 1
    again = CliRunner().invoke(application, words)
    assert again.exit_code == 0 and "repetition" not in again.output
    assert RivalBenchmark.model_validate_json(out.read_text()) == written
    with pytest.raises(typer.BadParameter, match="other config"):
        command.run([teacher.path], out, only="toy,lost", rounds=3, processes=1, noisy=True)


@pytest.mark.parametrize(
    ("only", "error"),
    [
        ("transformer", UnknownNameError),
        (" , ", ConfigError),
        ("transformers,sentence-transformers", ConfigError),  # the model is of single texts
    ],
)
def test_a_rival_that_is_not_there_is_an_error(
    only: str, error: type[Exception], application: typer.Typer, teacher: Artifact, tmp_path: Path
) -> None:
    words = [str(teacher.path), "--out", str(tmp_path / "out.json"), "--noisy", "--only", only]
    assert isinstance(CliRunner().invoke(application, words).exception, error)


def test_artifacts_of_other_labels_are_refused(
    application: typer.Typer, teacher: Artifact, tmp_path: Path
) -> None:
    shutil.copytree(teacher.path, tmp_path / "other")
    card = json.loads((teacher.path / "artifact.json").read_text())
    card["task"]["labels"] = ["x", "y"]
    (tmp_path / "other" / "artifact.json").write_text(json.dumps(card))
    words = [str(teacher.path), str(tmp_path / "other"), "--out", str(tmp_path / "o"), "--noisy"]
    done = CliRunner().invoke(application, words)
    assert isinstance(done.exception, ModelError) and "the labels" in str(done.exception)


@pytest.mark.usefixtures("toys")
def test_the_last_artifact_is_measured_behind_servers_too(
    application: typer.Typer,
    teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported = export(teacher, task, ExportConfig(), tmp_path / "onnx")
    out, servers = tmp_path / "rivals.json", tmp_path / "servers.json"
    monkeypatch.setattr(Pins, "check", lambda pins: None)

    def begin(served: Artifact, *settings: Any) -> SimpleNamespace:
        check_servable(served)
        asked.append((served, *settings))
        return SimpleNamespace(run=lambda: saved.append(servers))

    monkeypatch.setattr(command, "begin", begin)
    monkeypatch.setattr(command, "show_left_out", lambda result: None)
    monkeypatch.setattr(command, "save_benchmark", lambda result, place: saved.append(place))
    asked: list[tuple[Artifact, list[str], ServingConfig, Path]] = []
    saved: list[Path] = []
    words = [str(teacher.path), "--out", str(out), "--servers-out", str(servers), "--noisy"]
    words += ["--only", "toy", "--rounds", "2", "--processes", "1", "--threads", "1"]
    refused = CliRunner().invoke(application, words)
    assert isinstance(refused.exception, ModelError) and not saved, "before anything is measured"
    both = [str(teacher.path), str(exported.path)]
    same = CliRunner().invoke(application, [*both, *words[1:], "--servers-out", str(out)])
    assert isinstance(same.exception, ConfigError) and not saved
    done = CliRunner().invoke(application, [*both, *words[1:]])
    assert done.exit_code == 0, done.output
    ((served, texts, config, place),) = asked
    assert (served.digest, len(texts)) == (exported.digest, len(task.dev))
    assert config.noisy and (saved, place) == ([out, servers], servers)


def test_noisy_figures_are_not_published(teacher: Artifact) -> None:
    with pytest.raises(typer.BadParameter, match="--noisy"):
        command.run([teacher.path], RESULTS / "2026-01-01-toy-rivals-cpu.json", noisy=True)


QUIET = MachineLoad(other_work=0.01, steal=0.0)


def made_up(times_ms: dict[str, float], **rows: Any) -> RivalBenchmark:
    """Return a result in which each row takes so long for a text, and as long for a batch of 4."""
    names = [*times_ms]
    wobble = (0.999, 1.0, 1.001)

    def take(row: int, number: int) -> Turn:
        time_ms = [*times_ms.values(), times_ms[names[0]]][row] * wobble[number % 3]
        return Turn((time_ms,) * 3, time_ms)

    config = SMALL.model_copy(update={"rounds": 3})
    reports = []
    for _ in range(2):
        *timed, again = (report := time_in_turns([*names, names[0]], take, 9, config)).rows
        changes = {"rows": tuple(timed), "noise_floor": again, "load": QUIET}
        reports.append(report.model_copy(update=changes))
    score = Score(metric="accuracy", value=0.9, low=0.8, high=0.95, n=9)
    results = RivalResults(
        rows=tuple(
            RivalRow(
                name=name,
                rival=name.split()[0],
                artifact="toy",
                precision="int8" if "int8" in name else "float32",
                versions={"numpy": "1.0"},
                score=score,
                agreement=1.0 if name == names[0] else 0.875,
                max_probability_difference=0.0 if name == names[0] else 0.0123,
            )
            for name in names
        ),
        absent={"optimum": "it is not there"},
        repetitions=tuple(reports),
    )
    return RivalBenchmark(
        task="toy",
        n=9,
        max_length=16,
        models=(),
        rivals=tuple(RIVALS),
        config=config,
        environment=environment(),
        results=results,
    )


TIMES = {
    "transformers": 4.0,
    "openvino": 1.0,
    "onnxruntime": 2.0,
    "bertender": 2.0,
    "bertender-torch": 3.0,
    "ctranslate2-int8": 1.5,
    "bertender int8": 1.0,
}


def test_the_reading_says_where_a_rival_is_faster() -> None:
    lines = rivals_reading(RivalFigures(made_up(TIMES)))
    in_8_bits, batches, single, _ = lines
    assert in_8_bits == (
        "- One text at a time, in 8 bits: the fastest row of bertender is `bertender int8`. Faster "
        "than it: none. Not distinguished from it: none. Slower: `ctranslate2-int8`."
    )
    assert batches.startswith("- In batches, in 8 bits: ")
    assert single == (
        "- One text at a time, in float32 or bfloat16: the fastest row of bertender is "
        "`bertender`. Faster than it: `openvino` (2.00x [2.00, 2.00], 87.50% same labels). Not "
        "distinguished from it: `onnxruntime`. Slower: `transformers`."
    )


def test_the_reading_follows_the_times() -> None:
    lines = rivals_reading(RivalFigures(made_up({"transformers": 1.0, "bertender-torch": 2.0})))
    assert len(lines) == 2  # nothing in 8 bits
    assert all("Faster than it: `transformers` (2.00x" in line for line in lines)
    alone = rivals_reading(RivalFigures(made_up({"transformers": 1.0})))
    assert "bertender has no row." in alone[0]


def test_the_table_is_made_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(made_up(TIMES).model_dump_json())
    text = rivals_block("result.json", path)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {len(TITLES)} and len(rows) == 2 + len(TIMES)
    by_name = dict(zip(TIMES, rows[2:], strict=True))
    assert by_name["transformers"][2:] == [
        *("4.00", "1.00x [1.00, 1.00]", "1000", "1.00x [1.00, 1.00]", "1.0000", "0", "0.9000")
    ]
    assert by_name["openvino"][:4] == [
        "tokenizers and OpenVINO (`openvino`)",
        "toy, float32",
        "1.00",
        "4.00x [4.00, 4.00]",
    ]
    assert by_name["openvino"][-3:-1] == ["0.8750", "0.01"]
    assert "- Not measured, `optimum`: it is not there" in text
    (left_out,) = [line for line in text.splitlines() if line.startswith("- Not asked for")]
    assert "`ctranslate2`" in left_out and "`optimum`" not in left_out
    assert "sentence-transformers" not in left_out  # which reads pairs alone
    assert f"- `openvino` {RIVALS['openvino'].note}." in text
    assert "Raw: `result.json`" in text and "other work had 1.0%" in text
