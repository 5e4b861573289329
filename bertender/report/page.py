"""The report: a comparison as one HTML page that loads no other files.

The content is from a saved Comparison and saved analyses; nothing is measured here, and missing
figures are left out of the page. Texts and names from outside are escaped by jinja2, and JSON has
no characters that could end a script. The page's security policy allows its own scripts, by their
digests, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from bertender.comparison.records import (
    Ancestor,
    CompareConfig,
    Comparison,
    ComparisonRow,
    PrunedHeads,
)
from bertender.comparison.table import (
    Cell,
    Column,
    columns_of,
    comparison_lines,
    score_tables,
    table_rows,
)
from bertender.core.artifact import IMPORT_STAGE
from bertender.core.config import Config
from bertender.models.importing import ImportConfig
from bertender.recipes.stages import STAGES
from bertender.report import charts
from bertender.report.analyses import Analysis, figures_of
from bertender.report.charts import Figure
from bertender.report.choice import LimitsConfig, choice_of
from bertender.tasks.task import TaskConfig

FILES = Path(__file__).parent / "page_files"
MOST_LABELS = 12
"""Most labels for a full confusion matrix; with more labels, the most frequent mistakes are
shown."""
SHOWN_MISTAKES = 20
NUMBER = re.compile(r"-?\d+(\.\d+)?")
IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&"}
"""Characters of JSON that HTML would interpret."""


class Confusion(NamedTuple):
    """Counts of predicted by true label: a matrix, or the most frequent mistakes."""

    labels: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[int, float]]]]
    """A true label, then for each predicted label the number of texts and their share."""
    mistakes: Sequence[tuple[str, str, int]]


def page(
    comparison: Comparison,
    limits: LimitsConfig | None = None,
    analyses: Sequence[Analysis] = (),
    runtime: str | None = None,
) -> str:
    """Return the report as HTML.

    Args:
        comparison: measured rows.
        limits: limits for the row to deploy.
        analyses: analyses of artifacts.
        runtime: script that draws charts; by default `charts.runtime()`.

    Raises:
        ConfigError: the drawing library is not installed.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    if runtime is None:
        charts.check_charts()
        runtime = charts.runtime()
    choice = choice_of(comparison, limits or LimitsConfig())
    title, *notes = comparison_lines(comparison)
    columns = columns_of(comparison, wide=True)
    figures = comparison_figures(comparison)
    drawn: dict[str, charts.Spec] = {}
    script = (FILES / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(FILES),
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def place(spec: charts.Spec) -> str:
        """Register a chart, and return the name of its placeholder."""
        name = f"chart-{len(drawn)}"
        drawn[name] = spec
        return name

    body = environment.get_template("body.html").render(
        comparison=comparison,
        title=title,
        notes=notes,
        choice=choice,
        columns=columns,
        rows=sortable(table_rows(comparison, columns), columns),
        names=[row.name for row in comparison.rows],
        figures=figures,
        tables=score_tables(comparison, by_label=True),
        confusions=[
            (row.name, confused)
            for row in comparison.rows
            if (confused := confusion_of(row, comparison.circumstances.labels))
        ],
        pruned=[
            (row.name, row.pruned.layers, cells_of(row.pruned))
            for row in comparison.rows
            if row.pruned
        ],
        sensitivities=[
            (row.name, spec) for row in comparison.rows if (spec := charts.sensitivity(row))
        ],
        analyses=[(each, figures_of(each).values()) for each in analyses],
        lineages=[(row.name, making(row.lineage)) for row in comparison.rows],
        comparing=comparing(comparison),
        versions=comparison.circumstances.environment.versions,
        place=place,
    )
    from markupsafe import Markup

    return environment.get_template("page.html").render(
        title=f"{comparison.circumstances.task}: report",
        policy=policy(runtime, script),
        style=Markup((FILES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own
        body=Markup(body),  # noqa: S704 - escaped where it was rendered
        data=Markup(in_script(drawn)),  # noqa: S704 - escaped
        runtime=Markup(runtime),  # noqa: S704 - the library's
        script=Markup(script),  # noqa: S704 - our own
    )


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Return the charts of all rows for which the file has figures."""
    figures = [
        Figure(
            "Score against time",
            "Further left and higher is better. The area is the size on disk, the line the 95 % "
            "interval of the score, the number the row of the table.",
            charts.scatter(comparison),
        )
    ]
    if by_length := charts.time_by_length(comparison):
        figures.append(
            Figure(
                "Time by length",
                "Single texts as they were timed, tokenisation included, in groups of like length.",
                by_length,
            )
        )
    if reliable := charts.reliability(comparison):
        figures.append(
            Figure(
                "Reliability of probabilities",
                "On the dashed line, predictions are right as often as their probability says; "
                "below it, the model is too sure.",
                reliable,
            )
        )
    return figures


def policy(*scripts: str) -> str:
    """Return the Content-Security-Policy for a page with some scripts and no requests."""
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )


def in_script(value: Any) -> str:
    """Return a value as ASCII JSON in which no script or HTML comment begins or ends."""
    return json.dumps(value, allow_nan=False).translate(IN_SCRIPT)


class SortableCell(NamedTuple):
    """A cell and its sort key: a number, or a text."""

    parts: Cell
    key: str


def sortable(rows: Sequence[Sequence[Cell]], columns: Sequence[Column]) -> list[list[SortableCell]]:
    """Return the cells of a table with their sort keys."""
    return [
        [
            SortableCell(cell, sort_key(cell[0]) if column.numeric else cell[0])
            for cell, column in zip(row, columns, strict=True)
        ]
        for row in rows
    ]


def sort_key(value: str) -> str:
    """Return the number in a cell; empty without one, which is sorted last."""
    found = NUMBER.search(value)
    return found[0] if found else ""


def confusion_of(row: ComparisonRow, labels: Sequence[str]) -> Confusion | None:
    """Return the confusion of a row; None for texts without a single label."""
    if row.confusion is None:
        return None
    counts = {(each.truth, each.predicted): each.texts for each in row.confusion}
    mistakes = [
        (labels[truth], labels[predicted], texts)
        for (truth, predicted), texts in counts.items()
        if truth != predicted
    ]
    if len(labels) > MOST_LABELS:
        return Confusion(labels, (), mistakes[:SHOWN_MISTAKES])
    totals = Counter[int]()
    for (truth, _), texts in counts.items():
        totals[truth] += texts
    numbers = range(len(labels))
    rows = [
        (
            labels[truth],
            [
                (own, own / (totals[truth] or 1))
                for predicted in numbers
                for own in [counts.get((truth, predicted), 0)]
            ],
        )
        for truth in numbers
    ]
    return Confusion(labels, rows, ())


@dataclass(frozen=True)
class HeadCell:
    """A head in a map of layers x heads."""

    words: str
    share: float
    """Share of the most important head's importance."""
    remains: bool


def cells_of(pruned: PrunedHeads) -> list[tuple[int, list[HeadCell]]]:
    """Return a row for each layer, with its number, heads, and whether each remains."""
    most = max((score for layer in pruned.importance for score in layer), default=0.0) or 1.0
    rows = []
    for layer, scores, remaining in zip(pruned.layers, pruned.importance, pruned.kept, strict=True):
        cells = []
        for head, score in enumerate(scores):
            state = "remains" if head in remaining else "cut"
            words = f"layer {layer}, head {head}: {score:.4g}, {state}"
            cells.append(HeadCell(words, round(score / most, 3), head in remaining))
        rows.append((layer, cells))
    return rows


def making(lineage: Sequence[Ancestor]) -> list[tuple[Ancestor, str]]:
    """Return the artifacts of a lineage, the oldest first, each with the command that makes it;
    empty if the command is not known."""
    by_digest = {each.digest: each for each in lineage if not each.missing}
    steps = [(each, command_of(each, by_digest.get(each.parent or ""))) for each in lineage]
    return steps[::-1]


def command_of(made: Ancestor, parent: Ancestor | None) -> str:
    """Return the command that makes an artifact from its parent; empty if it is not known.

    A calibrated artifact has two, one per line: the second calibrates the first one's output.
    """
    if made.calibrated_by is None:
        return _command_of(made, parent, made.place)
    plain = f"{made.place}-uncalibrated"
    if not (first := _command_of(made, parent, plain)):
        return ""
    words = ["bertender", "calibrate", plain, "--method", made.calibrated_by]
    if any(made.source.get(name) != value for name, value in made.calibrated_on.items()):
        words += flags(TaskConfig, made.calibrated_on)
    return f"{first}\n{shlex.join([*words, '--out', made.place])}"


def _command_of(made: Ancestor, parent: Ancestor | None, place: str) -> str:
    out = ["--out", place]
    if made.missing:
        return ""
    own: dict[str, Any] = dict(made.config)
    if made.stage == IMPORT_STAGE:
        source = str(own.get("source", ""))
        if source == place:  # in the cache folder, by itself
            return ""
        if own.get("revision"):
            source = source.partition("@")[0]
        said = ("revision", "labels", "pooling", *(() if made.source else ("problem_type",)))
        given = [
            *flags(ImportConfig, {name: own.get(name) for name in said}),
            *flags(TaskConfig, made.source),
        ]
        return shlex.join(["bertender", "import", source, *given, *out])
    if made.stage not in STAGES or (made.parent is not None and parent is None):
        return ""
    stage = STAGES[made.stage]
    words = ["bertender", made.stage]
    if stage.source and parent is not None:
        words += (
            [parent.place] if stage.source == "artifact" else [f"--{stage.source}", parent.place]
        )
        own.pop(stage.source, None)
    if stage.needs_task and (parent is None or parent.source != made.source):
        words += flags(TaskConfig, made.source)
    return shlex.join([*words, *flags(stage.config, own), *out])


def comparing(comparison: Comparison) -> str:
    """Return the command that measures a comparison."""
    by_name = {row.name: row.lineage[0].place for row in comparison.rows}
    pairs = [row.cascade for row in comparison.rows if row.cascade]
    places = dict.fromkeys(by_name.values())
    cascades = [
        word for pair in pairs for word in ("--cascade", by_name[pair.small], by_name[pair.strong])
    ]
    conditions = comparison.circumstances
    # otherwise the task is that of the first model that records one
    known = comparison.rows[0].lineage[0].source
    task = {name: value for name, value in conditions.source.items() if known.get(name) != value}
    config = to_jsonable_python(conditions.config)
    own = [*flags(TaskConfig, task), *flags(CompareConfig, config)]
    return shlex.join(["bertender", "compare", *places, *cascades, *own])


def flags(config: type[Config], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of settings with other values than their defaults."""
    for name, field in config.model_fields.items():
        if (value := values.get(name)) is None:
            continue
        if value == to_jsonable_python(field.get_default(call_default_factory=True)):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            if isinstance(value, Mapping):
                value = [f"{key}={own}" for key, own in value.items()]
            yield flag
            yield ",".join(map(str, value)) if isinstance(value, list) else str(value)
