"""bertender classify: it only asks, so it loads no model library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag
from bertender.cli.output import messages, print_json
from bertender.core.errors import DataError
from bertender.problems import ProblemType
from serve.client import DEFAULT_URL, Classification, Endpoint

__all__ = ["classify_command", "lines_of"]


def classify_command() -> Callable[..., None]:
    """Build `bertender classify`."""

    def command(
        texts: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TEXT",
                help="texts; by default the lines of standard input (for pairs, a tab between "
                "the two texts)",
            ),
        ] = None,
        pair: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TEXT",
                help="second text of the first TEXT; again for the second; for pair tasks",
            ),
        ] = None,
        url: Annotated[
            str,
            typer.Option(metavar="URL", help="address of the endpoint, http://... or grpc://..."),
        ] = DEFAULT_URL,
        as_json: JsonFlag = False,
    ) -> None:
        examples = _pairs(texts or [], pair or [])
        with Endpoint(url) as endpoint:
            texts_of = examples or _read(endpoint.text_columns)
            examples = list(map(endpoint.problem.endpoint.to_example, texts_of))
            classifications = endpoint.classify(examples)
        if as_json:
            print_json(
                [classification.model_dump(mode="json") for classification in classifications]
            )
            return
        for example, classification in zip(examples, classifications, strict=True):
            for line in lines_of(classification, example, endpoint.problem):
                print(line)

    return command


def lines_of(
    classification: Classification, example: tuple[str, ...], problem: ProblemType[Any]
) -> Iterable[str]:
    """Return the lines that show a prediction, as its problem type has them."""
    labels = (
        [classification.label] if isinstance(classification.label, str) else classification.label
    )
    scores = (
        [classification.score] if isinstance(classification.score, float) else classification.score
    )
    shown = [f"{score:.4f}" for score in scores]
    return problem.endpoint.lines(labels, shown, example)


def _pairs(texts: list[str], seconds: list[str]) -> list[tuple[str, ...]]:
    if seconds and len(seconds) != len(texts):
        raise typer.BadParameter(
            f"{len(seconds)} --pair for {len(texts)} TEXT: give one for each. On standard input, "
            "put a tab between the two texts of a line."
        )
    return list(zip(texts, seconds, strict=True)) if seconds else [(text,) for text in texts]


def _read(text_columns: int) -> list[tuple[str, ...]]:
    """Read examples from standard input, one a line; empty lines are left out."""
    if sys.stdin.isatty():
        messages.print("texts, one a line; Ctrl-D ends them:")
    try:
        lines = [(number, line.rstrip("\r\n")) for number, line in enumerate(sys.stdin, start=1)]
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8: {error}. Convert it first.") from None
    examples = [_columns(line, number, text_columns) for number, line in lines if line.strip()]
    if not examples:
        raise DataError("no text to classify. Give TEXT arguments, or lines on standard input.")
    return examples


def _columns(line: str, number: int, text_columns: int) -> tuple[str, ...]:
    """Split a line at its tabs where the model reads pairs; else a tab is part of the text."""
    columns = tuple(line.split("\t")) if text_columns > 1 else (line,)
    if len(columns) != text_columns:
        raise DataError(
            f"standard input, line {number}: {len(columns)} texts, and the model reads "
            f"{text_columns}. Put one tab between the two texts."
        )
    return columns
