"""bertender classify and loadtest: clients of an endpoint, which load no model library."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag, OutFile, command_with_flags, settings_of
from bertender.cli.output import messages, print_json, print_result, print_words
from bertender.core.errors import DataError, LoadTestError
from bertender.core.files import check_savable, save_result, save_text
from bertender.core.progress import visible
from bertender.problems.problem import Problem
from bertender.text.batch import Example, is_blank
from serve.bulk import (
    WORD_A_LINE,
    ClassifyConfig,
    Texts,
    check_labels_words,
    check_writable,
    classify_all,
    classify_to_file,
    read_file,
    read_sentences,
)
from serve.client.access import DEFAULT_URL, AccessConfig
from serve.client.endpoint import AsyncEndpoint, Classification, ServedModel, TextSpan
from serve.loadtest import LoadConfig, LoadTest, load_svg, load_test, texts_to_send

SENDING = {"model", "batch_size", "concurrency", "timeout_s", "retries"}
"""Settings of the endpoint."""
STANDARD_INPUT = ("text", "pair")
"""Names of columns for texts without a file; `_columns` has those for a question with choices."""


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    return classify_command() if name == "classify" else loadtest_command()


def classify_command() -> Callable[..., None]:
    """Build `bertender classify`."""

    def command(
        values: dict[str, Any],
        texts: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TEXT",
                help="texts; by default the lines of standard input (for pairs, choices and "
                "passages, a tab between the texts)",
            ),
        ] = None,
        pair: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TEXT",
                help="second text of the first TEXT; again for the second; for pair tasks. Or a "
                "choice, or a passage, of the one TEXT; again for each of them",
            ),
        ] = None,
        url: Annotated[
            str,
            typer.Option(
                metavar="URL", help="address of the endpoint, http(s)://... or grpc(s)://..."
            ),
        ] = DEFAULT_URL,
        as_json: JsonFlag = False,
    ) -> None:
        config = ClassifyConfig.parse(settings_of(ClassifyConfig, values))
        if config.input and (texts or pair):
            raise typer.BadParameter("--input FILE and TEXT: give one of them.")
        given, seconds = texts or [], pair or []
        if seconds and len(seconds) != len(given) and len(given) != 1:
            raise typer.BadParameter(
                f"{len(seconds)} --pair for {len(given)} TEXT: give one for each, or one TEXT with "
                "all of its choices. On standard input, put a tab between the texts of a line."
            )
        examples: list[Example] = [(text,) for text in given]
        if seconds and len(given) == 1:
            examples = [(*given, *seconds)]
        elif seconds:
            examples = [*zip(given, seconds, strict=True)]
        access = AccessConfig.parse(settings_of(AccessConfig, values))
        check_savable("--output", config.output, "data")
        endpoint = AsyncEndpoint(url, **config.model_dump(include=SENDING), access=access)
        asyncio.run(_classify(endpoint, examples, config, as_json))

    return command_with_flags(command, (ClassifyConfig, AccessConfig))


async def _classify(
    endpoint: AsyncEndpoint, texts: Sequence[Example], config: ClassifyConfig, as_json: bool
) -> None:
    async with endpoint:
        table = _texts(texts, config, endpoint.model)
        if config.output:
            check_writable(config.output, table.columns, table.words is not None)
            run = await classify_to_file(endpoint, table, config.output)
            if as_json:
                print_json(run)
                return
            resumed = f", {run.resumed} of them by an earlier run" if run.resumed else ""
            print_words(f"{run.output}: predictions for {run.texts} texts{resumed}")
            if cut := endpoint.model.cut_texts(run.truncated, run.texts):
                print_words(cut)
            return
        by_row = await classify_all(endpoint, table)
    problem = endpoint.model.problem
    if as_json:
        print_json([*by_row.values()])
    else:
        for row, classification in by_row.items():
            example = problem.to_example(table.texts[row])
            marked = "\tabstained" if classification.abstained else ""
            for line in lines_of(classification, example, problem):
                print(f"{line}{marked if line else ''}")
    truncated = sum(each.truncated for each in by_row.values())
    if cut := endpoint.model.cut_texts(truncated, len(by_row)):
        messages.print(cut, soft_wrap=True)  # standard output is for predictions


def _texts(texts: Sequence[Example], config: ClassifyConfig, model: ServedModel) -> Texts:
    """Return the texts to classify: from the file, the command line, or standard input.

    The file has one word per line if its own suffix or the output's says so.
    """
    count, output = model.text_columns, config.output
    if config.input and output and output.suffix.lower() in WORD_A_LINE:
        check_labels_words(output, model.problem)
        return read_sentences(config.input, config.text_column, config.skip_bad_rows)
    if config.input:
        columns = config.text_column, config.pair_column
        return read_file(config.input, *columns, count, config.skip_bad_rows, model.problem)
    if not texts:
        return _read(count, model.problem)
    places = tuple(f"text {number}" for number in range(1, len(texts) + 1))
    names = _columns(count, model.problem)
    return Texts(names, tuple(texts), Path("command line"), places)


def _columns(count: int, problem: Problem[Any]) -> tuple[str, ...]:
    """Return column names for texts without a file."""
    if problem.takes_list:
        return problem.columns.texts
    if count <= len(STANDARD_INPUT):
        return STANDARD_INPUT[:count]
    return ("question", *(f"choice_{number}" for number in range(count - 1)))


def lines_of(
    classification: Classification, example: tuple[str, ...], problem: Problem[Any]
) -> Iterable[str]:
    """Return the lines of a prediction, as its problem type shows them; characters in texts and
    labels that would affect the terminal or the lines are escaped."""
    if problem.heads:
        return _lines_of_heads(classification, example, problem)
    texts = tuple(visible(text) for text in example)
    label, score = classification.label, classification.score
    if classification.spans is not None:
        return _span_lines(classification.spans)
    if classification.ranking is not None:
        ranks = [(str(each.number), f"{each.score:.4f}") for each in classification.ranking]
        numbers, own = zip(*ranks, strict=True)
        return problem.lines(numbers, own, texts)
    if label is None:  # a vector
        return problem.lines([f"{each:.8g}" for each in classification.logits], [], texts)
    if isinstance(label, float):
        return problem.lines([f"{label:.6g}"], [], texts)  # of any size
    labels = [label] if isinstance(label, str) else label
    scores = score if isinstance(score, tuple) else [score]
    return problem.lines([*map(visible, labels)], [f"{each:.4f}" for each in scores], texts)


def _lines_of_heads(
    classification: Classification, example: tuple[str, ...], problem: Problem[Any]
) -> Iterator[str]:
    """Yield the lines of each head, after its name, and an empty line."""
    text = (" ".join(example),) if problem.labels_words else example
    for name, own in classification.by_head(problem).items():
        kind = problem.heads[name]
        lines = lines_of(own, example if kind.labels_words else text, kind)
        yield from (f"{name}\t{line}" for line in lines if line)
    yield ""


def _span_lines(spans: Sequence[TextSpan]) -> list[str]:
    """Return a line for each span, or a line for none, and an empty line."""
    found = []
    for each in spans:
        place = f"{each.start}\t{each.end}"
        found.append(f"{visible(each.label)}\t{each.score:.4f}\t{place}\t{visible(each.text)}")
    return [*(found or ["-"]), ""]


def _read(text_columns: int, problem: Problem[Any]) -> Texts:
    """Read examples from standard input, one per line, without empty lines."""
    from bertender.tasks.rows import split_lines

    if sys.stdin.isatty():
        messages.print("texts, one a line; Ctrl-D ends them:")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8: {error}. Convert it first.") from None
    examples, places = [], []
    for number, line in enumerate(split_lines(text), start=1):
        if is_blank(line):
            continue
        # if the model reads one text, a tab is part of it
        columns = tuple(line.split("\t")) if text_columns > 1 else (line,)
        may_be_more = problem.takes_list and len(columns) > text_columns
        if len(columns) != text_columns and not may_be_more:
            more = " or more" if problem.takes_list else ""
            raise DataError(
                f"standard input, line {number}: {len(columns)} texts, and the model reads "
                f"{text_columns}{more}. Put one tab between two texts."
            )
        examples.append(columns)
        places.append(f"line {number}")
    if not examples:
        raise DataError("no text to classify. Give TEXT arguments, or lines on standard input.")
    return Texts(
        _columns(text_columns, problem),
        tuple(examples),
        source=Path("standard input"),
        places=tuple(places),
    )


UrlArgument = Annotated[
    str,
    typer.Argument(metavar="URL", help="address of the endpoint, http(s)://... or grpc(s)://..."),
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="draw the latencies in this SVG file")
]


def loadtest_command() -> Callable[..., None]:
    """Build `bertender loadtest`."""

    def command(
        url: UrlArgument,
        values: dict[str, Any],
        out: OutFile = None,
        plot: PlotFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        check_savable("--plot", plot, "SVG")
        config = LoadConfig.parse(settings_of(LoadConfig, values))
        access = AccessConfig.parse(settings_of(AccessConfig, values))
        test = load_test(url, partial(texts_to_send, config), config, access)
        if out:
            save_result(test, out)
        if plot:
            save_text(load_svg(test), plot)
        print_result(test, lines_of_test(test), as_json=as_json)
        if test.limit and test.limit.lower_bound:
            raise LoadTestError(f"the search ended before the limit: {test.limit.lower_bound}")

    return command_with_flags(command, (LoadConfig, AccessConfig))


def lines_of_test(test: LoadTest) -> Iterator[str]:
    """Return the lines that show a load test."""
    for run in test.runs:
        latency = "no response"
        if run.latency is not None:
            latency = (
                f"p50 {run.latency.p50_ms:.2f} ms, p95 {run.latency.p95_ms:.2f} ms, "
                f"p99 {run.latency.p99_ms:.2f} ms"
            )
        counts = ", ".join(f"{count} {name}" for name, count in run.outcomes.items() if count)
        yield (
            f"{run.load} of {run.texts_per_request} texts: {latency}; {counts}; "
            f"{run.texts_per_second:.4g} texts/s; sent {run.send_lag.p50_ms:.3f} ms late "
            f"(p99 {run.send_lag.p99_ms:.3f} ms)"
        )
    if limit := test.limit:
        bound = "at least " if limit.lower_bound else ""
        above = f"; {limit.above:.4g} do not" if limit.above else ""
        ended = ": a lower bound, since the search ended early" if limit.lower_bound else ""
        texts = limit.rate * test.runs[0].texts_per_request
        yield (
            f"limit: {bound}{limit.rate:.4g} requests/s ({texts:.4g} texts/s) hold a p99 "
            f"of {limit.slo_p99_ms:g} ms{ended}{above}"
        )
    noisy = ": noisy, these figures are not reliable" if test.load.noisy else ""
    yield f"{test.protocol}; before and after, {test.load}{noisy}"
