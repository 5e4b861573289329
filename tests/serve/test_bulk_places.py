"""What is wrong with a text is reported with its place in the input, by client and by server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bertender.core.errors import DataError, ServingError
from bertender.tasks.rows import READERS
from serve.client.endpoint import MOST_REQUEST_BYTES
from serve.client.protocols import PROTOCOLS
from serve.server.server import Server
from serve.wire import row_in, to_arrays
from tests.cli.fakes import TOO_LONG, FakeEndpoint
from tests.front import fail, last_line, succeed
from tests.serve.scripted import SERVERS, Script
from tests.serve.test_bulk import read_output, write_input

pytestmark = pytest.mark.usefixtures("endpoint")

TEXTS = ["a", "b", "c", "d", TOO_LONG, "e"]
BLANK_LINES = {
    ".csv": ('id,text\n\n0,a\n\n1,"b\nc"\n2,d\n\n3,huge\n', "line 9, column 'text'"),
    ".tsv": ("text\na\n\n\nhuge\n", "line 5, column 'text'"),
    ".jsonl": ('\n{"text": "a"}\n\n{"text": "huge"}\n', "line 4, column 'text'"),
    ".txt": ("a\n\n  \nb\nc\nhuge\n", "line 6"),
}


@pytest.mark.parametrize("suffix", READERS)
def test_a_refused_text_is_reported_with_its_row(suffix: str, tmp_path: Path) -> None:
    """It is the first of the third request."""
    source = write_input(tmp_path / f"texts{suffix}", TEXTS)
    place = {".jsonl": "line 5", ".parquet": "row 5"}.get(suffix, "line 6")
    message = fail("classify", "--input", source, "--output", tmp_path / "out.csv")
    assert f"{source}, {place}, column 'text': the text has 9 bytes, allowed 8" in message


@pytest.mark.parametrize("suffix", BLANK_LINES)
def test_blank_rows_count(suffix: str, tmp_path: Path) -> None:
    content, place = BLANK_LINES[suffix]
    source = tmp_path / f"texts{suffix}"
    source.write_text(content)
    assert f"{source}, {place}: the text has 9 bytes" in fail("classify", "--input", source)


def test_rows_left_out_count_and_refused_rows_are_among_them(tmp_path: Path) -> None:
    source, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    texts = ["a", " ", "b", "\ud800", TOO_LONG, "c", "d"]
    source.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    words = ("classify", "--input", source, "--output", out, "--skip-bad-rows")
    report = last_line(succeed(*words, "--json"))
    assert (report["texts"], report["left_out"]["count"]) == (4, 3)
    places = [row["place"] for row in report["left_out"]["first"]]
    assert places == [f"line {line}, column 'text'" for line in (2, 4, 5)]
    assert [row["text"] for row in read_output(out)] == ["a", "b", "c", "d"]


def test_rows_left_out_of_what_is_shown(tmp_path: Path) -> None:
    source = write_input(tmp_path / "texts.txt", ["a", TOO_LONG, "b"])
    words = ("classify", "--input", source, "--skip-bad-rows")
    assert succeed(*words).stdout == "a\t0.5000\ta\nb\t0.5000\tb\n"
    assert [each["label"] for each in last_line(succeed(*words, "--json"))] == ["a", "b"]


def test_a_file_of_which_nothing_is_left(tmp_path: Path) -> None:
    source = write_input(tmp_path / "texts.txt", [TOO_LONG])
    words = ("classify", "--input", source, "--skip-bad-rows")
    for output in ((), ("--output", tmp_path / "out.csv")):
        message = fail(*words, *output)
        assert f"{source}: no text is left" in message and "line 1: the text has 9" in message
    assert not (tmp_path / "out.csv").exists()


def test_the_second_text_of_a_pair_has_its_own_column(
    tmp_path: Path, endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "model", replace(endpoint.model, text_columns=2))
    source = tmp_path / "pairs.csv"
    source.write_text(f"left,right\na,b\n\na,{TOO_LONG}\n")
    columns = ("--text-column", "left", "--pair-column", "right")
    message = fail("classify", "--input", source, *columns)
    assert f"{source}, line 4, column 'right': the text has 9 bytes" in message


def test_texts_of_no_file_have_places_too() -> None:
    assert "standard input, line 3: the text has 9" in fail("classify", stdin=f"a\n\n{TOO_LONG}\n")
    assert "command line, text 2: the text has 9" in fail("classify", "a", TOO_LONG)


@pytest.mark.parametrize(
    "reason", ["it is full of row boats", "[500] the model failed: Fail: row 0 is out of bounds"]
)
def test_errors_of_no_row_stay_as_they_are(
    reason: str, tmp_path: Path, endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: FakeEndpoint, examples: object) -> None:
        raise ServingError(f"the server at http://x refused: {reason}")

    monkeypatch.setattr(endpoint, "classify", refused)
    source = write_input(tmp_path / "texts.csv")
    message = fail("classify", "--input", source, "--skip-bad-rows")
    assert f"refused: {reason}" in message and "line" not in message


@pytest.mark.parametrize("protocol", SERVERS)
def test_a_request_that_is_sent_in_parts_has_the_rows_of_all(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text is a request of its own; the second is refused, and the first asked again."""
    monkeypatch.undo()  # the real endpoint
    first, second, third = (f"{name} {'x' * MOST_REQUEST_BYTES}" for name in "abc")
    source, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    source.write_text(f"{first}\n{second}\n{third}\n")
    script = Script(["ok", "refuse row 0"])
    with SERVERS[protocol](script) as url:
        words = ("classify", "--input", source, "--output", out, "--url", url, "--skip-bad-rows")
        report = last_line(succeed(*words, "--concurrency", "1", "--json"))
    assert [row["place"] for row in report["left_out"]["first"]] == ["line 2"]
    assert [row["label"] for row in read_output(out)] == ["a", "c"]


@pytest.mark.parametrize("bad", [("",), ("\ud800",), ("a", "b"), ()], ids=repr)
def test_rows_are_read_from_the_messages_of_the_wire(bad: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as raised:
        to_arrays([("fine",)] * 12 + [bad], text_columns=1)
    refusal = row_in(f"the server at http://127.0.0.1:8000 refused: {raised.value}")
    assert refusal is not None and refusal.row == 12
    assert re.match("the (text|row) ", refusal.reason)


@pytest.mark.server
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_real_server_refuses_a_text_of_a_file(
    protocol: str, served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real endpoint
    url = {"http": served.http_url, "grpc": served.grpc_url}[protocol]
    texts = ["pear", "plum"] * 20 + ["x" * 40_000, "saw"]
    source, out = write_input(tmp_path / "texts.csv", texts), tmp_path / "out.jsonl"
    words = ("classify", "--input", source, "--output", out, "--url", url, "--concurrency", "1")
    message = fail(*words)
    assert f"{source}, line 42, column 'text': the text has 40000 bytes, allowed 32768" in message
    report = last_line(succeed(*words, "--skip-bad-rows", "--json"))
    assert (report["texts"], report["resumed"]) == (41, 32)
    assert report["left_out"]["first"][0]["place"] == "line 42, column 'text'"
    assert [row["text"] for row in read_output(out)] == [text for text in texts if len(text) < 9]
