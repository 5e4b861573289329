"""Many texts through an endpoint: read from a file, sent several requests at a time, written."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field

from bertender.core.card import LeftOutRows
from bertender.core.config import Config, Record, Rule
from bertender.core.errors import (
    BertenderError,
    BusyError,
    ConfigError,
    DataError,
    RowError,
    ServingError,
)
from bertender.core.files import replacing
from bertender.core.progress import Bar, progress_bar
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Problem
from bertender.problems.ranking import RANKING, ROW_OF_PASSAGE
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.rows import ROW_WRITERS
from bertender.text.batch import Example
from serve.client.endpoint import DEFAULT_CONCURRENCY, AsyncEndpoint, Classification
from serve.client.protocols import DEFAULT_TIMEOUT_S, OPENING_RETRIES
from serve.wire import MODEL_NAME, row_in

if TYPE_CHECKING:
    from bertender.tasks.word_rows import ConllFile

logger = logging.getLogger(__name__)


def _same_file(first: Path | None, second: Path | None) -> bool:
    """Return whether two paths lead to the same file, also through links."""
    if first is None or second is None:
        return False
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()


class ClassifyConfig(Config):
    """Source of texts, destination of predictions, and the sending of requests."""

    panel: ClassVar[str] = "Texts"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Requests": ("batch_size", "concurrency", "timeout_s", "retries"),
    }
    main: ClassVar[tuple[str, ...]] = ("model", "input", "output")
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "columns of no file": Rule(
            lambda config: config.input is None,
            "they are of --input FILE. Give it as well, or leave them out.",
            settings=frozenset({"text_column", "pair_column", "skip_bad_rows"}),
        ),
        "output over the input": Rule(
            lambda config: _same_file(config.input, config.output),
            "--input and --output are the same file, {output}: the texts would be overwritten. "
            "Give another --output.",
        ),
    }

    model: str = Field(MODEL_NAME, description="name of the model on the server")
    input: Path | None = Field(
        None,
        description="read texts from this file: CSV, TSV, JSONL, Parquet, .txt with a text a line, "
        "or CoNLL with a word a line, for taggers",
    )
    output: Path | None = Field(
        None,
        description="write predictions to this file: CSV, TSV, JSONL or Parquet, or .conll, the "
        "input with a column more; the same command continues a run that was interrupted",
    )
    text_column: str = Field(
        "text", description="column of the text in the file, or of the words, by number or name"
    )
    pair_column: str | None = Field(None, description="column of the second text, for pairs")
    skip_bad_rows: bool = Field(
        False, description="leave out rows of the file that cannot be used, and list them"
    )
    batch_size: int | None = Field(
        None, ge=1, description="texts a request; by default, and at most, what the model takes"
    )
    concurrency: int = Field(DEFAULT_CONCURRENCY, ge=1, description="requests sent at a time")
    timeout_s: float = Field(
        DEFAULT_TIMEOUT_S, gt=0, description="longest wait for one request, its retries included"
    )
    retries: int | None = Field(
        None,
        ge=0,
        description="how often a request is sent again where the server "
        "rejects it for now, or nothing listens; by default until --timeout-s is over, and "
        f"{OPENING_RETRIES} times for the first",
    )


PAIR = 2
"""Texts of a pair; a model that reads more has a question and choices."""


@dataclass(frozen=True)
class SentenceFile:
    """A CoNLL file, and the line numbers of the words of each sentence."""

    file: ConllFile
    lines: tuple[Sequence[int], ...]


@dataclass(frozen=True)
class Texts:
    """Texts to classify, their column names, and their places."""

    columns: tuple[str, ...]
    """Columns of the output."""
    texts: tuple[Example, ...]
    source: Path
    """A file, or a description of another source."""
    places: tuple[str, ...]
    """Place of each text: "line 7"."""
    has_columns: bool = False
    """Whether the source has these columns."""
    skips_bad_rows: bool = False
    left_out: LeftOutRows | None = None
    """Rows that were left out when reading."""
    words: SentenceFile | None = None
    """The file, if it has one word per line."""

    def error_of(self, error: BertenderError, rows: Sequence[int]) -> tuple[int, RowError] | None:
        """Return the row that an error is about, and an error with its place.

        Args:
            error: error of a request.
            rows: rows of that request.

        Returns:
            None for an error that is not about one row.
        """
        refusal = row_in(str(error))
        if refusal is None or refusal.row >= len(rows):
            return None
        row, place = rows[refusal.row], self.places[rows[refusal.row]]
        if self.has_columns and refusal.column is not None:
            place = f"{place}, column {self.columns[refusal.column]!r}"
        return row, RowError(self.source, place, refusal.reason)


def read_file(
    path: Path,
    text_column: str,
    pair_column: str | None,
    text_columns: int,
    skip_bad_rows: bool = False,
    problem: Problem[Any] = SINGLE_LABEL,
) -> Texts:
    """Read the texts of a file.

    Args:
        path: CSV, TSV, JSONL, Parquet, SQuAD's JSON, or one text per line; for a model that labels
            words, also one word per line (WORD_A_LINE).
        text_column: column of the text.
        pair_column: column of the second text, for a model that reads pairs; for questions, by
            default that of the contexts.
        text_columns: number of texts that the model reads at once.
        skip_bad_rows: leave out rows that cannot be used.
        problem: kind of problem of the model; if it labels words, it takes lists of them.

    Raises:
        ConfigError: there are fewer or more columns than the model reads.
        DataError: the file is wrong.
    """
    # here, because they import pyarrow, which a few texts of a command line do not need
    from bertender.tasks.labelled import read_placed_texts
    from bertender.tasks.rows import SkippedRows, stop

    if path.suffix.lower() in WORD_A_LINE:
        check_labels_words(path, problem)
        return read_sentences(path, text_column, skip_bad_rows)
    usual = problem.columns.texts
    if pair_column is None and len(usual) == text_columns == PAIR and not problem.takes_list:
        pair_column = usual[1]
    columns = (text_column, *(() if pair_column is None else (pair_column,)))
    reads_choices = text_columns > PAIR
    if len(columns) != text_columns and not (reads_choices or problem.takes_list):
        raise ConfigError(
            f"the model reads {text_columns} texts at once, and the columns are "
            f"{', '.join(columns)}. --pair-column names that of the second text."
        )
    skipped = SkippedRows()
    bad = skipped if skip_bad_rows else stop
    problem = MULTIPLE_CHOICE if reads_choices else problem
    read = read_placed_texts(path, columns, bad, problem)
    columns = read.columns or columns
    if len(columns) != text_columns and not problem.takes_list:
        raise ConfigError(
            f"the model reads a question and {text_columns - 1} choices, and {path} has the "
            f"columns {', '.join(columns)} of them. --pair-column names those of the choices."
        )
    if read.blank:
        logger.warning(
            "%s: %d lines without a text have no prediction, the first is %s",
            path,
            len(read.blank),
            read.blank[0],
        )
    return Texts(
        columns,
        read.examples,
        source=path,
        places=read.places,
        has_columns=bool(read.columns),
        skips_bad_rows=skip_bad_rows,
        left_out=skipped.report(),
    )


def check_labels_words(path: Path, problem: Problem[Any]) -> None:
    """Raise ConfigError for a file with one word per line if the model reads texts."""
    if not problem.labels_words:
        raise ConfigError(
            f"{path}: a file with a word a line is for a model that labels words, and this one is "
            f"of {problem.name!r}. Give a table, or .txt with a text a line."
        )


def read_sentences(path: Path, column: str, skip_bad_rows: bool = False) -> Texts:
    """Read the sentences of a CoNLL file, each as the text in which its words are sent.

    Args:
        path: the file; tags are not read and may be missing.
        column: column of the words, by number or name; with the command's default, the first.
        skip_bad_rows: leave out sentences that cannot be used.

    Raises:
        DataError: the file is wrong.
    """
    from bertender.tasks.rows import SkippedRows, Table, stop
    from bertender.tasks.word_rows import WORDS, ConllFile

    skipped = SkippedRows()
    bad = skipped if skip_bad_rows else stop
    file = ConllFile.read(path)
    own = WORDS if column == ClassifyConfig.model_fields["text_column"].default else column
    table = Table(path, tuple(file.places), lambda columns: file.rows(bad, columns), bad)
    rows = [*table.rows([own])]
    if not rows:
        raise DataError(f"{path}: it holds no sentence.")
    sentences = [tuple(cast(list[str], row.values[own])) for row in rows]
    return Texts(
        (WORDS,),
        tuple((TOKEN_CLASSIFICATION.text_of(words),) for words in sentences),
        source=path,
        places=tuple(row.place for row in rows),
        skips_bad_rows=skip_bad_rows,
        left_out=skipped.report(),
        words=SentenceFile(file, tuple(row.lines for row in rows)),
    )


class BulkRun(Record):
    """The output of a run."""

    output: str
    texts: int
    resumed: int
    left_out: LeftOutRows | None
    truncated: int = Field(description="texts that were cut to the model's input")


async def classify_all(endpoint: AsyncEndpoint, texts: Texts) -> Mapping[int, Classification]:
    """Return a prediction for each text, in order; errors are those for a file."""
    predictions = Predictions()
    await _send(endpoint, texts, predictions, Bar())
    await _check_same_model(endpoint, "none is shown")
    return dict(sorted(predictions.by_row.items()))


async def classify_to_file(endpoint: AsyncEndpoint, texts: Texts, output: Path) -> BulkRun:
    """Write the predictions for some texts to a file; an interrupted run continues.

    Raises:
        BusyError: another process writes the same file.
        RowError: a text is refused, and bad rows are not left out.
        DataError: bad rows are left out, and no others remain.
        ServingError: as for `Endpoint`; predictions until then are kept. Or the model was replaced
            meanwhile.
    """
    digest = hashlib.sha256()
    for text in texts.texts:
        digest.update(json.dumps(text).encode() + b"\n")
    identity = {
        "texts": digest.hexdigest(),
        "model": {**endpoint.model.identity},
        "columns": [*COLUMNS],  # predictions of an earlier version may lack one
    }
    with open_journal(output, identity) as journal:
        resumed = len(journal.by_row)
        with progress_bar(f"classify {output.name}", len(texts.texts), "texts") as bar:
            left_out = await _send(endpoint, texts, journal, bar)
        await _check_same_model(endpoint, f"{output} is not written")
        rows = sorted(journal.by_row)
        examples = [texts.texts[row] for row in rows]
        predictions = [journal.by_row[row] for row in rows]
        if texts.words is not None and output.suffix.lower() in WORD_A_LINE:
            pairs = zip((texts.words.lines[row] for row in rows), predictions, strict=True)
            tagged = [(lines, _words_tags(each)) for lines, each in pairs]
            with replacing(output) as draft:
                draft.write_bytes(texts.words.file.with_tags(tagged).encode())
        else:
            write_predictions(output, texts.columns, examples, predictions)
    return BulkRun(
        output=str(output),
        texts=len(rows),
        resumed=resumed,
        left_out=left_out,
        truncated=sum(each.truncated for each in predictions),
    )


def _words_tags(prediction: Classification) -> tuple[str, ...]:
    label = prediction.label
    if isinstance(label, dict):
        label = [*label.values()][-1]  # the head for words is the last
    assert isinstance(label, tuple), "the model labels words"
    return label


async def _check_same_model(endpoint: AsyncEndpoint, consequence: str) -> None:
    """Raise ServingError if predictions may be from two models."""
    if not await endpoint.is_same_model():
        raise ServingError(
            "another model was deployed meanwhile, or the server has other settings, so that the "
            f"predictions would be of two: {consequence}. Run the same command again: it begins "
            "anew."
        )


async def _send(
    endpoint: AsyncEndpoint, texts: Texts, predictions: Predictions, bar: Bar
) -> LeftOutRows | None:
    """Request the missing predictions; return the texts that were left out."""
    from bertender.tasks.rows import SkippedRows, stop, together

    missing = [row for row in range(len(texts.texts)) if row not in predictions.by_row]
    bar.skip(len(texts.texts) - len(missing))
    size = endpoint.batch_size
    requests = iter([missing[start : start + size] for start in range(0, len(missing), size)])
    skipped = SkippedRows()

    async def send() -> None:
        for request in requests:  # shared: each takes the next one
            rows = request
            while rows:
                try:
                    examples = [texts.texts[row] for row in rows]
                    predictions.add(rows, await endpoint.classify(examples))
                    break
                except (DataError, ServingError) as error:
                    if (refused := texts.error_of(error, rows)) is None:
                        raise
                    (skipped if texts.skips_bad_rows else stop)(refused[1])
                    rows = [row for row in rows if row != refused[0]]
            bar.advance(len(request))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(endpoint.concurrency):
                group.create_task(send())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    report = skipped.report()
    if report and not predictions.by_row:
        first = report.first[0]
        raise DataError(
            f"{texts.source}: no text is left; the first that was left out, {first.place}: "
            f"{first.reason}"
        )
    return together(texts.left_out, report)


class Predictions:
    """Predictions by row, to which a run adds those of each response."""

    def __init__(self) -> None:
        self.by_row: dict[int, Classification] = {}

    def add(self, rows: Sequence[int], predictions: Sequence[Classification]) -> None:
        self.by_row.update(zip(rows, predictions, strict=True))


class Journal(Predictions):
    """Predictions that are also on disk, a line per response, so that a killed run continues."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__()
        self.file = file

    def add(self, rows: Sequence[int], predictions: Sequence[Classification]) -> None:
        super().add(rows, predictions)
        dumped = [each.model_dump(mode="json") for each in predictions]
        self.file.write(json.dumps({"rows": list(rows), "predictions": dumped}) + "\n")
        self.file.flush()


