"""Files of texts through an endpoint: read, sent at once, continued after a kill, written whole."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import pytest

from bertender.core.errors import BusyError
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.rows import READERS, ROW_WRITERS, open_table
from serve.bulk import Journal, journal_of, open_journal
from serve.client.access import AccessConfig
from serve.client.endpoint import Classification, ServedModel
from tests.cli.fakes import FakeEndpoint
from tests.front import fail, last_line, succeed
from tests.packages import ROOT
from tests.serve.scripted import CONFIG, SERVERS, Script

pytestmark = pytest.mark.usefixtures("endpoint")

WORDS = [f'w{row}, with "quotes"\tand {row}' for row in range(7)]
PREDICTION = Classification(label="a", score=0.5, logits=(0.25, 1.0))


def write_input(path: Path, texts: list[str] = WORDS) -> Path:
    """Write a file of texts with another column, by the command's own writers where it has them."""
    rows = [{"id": row, "text": text} for row, text in enumerate(texts)]
    if path.suffix == ".txt":
        path.write_text("\n".join(texts), encoding="utf-8")
    else:
        ROW_WRITERS[path.suffix](path, rows)
    return path


def read_output(path: Path) -> list[dict[str, Any]]:
    """Read predictions back as the project reads any file."""
    table = open_table(path)
    rows = [dict(row.values) for row in table.rows(table.columns)]
    delimited = path.suffix in (".csv", ".tsv")
    return [
        {
            **row,
            "score": float(row["score"]),
            **{name: json.loads(row[name]) for name in ("logits", "truncated")},
        }
        if delimited
        else row
        for row in rows
    ]


def expected(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "text": text,
            "label": text.split()[0],
            "score": 0.5,
            "logits": [0.0, 1.0],
            "truncated": False,
        }
        for text in texts
    ]


@pytest.mark.parametrize("output", ROW_WRITERS)
@pytest.mark.parametrize("suffix", [*ROW_WRITERS, ".txt"])
def test_every_format_goes_in_and_out(suffix: str, output: str, tmp_path: Path) -> None:
    texts = [" ".join(text.split()) for text in WORDS]
    source, out = write_input(tmp_path / f"texts{suffix}", texts), tmp_path / f"answers{output}"
    result = succeed("classify", "--input", source, "--output", out)
    assert read_output(out) == expected(texts)
    assert result.stdout == f"{out}: predictions for 7 texts\n"
    assert "classify answers" in result.stderr and sorted(tmp_path.iterdir()) == [out, source]


def test_a_format_that_is_read_is_written() -> None:
    assert ROW_WRITERS.keys() == READERS.keys()


def test_a_file_without_an_output_is_shown(tmp_path: Path, endpoint: type[FakeEndpoint]) -> None:
    source = write_input(tmp_path / "texts.txt", ["a b", "c"])
    assert succeed("classify", "--input", source).stdout == "a\t0.5000\ta b\nc\t0.5000\tc\n"


