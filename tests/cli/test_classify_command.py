"""bertender classify: where texts come from, and what is said of them."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from bertender.cli.asking import lines_of
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from serve.client.access import DEFAULT_URL
from serve.client.endpoint import Classification, TextSpan
from tests.cli.fakes import FakeEndpoint
from tests.front import fail, last_line, succeed


@pytest.fixture
def pairs(endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch) -> type[FakeEndpoint]:
    """The endpoint of a model that reads pairs."""
    monkeypatch.setattr(endpoint, "model", replace(endpoint.model, text_columns=2))
    return endpoint


def test_texts_of_the_command_line(endpoint: type[FakeEndpoint]) -> None:
    result = succeed("classify", "saw drill", "a [bold] pear")
    assert result.stdout == "saw\t0.5000\tsaw drill\na\t0.5000\ta [bold] pear\n"
    assert endpoint.asked == [("saw drill",), ("a [bold] pear",)]


def test_what_a_text_would_do_to_a_terminal_is_shown(endpoint: type[FakeEndpoint]) -> None:
    """The fake's label is the first word."""
    result = succeed("classify", "\x1b[2Jsaw a\tb\nc")
    assert result.stdout == "\\x1b[2Jsaw\t0.5000\t\\x1b[2Jsaw a\\tb\\nc\n"
    assert endpoint.asked == [("\x1b[2Jsaw a\tb\nc",)]
    assert "\x1b" not in fail("classify", "--input", "no\x1b[2Jsuch.csv")


def test_lines_are_those_of_the_problem_type() -> None:
    tags = Classification(label=("O", "B-x"), score=(0.5, 0.25), logits=((1.0, 0.0), (0.0, 1.0)))
    words = ("by", "bird")
    assert [*lines_of(tags, words, TOKEN_CLASSIFICATION)] == [
        "O\t0.5000\tby",
        "B-x\t0.2500\tbird",
        "",
    ]


def test_spans_are_shown_where_the_server_finds_them() -> None:
    tags = {"label": ("O", "B-x"), "score": (0.5, 0.25), "logits": ((1.0, 0.0), (0.0, 1.0))}
    span = TextSpan(label="x", score=0.25, start=3, end=7, text="b\tird")
    found = Classification(**tags, spans=(span,))
    assert [*lines_of(found, ("by b\tird",), TOKEN_CLASSIFICATION)] == [
        "x\t0.2500\t3\t7\tb\\tird",
        "",
    ]
    assert [*lines_of(Classification(**tags, spans=()), ("by",), TOKEN_CLASSIFICATION)] == ["-", ""]
    assert found.model_dump()["spans"] == ({**span.model_dump()},)
    assert "spans" not in Classification(**tags).model_dump()


@pytest.mark.parametrize(
    ("stdin", "asked"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("no newline at the end", ["no newline at the end"]),
        ("windows\r\nlines\r\n", ["windows", "lines"]),
        ("a\n\n  \nb\n", ["a", "b"]),
        ("a\ttab stays\n", ["a\ttab stays"]),
        (" space stays \n", [" space stays "]),
        ("größe 漢字\n", ["größe 漢字"]),
        ("\ufeffa\u2028b\x85c\x0cd\re\n\u200b\nf\n", ["a\u2028b\x85c\x0cd\re", "f"]),
    ],
)
def test_lines_of_standard_input(
    stdin: str, asked: list[str], endpoint: type[FakeEndpoint]
) -> None:
    succeed("classify", stdin=stdin.encode())
    assert endpoint.asked == [(text,) for text in asked]


def test_texts_come_before_standard_input(endpoint: type[FakeEndpoint]) -> None:
    succeed("classify", "given", stdin="not read\n")
    assert endpoint.asked == [("given",)]


def test_pairs_of_the_command_line(pairs: type[FakeEndpoint]) -> None:
    result = succeed("classify", "a", "b", "--pair", "c", "--pair", "d")
    assert pairs.asked == [("a", "c"), ("b", "d")]
    assert result.stdout == "a\t0.5000\ta | c\nb\t0.5000\tb | d\n"


def test_pairs_of_standard_input(pairs: type[FakeEndpoint]) -> None:
    succeed("classify", stdin="a\tb\n\nc d\te\n")
    assert pairs.asked == [("a", "b"), ("c d", "e")]


@pytest.mark.parametrize("line", ["no tab", "two\ttabs\there"])
def test_a_line_that_is_no_pair_is_named(line: str, pairs: type[FakeEndpoint]) -> None:
    assert "standard input, line 3: " in fail("classify", stdin=f"a\tb\n\n{line}\n")
    assert pairs.asked == []


@pytest.mark.parametrize("stdin", ["", "\n", "  \n\n"])
def test_nothing_to_classify(stdin: str, endpoint: type[FakeEndpoint]) -> None:
    assert "no text to classify" in fail("classify", stdin=stdin)


def test_standard_input_that_is_no_utf8(endpoint: type[FakeEndpoint]) -> None:
    assert "standard input is not UTF-8" in fail("classify", stdin=b"caf\xe9\n")


@pytest.mark.parametrize("words", [("a", "b", "--pair", "c"), ("--pair", "c")])
def test_pairs_that_do_not_match_are_wrong_usage(
    words: tuple[str, ...], endpoint: type[FakeEndpoint]
) -> None:
    assert "--pair" in fail("classify", *words)


def test_json(endpoint: type[FakeEndpoint]) -> None:
    said = last_line(succeed("classify", "saw", "pear", "--json"))
    assert said == [
        {"label": label, "score": 0.5, "logits": [0.0, 1.0], "truncated": False}
        for label in ("saw", "pear")
    ]


def test_the_url_is_asked(endpoint: type[FakeEndpoint]) -> None:
    succeed("classify", "a")
    succeed("classify", "a", "--url", "grpc://127.0.0.1:9")
    assert endpoint.urls == [DEFAULT_URL, "grpc://127.0.0.1:9"]


def test_nobody_answers() -> None:
    """With no text at all: it says so before it waits for standard input."""
    said = fail("classify", "--url", "http://127.0.0.1:9", stdin="a\n")
    assert "no endpoint responds at http://127.0.0.1:9" in said and "bertender serve" in said


def test_a_terminal_is_told_what_is_waited_for(
    endpoint: type[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertender.cli import asking

    class Terminal:
        """Standard input that a person types into."""

        def isatty(self) -> bool:
            return True

        buffer = io.BytesIO(b"typed\n")

    monkeypatch.setattr(asking, "sys", type(sys)("sys"))
    monkeypatch.setattr(asking.sys, "stdin", Terminal(), raising=False)
    assert "Ctrl-D" in succeed("classify").stderr
    assert endpoint.asked == [("typed",)]