def journal_of(output: Path) -> Path:
    """Return the path of the journal next to an output file."""
    return output.with_name(f".{output.name}.progress")


@contextmanager
def open_journal(output: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of an output file; it is removed if the block succeeds.

    Args:
        output: file that the block will write.
        identity: everything that predictions depend on; a journal with another identity is
            replaced.

    Raises:
        BusyError: another process has it open.
    """
    path = journal_of(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process writes {output} now. Wait for it, or give another --output."
            ) from None
        if not os.fstat(file.fileno()).st_nlink:  # that process has just ended, and removed it
            raise BusyError(
                f"another process has just written {output}. Run the same command again, or give "
                "another --output."
            )
        journal = Journal(file)
        # an unfinished line of an earlier run is cut off; whole lines stay in place, so that a kill
        # at any moment loses none
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        entries, damage = _entries(whole, identity)
        if damage:
            logger.warning("%s %s: begun anew", path, damage)
            whole = b""
        file.truncate(len(whole))
        if not whole:
            journal.file.write(json.dumps(identity) + "\n")
            journal.file.flush()
        for rows, predictions in entries:
            Predictions.add(journal, rows, predictions)
        yield journal
        path.unlink(missing_ok=True)


Entries = list[tuple[list[int], list[Classification]]]
"""Rows of a request, and their predictions."""


def _entries(whole: bytes, identity: Mapping[str, Any]) -> tuple[Entries, str]:
    """Return the entries of whole lines, after the identity in the first; or none, and the reason
    why they cannot be used."""
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines and lines[0] != identity:
            return [], "is of other texts, or of another model or its settings"
        return [
            (line["rows"], [Classification(**each) for each in line["predictions"]])
            for line in lines[1:]
        ], ""
    except (ValueError, KeyError, TypeError) as error:  # not JSON, or JSON of another shape
        return [], f"is damaged ({error})"


EMBEDDING = "embedding"
"""Column of a vector."""
RANK = "rank"
"""Column of a passage's rank, from 1."""
COLUMNS = (*Classification.model_fields, EMBEDDING, RANK)
WORD_A_LINE = (".conll", ".conllu", ".iob", ".bio")
"""Suffixes of CoNLL files, with one word per line."""


def check_writable(output: Path, text_columns: Sequence[str], has_words: bool = False) -> None:
    """Raise ConfigError if a file of predictions could not be written.

    Args:
        output: the file.
        text_columns: columns of the texts.
        has_words: whether the input has one word per line.
    """
    if has_words and output.suffix.lower() in WORD_A_LINE:
        return
    if output.suffix.lower() not in ROW_WRITERS:
        raise ConfigError(
            f"--output {output}: unknown suffix {output.suffix!r}. "
            f"Allowed: {', '.join(ROW_WRITERS)}; of files with a word a line also "
            f"{', '.join(WORD_A_LINE)}."
        )
    if taken := [name for name in text_columns if name in COLUMNS]:
        raise ConfigError(
            f"the column {taken[0]!r} holds texts, and that of predictions has the same name. "
            "Rename it in the file."
        )


def _columns_of(prediction: Classification) -> dict[str, Any]:
    """Return the columns of a prediction; a vector has its own column, and no label."""
    if prediction.label is None:
        vector = list(prediction.logits)
        return {EMBEDDING: vector, "truncated": prediction.truncated}
    columns = {}
    for name, value in prediction.model_dump(mode="json").items():
        # with several heads, a column each
        own = value if isinstance(value, dict) else None
        columns.update({name: value} if own is None else {f"{h}_{name}": own[h] for h in own})
    return columns


def _rows_of_passages(
    columns: Sequence[str], texts: Example, prediction: Classification
) -> list[dict[str, Any]]:
    """Return the passages in the order of the request, each with score and rank."""
    assert prediction.ranking is not None
    ranked = {each.number: (rank, each) for rank, each in enumerate(prediction.ranking, start=1)}
    query, *passages = texts
    names = ROW_OF_PASSAGE.texts if tuple(columns) == RANKING.columns.texts else columns
    return [
        {
            **dict(zip(names, (query, passage), strict=True)),
            "score": ranked[number][1].score,
            RANK: ranked[number][0],
            "truncated": prediction.truncated,
        }
        for number, passage in enumerate(passages)
    ]


def write_predictions(
    output: Path,
    text_columns: Sequence[str],
    texts: Sequence[Example],
    predictions: Sequence[Classification],
) -> None:
    """Write a row for each example, in order; the file appears complete or not at all.

    A query has one row per passage.
    """
    rows: list[dict[str, Any]] = []
    for text, prediction in zip(texts, predictions, strict=True):
        if prediction.ranking is not None:
            rows += _rows_of_passages(text_columns, text, prediction)
        else:
            rows.append({**dict(zip(text_columns, text, strict=True)), **_columns_of(prediction)})
    with replacing(output) as draft:
        ROW_WRITERS[output.suffix.lower()](draft, rows)
