"""bertender verify and bertender compare."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from bertender.cli import output
from bertender.cli.measuring import print_comparison
from bertender.comparison.records import Comparison
from bertender.comparison.table import markdown_table
from bertender.core import machine as load
from bertender.core.artifact import Artifact
from bertender.core.machine import CpuSeconds
from bertender.gate.artifacts import Verification
from tests.cli.made import FAST, Made
from tests.front import fail, invoke, last_line, succeed
from tests.toys import new_toy


@pytest.fixture(scope="session")
def turned(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student with its answers turned around."""
    out = tmp_path_factory.mktemp("turned") / "turned"
    return with_rows_turned(Artifact.load(made["student"]), out, labels_too=False)


def with_rows_turned(source: Artifact, out: Path, *, labels_too: bool) -> Path:
    """Write a model with the rows of its head in the opposite order."""
    labels = source.card.task.labels[:: -1 if labels_too else 1]
    with new_toy(
        out,
        kind="torch",
        family=source.card.family,
        task=source.card.task.model_copy(update={"labels": labels}),
        stage="distill",
    ) as draft:
        for name in source.card.files:
            shutil.copyfile(source.path / name, draft.directory / name)
        weights = load_file(source.path / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            weights[name] = weights[name][::-1].copy()
        save_file(weights, draft.directory / "model.safetensors", {"format": "pt"})
    return out


@pytest.fixture(scope="session")
def saved(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved comparison."""
    path = tmp_path_factory.mktemp("saved") / "table.json"
    succeed("compare", made["student"], made["int8"], *FAST, "--out", path)
    return path


def test_verify_passes(made: Made, tmp_path: Path) -> None:
    result = succeed("verify", made["student"], made["int8"], "--out", tmp_path / "parity.json")
    parity = Verification.model_validate_json((tmp_path / "parity.json").read_text())
    assert "parity of int8 with student: passed" in result.stdout
    assert parity.passed and parity.texts >= 32, "every held-out text"


def test_verify_names_all_failures_at_once_and_still_prints_its_result(
    made: Made, turned: Path, tmp_path: Path
) -> None:
    out = tmp_path / "parity.json"
    result = invoke("verify", made["student"], turned, "--out", out, "--json")
    assert result.exit_code == 1
    found = last_line(result)
    assert len(found["failures"]) >= 3
    assert [failure for failure in found["failures"] if failure not in result.stderr] == []
    assert json.loads(out.read_text()) == found
    assert "Do not deploy it" in result.stderr and "Traceback" not in result.stderr


def test_verify_matches_labels_by_name(made: Made, tmp_path: Path) -> None:
    other = with_rows_turned(Artifact.load(made["student"]), tmp_path / "other", labels_too=True)
    found = last_line(succeed("verify", made["student"], other, "--json"))
    assert found["agreement"] == 1.0 and found["max_abs_difference"] < 1e-6


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [(("--texts", "5"), "texts", None), (("--tolerance", "int8"), "tolerance", "int8")],
)
def test_verify_flags_count(words: tuple[str, ...], key: str, value: object, made: Made) -> None:
    default = last_line(succeed("verify", made["student"], made["onnx"], "--json"))
    changed = last_line(succeed("verify", made["student"], made["onnx"], *words, "--json"))
    assert default[key] != changed[key]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tolerance", "int9"), "'int9'. Did you mean 'int8'?"),
        (("--texts", "0"), "texts=0"),
        (("--task", "sst3"), "no task 'sst3'. Did you mean 'sst2'?"),
    ],
)
def test_verify_refuses(words: tuple[str, ...], said: str, made: Made) -> None:
    assert said in fail("verify", made["student"], made["int8"], *words)


def test_diff_shows_the_worst_first_and_saves_all(
    made: Made, teacher: Artifact, tmp_path: Path
) -> None:
    words = ("diff", made["student"], teacher.path, made.files.dev)
    out = tmp_path / "found.jsonl"
    result = succeed(*words, "--rows", "2", "--output", out)
    assert "32 texts, " in result.stdout and "McNemar's exact p" in result.stdout
    saved = [json.loads(line) for line in out.read_text().splitlines()]
    found = last_line(succeed(*words, "--json"))
    assert saved == found["differences"] and saved
    losses = [each["lost"] for each in saved if each["lost"] is not None]
    assert losses == sorted(losses, reverse=True)
    assert f"and {len(saved) - 2} more" in result.stdout
    assert ".csv or .jsonl" in fail(*words, "--output", tmp_path / "found.txt")
    said = fail("diff", made["student"], teacher.path, "--text-column", "text")
    assert "no FILE is given" in said


def test_compare_saves_what_it_shows(saved: Path, made: Made) -> None:
    comparison = Comparison.model_validate_json(saved.read_text())
    assert [row.name for row in comparison.rows] == ["student", "int8"]
    assert comparison.circumstances.config.rounds == 2
    assert comparison.rows[1].parity and comparison.rows[1].parity.reference == "onnx"


def test_compare_shows_a_saved_table_in_every_form(saved: Path) -> None:
    comparison = Comparison.model_validate_json(saved.read_text())
    words = ("compare", "--saved", saved)
    assert succeed(*words, "--markdown").stdout == markdown_table(comparison) + "\n"
    wide = succeed(*words, "--markdown", "--wide").stdout
    assert wide == markdown_table(comparison, wide=True) + "\n" and "Texts/s" in wide
    assert "Texts/s" in succeed(*words, "--wide").stdout
    assert Comparison.model_validate(last_line(succeed(*words, "--json"))) == comparison
    table = succeed(*words).stdout
    assert "Texts/s" not in table and "always " in table and "noise floor" in table
    assert "student" in table and "Speedup" in table and "int8" in table


def test_a_table_as_wide_as_it_needs_is_not_cut(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = Comparison.model_validate_json(saved.read_text())
    long = "a-name-that-nobody-has-room-for-" * 4
    named = comparison.rows[0].model_copy(update={"name": long})
    for width in (60, 100, 200):
        monkeypatch.setattr(output, "console", Console(width=width))
        print_comparison(comparison.model_copy(update={"rows": (named,)}))
        assert long in capsys.readouterr().out


def test_a_busy_machine_is_refused_unless_noisy_figures_are_wanted(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> None:
        readings = iter(CpuSeconds(10.0 * n, 4.0 * n, 0.0, 0.0) for n in range(9))
        monkeypatch.setattr(load, "cpu_seconds", lambda: next(readings))
        monkeypatch.setattr(load, "SAMPLE_S", 0.0)

    busy()
    said = fail("compare", made["student"], *FAST)
    assert "other work had 40.0% of the cores' time" in said and "allowed are 5%" in said
    assert "--noisy" in said
    busy()
    table = succeed("compare", made["student"], *FAST, "--noisy").stdout
    assert "NOISY figures" in table and "~1.00x" in table


def test_a_saved_table_may_be_saved_again(saved: Path, tmp_path: Path) -> None:
    succeed("compare", "--saved", saved, "--out", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == saved.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["again.json"]


def test_compare_writes_a_page_with_the_heads_of_what_was_pruned(
    made: Made, tmp_path: Path
) -> None:
    pytest.importorskip("vl_convert")
    pruned, onnx, page = (tmp_path / name for name in ("pruned", "onnx", "page.html"))
    fast = ("--no-recover", "--importance", "magnitude", "--layers", "1")
    succeed("prune", made["student"], "--heads", "0.5", *fast, "--out", pruned)
    succeed("export", pruned, "--out", onnx)
    words = ("compare", made["student"], pruned, onnx, *FAST)
    rows = last_line(succeed(*words, "--html", page, "--json"))["rows"]
    assert rows[0]["pruned"] is None and rows[1]["pruned"] == rows[2]["pruned"]
    assert len(rows[1]["pruned"]["layers"]) == 1 and len(rows[1]["pruned"]["kept"][0]) == 2
    assert page.read_text(encoding="utf-8").count("<h2>Heads of") == 2


def test_a_saved_table_is_shown_as_a_page(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from bertender.report.page import page

    succeed("compare", "--saved", saved, "--html", tmp_path / "page.html")
    comparison = Comparison.model_validate_json(saved.read_text())
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(comparison)
    assert "is a directory" in fail("compare", "--saved", saved, "--html", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--saved", "{saved}", "--rounds", "10"), "takes no rounds"),
        (("--saved", "{saved}", "--max-dev", "2"), "takes no max_dev"),
        (("--saved", "{saved}", "{student}"), "takes no artifacts"),
        (("--saved", "{saved}", "--json", "--markdown"), "--json and --markdown: give one of them"),
        (("--saved", "{saved}", "--json", "--wide"), "--json and --wide: give one of them"),
        (("--saved", "{saved}", "--noisy"), "takes no noisy"),
        ((), "at least one ARTIFACT"),
    ],
)
def test_what_would_be_ignored_is_wrong_usage(
    words: tuple[str, ...], said: str, saved: Path, made: Made
) -> None:
    names = {"saved": saved, "student": made["student"]}
    assert said in fail("compare", *(word.format_map(names) for word in words))


@pytest.mark.parametrize("content", [None, "", "{}", "\xff"])
def test_what_is_no_saved_table_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    assert f"{path} is not a saved comparison" in fail("compare", "--saved", path)


def test_an_out_that_cannot_be_written_is_named(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    said = fail("compare", "--saved", saved, "--out", tmp_path / "folder")
    assert "directory" in said.lower() and str(tmp_path / "folder") in said
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_compare_takes_a_bag_of_words(made: Made, tmp_path: Path) -> None:
    succeed("baseline", *made.files.flags, "--out", tmp_path / "words")
    rows = last_line(succeed("compare", made["student"], tmp_path / "words", *FAST, "--json"))[
        "rows"
    ]
    assert [row["kind"] for row in rows] == ["torch", "bag-of-words"]
