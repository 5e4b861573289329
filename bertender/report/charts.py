"""Charts in Vega-Lite: specifications, the JavaScript to draw them, and SVG files.

Names of labels and models are values of fixed fields, never field names, which Vega-Lite would
parse. Text, axes and grids take their colours from the page, light or dark; marks have colours that
are visible on both.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertender.comparison.records import Comparison, ComparisonRow
from bertender.comparison.table import MEGABYTE, best_rows
from bertender.core.errors import ConfigError

Spec = dict[str, Any]
Values = Sequence[Mapping[str, Any]]


class Figure(NamedTuple):
    """A chart with its title and a sentence on how to read it."""

    title: str
    words: str
    spec: Spec


SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
VEGA_LITE = "6.4"
COLOURS = ("#2f81f7", "#d4740b", "#2da44e", "#a06bf0", "#d6409f", "#0f9aa8", "#9a7b00", "#7d8590")
GREY = COLOURS[-1]
WIDE_RATIO = 5
"""Ratio of the largest to the smallest time above which the axis is logarithmic."""
LENGTH_BINS = 8
SHOWN_PRODUCTS = 20
BAR_PIXELS = 24
"""Height of a bar, or of a row of a map."""
RATIO = "_snr_db"
"""Suffix of names of signal-to-noise ratios."""
NAME_PIXELS = 160
"""Largest width of a row or label name on an axis; the tooltip has the full name."""


def check_charts() -> None:
    """Raise ConfigError if the drawing library is not installed."""
    if importlib.util.find_spec("vl_convert") is None:
        raise ConfigError(
            "charts are drawn by the package 'vl-convert-python', which is not installed. Install "
            "it with what belongs to it: pip install 'bertender[report]'"
        )


@functools.cache
def runtime() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script, a module that loads no other file."""
    import vl_convert  # an extra

    bundle: Any = vl_convert.javascript_bundle  # its stub requires a snippet, which has a default
    return str(bundle(vl_version=VEGA_LITE))


def svg(spec: Spec) -> str:
    """Draw a chart as an SVG file on white."""
    import vl_convert  # an extra

    whole = {**spec, "width": 480, "background": "white"}
    drawn: str = vl_convert.vegalite_to_svg(whole, vl_version=VEGA_LITE)
    return drawn