def test_lines_that_get_no_prediction_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or lines of the file and of the output would not be of the same texts."""
    source, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    source.write_bytes("a\u2028b\n\nc\x0cd\n\u200b\n".encode())
    succeed("classify", "--input", source, "--output", out)
    assert read_output(out) == expected(["a\u2028b", "c\x0cd"])
    assert (
        f"{source}: 2 lines without a text have no prediction, the first is line 2" in caplog.text
    )


def test_standard_input_goes_to_a_file_too(tmp_path: Path) -> None:
    succeed("classify", "--output", tmp_path / "out.jsonl", stdin="a\nb\n")
    assert read_output(tmp_path / "out.jsonl") == expected(["a", "b"])


def test_settings_reach_the_endpoint(tmp_path: Path, endpoint: type[FakeEndpoint]) -> None:
    sending = ("--batch-size", "3", "--concurrency", "2", "--timeout-s", "5", "--retries", "0")
    succeed("classify", "a", "--model", "tone", *sending)
    settings = {"model": "tone", "batch_size": 3, "concurrency": 2, "timeout_s": 5.0, "retries": 0}
    settings["access"] = AccessConfig()
    assert endpoint.settings == [settings]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_run_continues(
    after: int, tmp_path: Path, endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_input(tmp_path / "texts.csv"), tmp_path / "out.parquet"
    command = ("classify", "--input", source, "--output", out, "--concurrency", "1")
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "fails_after", after)
        fail(*command, status=130)
    assert not out.exists()
    said = last_line(succeed(*command, "--json"))
    assert said == {
        "output": str(out),
        "texts": 7,
        "resumed": 2 * after,
        "left_out": None,
        "truncated": 0,
    }
    assert sorted(endpoint.asked) == sorted((text,) for text in WORDS), "each text once"
    assert read_output(out) == expected(WORDS)
    assert not journal_of(out).exists()


def test_a_line_that_a_kill_has_torn_is_asked_again(
    tmp_path: Path, endpoint: type[FakeEndpoint]
) -> None:
    out = tmp_path / "out.jsonl"
    identity = {"a": 1}
    with pytest.raises(KeyboardInterrupt), open_journal(out, identity) as journal:
        journal.add([0, 3], [PREDICTION, PREDICTION])
        journal.file.write('{"rows": [1], "predi')
        raise KeyboardInterrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), open_journal(out, identity) as journal:
            assert journal.by_row == {0: PREDICTION, 3: PREDICTION}
            raise KeyboardInterrupt


def test_a_journal_that_another_process_has_just_removed_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    with open_journal(out, {"a": 1}):
        journal_of(out).unlink()

    def lock(file: int, how: int) -> None:
        journal_of(out).unlink()

    monkeypatch.setattr(fcntl, "flock", lock)
    with pytest.raises(BusyError, match="has just written"), open_journal(out, {"a": 1}):
        pytest.fail("the file that is open has no name")


def test_other_texts_or_another_model_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt), open_journal(out, {"texts": "1"}) as journal:
        journal.add([0], [PREDICTION])
        raise KeyboardInterrupt
    with open_journal(out, {"texts": "2"}) as journal:
        assert journal.by_row == {}
    assert "begun anew" in caplog.text


@pytest.mark.parametrize(
    "settings", [{"abstain_below": "0.8"}, {"max_length": "32"}, {"runtime": "openvino"}], ids=str
)
def test_a_server_with_other_settings_begins_anew(
    settings: dict[str, str],
    tmp_path: Path,
    endpoint: type[FakeEndpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = write_input(tmp_path / "texts.csv"), tmp_path / "out.csv"
    command = ("classify", "--input", source, "--output", out, "--concurrency", "1", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "fails_after", 1)
        fail(*command, status=130)
    parameters = {"problem_type": "single_label_classification", "digest": "toy", **settings}
    other = ServedModel.from_model_config(
        {
            **CONFIG,
            "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        }
    )
    monkeypatch.setattr(endpoint, "model", other)
    assert last_line(succeed(*command))["resumed"] == 0


def test_predictions_of_two_models_are_not_written(
    tmp_path: Path, endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_input(tmp_path / "texts.csv"), tmp_path / "out.csv"
    monkeypatch.setattr(endpoint, "is_replaced", True)
    assert "another model was deployed" in fail("classify", "--input", source, "--output", out)
    assert not out.exists()


def test_predictions_of_two_models_are_not_shown(
    endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "is_replaced", True)
    said = fail("classify", "a", "b", "c")
    assert "another model was deployed" in said and "none is shown" in said
    assert endpoint.asked == [("a",), ("b",), ("c",)]


class KilledAtWrite:
    """A file of a process that ends where it would write."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        raise KeyboardInterrupt


def test_a_kill_while_a_journal_is_opened_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, identity = tmp_path / "out.jsonl", {"texts": "1"}
    with pytest.raises(KeyboardInterrupt), open_journal(out, identity) as journal:
        journal.add([0], [PREDICTION])
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(
            "serve.bulk.Journal", lambda file: Journal(cast("IO[str]", KilledAtWrite(file)))
        )
        with pytest.raises(KeyboardInterrupt), open_journal(out, identity):
            raise KeyboardInterrupt
    with open_journal(out, identity) as journal:
        assert journal.by_row == {0: PREDICTION}


@pytest.mark.parametrize(
    "damage",
    [b"\0\0\0\n", b"{}\n\0\0\n", b"\xff\n", b'{}\n{"rows": [0]}\n'],
    ids=["nul", "nul later", "no UTF-8", "another shape"],
)
def test_a_damaged_journal_is_begun_anew(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.jsonl"
    journal_of(out).write_bytes(damage)
    with pytest.raises(KeyboardInterrupt), open_journal(out, {}) as journal:
        assert journal.by_row == {}
        journal.add([0], [PREDICTION])
        raise KeyboardInterrupt
    assert "is damaged" in caplog.text and "begun anew" in caplog.text
    with open_journal(out, {}) as journal:
        assert journal.by_row == {0: PREDICTION}


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with (
        open_journal(out, {}),
        pytest.raises(BusyError, match="another process writes"),
        open_journal(out, {}),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output", "out.xlsx", "a"), "unknown suffix '.xlsx'. Allowed: .csv"),
        (("--output", ".", "a"), "is a directory"),
        (("--text-column", "review", "a"), "text_column=review: they are of --input FILE"),
        (("--input", "texts.csv", "--pair-column", "x"), "the model reads 1 texts at once"),
        (("--input", "texts.csv", "--text-column", "txet"), "no column 'txet'"),
        (("--input", "gone.csv"), "gone.csv: cannot be read"),
        (("--input", "t.csv", "--text-column", "label", "--output", "o.csv"), "Rename it"),
        (("--input", "texts.csv", "--output", "./texts.csv"), "are the same file, texts.csv"),
        (("--input", "texts.csv", "--output", "link.csv"), "are the same file, link.csv"),
    ],
)
def test_what_cannot_work_is_said_before_a_text_is_sent(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: type[FakeEndpoint],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(Path("texts.csv"))
    Path("t.csv").write_text("label\na\n")
    Path("link.csv").symlink_to("texts.csv")
    assert message in fail("classify", *words) and endpoint.asked == []
    assert {path.name for path in tmp_path.iterdir()} == {"texts.csv", "t.csv", "link.csv"}


def test_texts_and_a_file_are_wrong_usage(tmp_path: Path) -> None:
    assert "--input FILE and TEXT" in fail("classify", "a", "--input", "x.csv")


def test_bad_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    source = write_input(tmp_path / "texts.jsonl", ["a", " ", "b"])
    out = tmp_path / "out.csv"
    assert "texts.jsonl, line 2" in fail("classify", "--input", source, "--output", out)
    words = ("--input", source, "--output", out, "--skip-bad-rows", "--json")
    said = last_line(succeed("classify", *words))
    assert (said["texts"], said["left_out"]["count"]) == (2, 1)
    assert read_output(out) == expected(["a", "b"])


def test_labels_of_words_are_lists(tmp_path: Path) -> None:
    tags = Classification(label=("O", "B-x"), score=(0.5, 0.25), logits=((1.0,), (0.0,)))
    for suffix, write in ROW_WRITERS.items():
        write(tmp_path / f"out{suffix}", [tags.model_dump(mode="json")])
        table = open_table(tmp_path / f"out{suffix}")
        (row,) = table.rows(table.columns)
        label = row.values["label"]
        assert (json.loads(label) if isinstance(label, str) else label) == ["O", "B-x"]


def test_a_killed_process_continues(tmp_path: Path) -> None:
    """The whole command, against a server that hangs at the third of five requests."""
    source, out = write_input(tmp_path / "texts.csv", WORDS + WORDS[:2]), tmp_path / "out.csv"
    words = ("classify", "--input", str(source), "--output", str(out), "--concurrency", "1")
    script = Script(["ok", "ok", "hang"])
    with SERVERS["http"](script) as url:
        command = [sys.executable, "-m", "bertender", *words, "--url", url]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=tmp_path, env=variables) as process:
            while script.asked < 3 and process.poll() is None:
                time.sleep(0.01)
            process.kill()
        assert not out.exists() and script.asked == 3
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert "predictions for 9 texts, 4 of them by an earlier run" in done.stdout, done.stderr
    assert script.asked == 6 and len(read_output(out)) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "texts.csv"]


@pytest.fixture
def tagger(endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch) -> type[FakeEndpoint]:
    """The endpoint of a model that labels words: each is the end of an entity that began before."""

    async def classify(self: FakeEndpoint, examples: list[Any]) -> list[Classification]:
        self.asked.extend(examples)
        found = []
        for example in examples:
            words = TOKEN_CLASSIFICATION.to_example(example)
            tags = ("B-x", *["I-x"] * (len(words) - 1))
            scores = {"score": (0.5,) * len(words), "logits": ((0.0, 1.0),) * len(words)}
            found.append(Classification(label=tags, **scores, spans=()))
        return found

    monkeypatch.setattr(endpoint, "model", replace(endpoint.model, problem=TOKEN_CLASSIFICATION))
    monkeypatch.setattr(endpoint, "classify", classify)
    return endpoint


def test_a_file_with_a_word_a_line_gets_a_column(
    tagger: type[FakeEndpoint], tmp_path: Path
) -> None:
    source, out = tmp_path / "dev.tsv", tmp_path / "answers.conll"
    source.write_text("New York\tB-y\n\n-DOCSTART-\tO\n\na,\tS-y\nb\tO\nc\tO\n")
    succeed("classify", "--input", source, "--output", out)
    assert out.read_text() == (
        "New York\tB-y\tS-x\n\n-DOCSTART-\tO\tO\n\na,\tS-y\tB-x\nb\tO\tI-x\nc\tO\tE-x\n"
    )
    assert tagger.asked == [("\x1fNew York",), ("a, b c",)]
    lines = tmp_path / "lines.jsonl"
    succeed("classify", "--input", source.rename(tmp_path / "dev.conll"), "--output", lines)
    (_, second) = read_output(lines)
    assert (second["words"], second["label"]) == ("a, b c", ["B-x", "I-x", "I-x"])


def test_a_column_of_lists_has_words(tagger: type[FakeEndpoint], tmp_path: Path) -> None:
    rows = [{"words": ["New\u00a0York", "is"]}, {"words": ["a,", "b"]}, {"words": "as a text"}]
    source = tmp_path / "words.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    succeed("classify", "--input", source, "--text-column", "words")
    assert tagger.asked == [("\x1fNew\u00a0York\x1fis",), ("a, b",), ("as a text",)]
    source.write_text(json.dumps({"words": ["a", 1]}))
    said = fail("classify", "--input", source, "--text-column", "words")
    assert "words.jsonl, line 1, column 'words': 1 is not text" in said


def test_words_are_for_taggers(endpoint: type[FakeEndpoint], tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_text("a O\n")
    said = fail("classify", "--input", tmp_path / "dev.conll")
    assert "a word a line is for a model that labels words" in said