def chart(values: Values, **parts: Any) -> Spec:
    """Return a chart as wide as the page allows."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": 260,
        "background": None,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(values)},
        "config": {
            "view": {"stroke": None},
            "axis": {"labelLimit": NAME_PIXELS, "labelFontSize": 12, "titleFontSize": 12},
            "legend": {"labelLimit": 2 * NAME_PIXELS, "labelFontSize": 12, "titleFontSize": 12},
            "range": {"category": list(COLOURS)},
        },
        **parts,
    }


def quantity(field: str, title: str, **more: Any) -> Spec:
    """Return a channel for numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def named(field: str, title: str | None, **more: Any) -> Spec:
    """Return a channel for names, in the given order."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **more}


def by_row(rows: Sequence[str], **more: Any) -> Spec:
    """Return the colours of rows: a name has the same colour in all charts."""
    legend = {"orient": "bottom", "direction": "vertical", "columns": 1, "title": None}
    return {
        **named("row", None, legend=legend, **more),
        "scale": {
            "domain": list(rows),
            "range": [COLOURS[i % len(COLOURS)] for i in range(len(rows))],
        },
    }


def scatter(comparison: Comparison) -> Spec:
    """Draw score over time, with the size as area; rows have numbers."""
    rows = comparison.rows
    front = {*best_rows(rows)}
    values = [
        {
            "number": str(number + 1),
            "row": row.name,
            "ms": row.latency.single.p50_ms,
            "score": row.score.value,
            "low": row.score.low,
            "high": row.score.high,
            "mb": row.size.artifact_size_bytes / MEGABYTE,
            "front": "yes" if number in front else "no",
        }
        for number, row in enumerate(rows)
        if row.score.undefined is None
    ]
    times = [row.latency.single.p50_ms for row in rows]
    is_wide = max(times) > WIDE_RATIO * min(times)
    scale: Spec = {"type": "log", "nice": False} if is_wide else {"zero": False}
    scale["padding"] = 30
    metric = comparison.circumstances.metric
    axis = {"grid": False, "tickCount": 5, "labelSeparation": 8}
    x = quantity("ms", "milliseconds a text, median", scale=scale, axis=axis)
    score = quantity("score", metric, scale={"zero": False, "padding": 20}, axis={"tickCount": 6})
    tooltip = [
        named("row", "artifact"),
        quantity("score", metric, format=".3f"),
        quantity("low", "95 % from", format=".3f"),
        quantity("high", "to", format=".3f"),
        quantity("ms", "ms a text", format=".3~g"),
        quantity("mb", "MB", format=".3~g"),
        named("front", "on the Pareto front"),
    ]
    # size as area: as a radius, four times the size would look like sixteen
    largest = max((each["mb"] for each in values), default=1.0)
    size = quantity("mb", "MB", scale={"domain": [0, largest], "range": [40, 1600]}, legend=None)
    return chart(
        values,
        height=320,
        layer=[
            {
                "mark": {"type": "rule", "color": GREY},
                "encoding": {"x": x, "y": {**score, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "circle", "opacity": 0.65, "stroke": GREY},
                "encoding": {
                    "x": x,
                    "y": score,
                    "size": size,
                    "tooltip": tooltip,
                    "color": named(
                        "front",
                        "on the Pareto front",
                        scale={"domain": ["yes", "no"], "range": [COLOURS[0], COLOURS[-1]]},
                        legend={"orient": "bottom"},
                    ),
                },
            },
            {
                "mark": {"type": "text", "fontWeight": "bold", "dx": 22, "dy": -16},
                "encoding": {"x": x, "y": score, "text": {"field": "number"}, "tooltip": tooltip},
            },
        ],
    )


def time_by_length(comparison: Comparison) -> Spec | None:
    """Draw the median time of single texts over their length; None if lengths are all equal."""
    lengths = np.array(flat(comparison.timed_lengths))
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTH_BINS + 1)))
    if len(edges) < 3:
        return None
    bins = np.clip(np.searchsorted(edges, lengths, side="right") - 1, 0, len(edges) - 2)
    values = []
    for row in comparison.rows:
        times = np.array(flat(row.latency.single_ms))
        if len(times) != len(lengths):
            return None
        for own in np.unique(bins).tolist():
            some = bins == own
            values.append(
                {
                    "row": row.name,
                    "length": float(np.median(lengths[some])),
                    "ms": float(np.median(times[some])),
                    "texts": int(some.sum()),
                }
            )
    unit = "words" if comparison.circumstances.lengths.mean_tokens is None else "tokens"
    return chart(
        values,
        mark={"type": "line", "point": {"size": 50}},
        encoding={
            "x": quantity("length", unit, scale={"zero": False}, axis={"grid": False}),
            "y": quantity("ms", "milliseconds, median", axis={"tickCount": 6}),
            "color": by_row([row.name for row in comparison.rows]),
            "tooltip": [
                named("row", "artifact"),
                quantity("length", unit),
                quantity("ms", "ms, median", format=".3~g"),
                quantity("texts", "texts timed"),
            ],
        },
    )


def reliability(comparison: Comparison) -> Spec | None:
    """Draw accuracy over probability; None for kinds of problems without probabilities."""
    values = [
        {
            "row": row.name,
            "confidence": own.confidence,
            "right": own.right,
            "predictions": own.count,
        }
        for row in comparison.rows
        if row.reliability is not None
        for own in row.reliability.bins
    ]
    if not values:
        return None
    x = quantity("confidence", "probability", scale={"domain": [0, 1]}, axis={"grid": False})
    y = quantity("right", "share that is right", scale={"domain": [0, 1]})
    return chart(
        values,
        layer=[
            {
                "data": {"values": [{"confidence": 0, "right": 0}, {"confidence": 1, "right": 1}]},
                "mark": {"type": "line", "color": GREY, "strokeDash": [4, 4]},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "line", "point": {"size": 50}},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": by_row([row.name for row in comparison.rows]),
                    "tooltip": [
                        named("row", "artifact"),
                        quantity("confidence", "mean probability", format=".3f"),
                        quantity("right", "share that is right", format=".3f"),
                        quantity("predictions", "predictions"),
                    ],
                },
            },
        ],
    )


def flat(nested: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return processes x rounds x texts as one list."""
    return [each for rounds in nested for texts in rounds for each in texts]


def sensitivity(row: ComparisonRow) -> Spec | None:
    """Draw the change of each product by 8 bits; None if the card does not have it."""
    title, found = "sensitivity", dict[str, float]()
    if row.sensitivity is not None and row.sensitivity.by_node:
        found = row.sensitivity.by_node
    elif row.products is not None:
        title = "signal to noise, dB: less is worse"
        ratios = {
            name: [value for figure, value in part.figures.items() if figure.endswith(RATIO)]
            for name, part in row.products.worst.items()
        }
        found = {name: min(own) for name, own in ratios.items() if own}
    values = [
        {"product": name, "value": value} for name, value in [*found.items()][:SHOWN_PRODUCTS]
    ]
    if not values:
        return None
    return chart(
        values,
        height=BAR_PIXELS * len(values),
        mark={"type": "bar", "color": COLOURS[0]},
        encoding={
            "y": named("product", None),
            "x": quantity("value", title, axis={"tickCount": 5}),
            "tooltip": [named("product", "product"), quantity("value", title, format=".3~g")],
        },
    )


def heat_map(cells: Sequence[Sequence[float | None]], title: str) -> Spec:
    """Draw a map of layers x heads: stronger colours are higher, another colour is below 0.

    Args:
        cells: a row per layer, a value per head; None for a missing value.
        title: title of the values.
    """
    values = [
        {
            "layer": str(layer + 1),
            "head": str(head + 1),
            "value": value,
            "apart": abs(value),
            "side": "more" if value >= 0 else "less",
        }
        for layer, heads in enumerate(cells)
        for head, value in enumerate(heads)
        if value is not None
    ]
    most = max((float(str(each["apart"])) for each in values), default=0.0) or 1.0
    sides = {"domain": ["more", "less"], "range": [COLOURS[0], COLOURS[1]]}
    return chart(
        values,
        height=BAR_PIXELS * len(cells),
        mark={"type": "rect", "stroke": GREY, "strokeWidth": 0.4},
        encoding={
            "x": named("head", "head", axis={"labelAngle": 0}),
            "y": named("layer", "layer"),
            "color": named("side", None, scale=sides, legend=None),
            "fillOpacity": quantity(
                "apart", title, scale={"domain": [0, most], "range": [0.04, 1]}, legend=None
            ),
            "tooltip": [
                named("layer", "layer"),
                named("head", "head"),
                quantity("value", title, format=".3~g"),
            ],
        },
    )


def shares(by_layer: Sequence[Mapping[str, float]], title: str) -> Spec:
    """Draw shares that sum to 1, a bar per layer."""
    kinds = [*by_layer[0]] if by_layer else []
    colours = [*COLOURS[: len(kinds) - 1], GREY]  # the last kind is the remainder
    values = [
        {"layer": str(layer + 1), "kind": kind, "share": share}
        for layer, own in enumerate(by_layer)
        for kind, share in own.items()
    ]
    legend = {"orient": "bottom", "columns": 2}
    return chart(
        values,
        height=BAR_PIXELS * len(by_layer),
        mark="bar",
        encoding={
            "y": named("layer", "layer"),
            "x": quantity("share", title, axis={"format": ".0%"}, scale={"domain": [0, 1]}),
            "color": named("kind", None, scale={"domain": kinds, "range": colours}, legend=legend),
            "tooltip": [
                named("layer", "layer"),
                named("kind", "kind"),
                quantity("share", "share", format=".1%"),
            ],
        },
    )


def lines(by_name: Mapping[str, Sequence[float]], first_layer: int, title: str) -> Spec:
    """Draw figures over layers, a line each.

    Args:
        by_name: name -> a figure per layer.
        first_layer: number of the first layer; 0 for the embeddings.
        title: title of the figures.
    """
    values = [
        {"layer": layer, "kind": name, "value": value}
        for name, own in by_name.items()
        for layer, value in enumerate(own, start=first_layer)
    ]
    legend = {"orient": "bottom", "columns": 2}
    return chart(
        values,
        mark={"type": "line", "point": {"size": 50}},
        encoding={
            "x": quantity("layer", "layer", axis={"tickMinStep": 1, "grid": False, "format": "d"}),
            "y": quantity("value", title),
            "color": named("kind", None, scale={"domain": [*by_name]}, legend=legend),
            "tooltip": [
                named("kind", "figure"),
                quantity("layer", "layer"),
                quantity("value", title, format=".3f"),
            ],
        },
    )
