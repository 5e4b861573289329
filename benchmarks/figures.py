"""Draws the pictures of the pages, light and dark, from raw results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np

from benchmarks import compress, methods, pruning, runtimes, serving
from benchmarks.cells import machine, mean_over, megabytes, over, single_ms, task_title, two
from benchmarks.harness import RESULTS, Run, newest, read_runs
from benchmarks.servers import LONGEST_TOKENS, SERVERS
from bertender.core.machine import Speedup
from bertender.text.batch import length_buckets
from serve.config import MOST_TOKENS

IMAGES = RESULTS.parents[1] / "docs" / "images"
WIDTH = 760
LIGHT = {"ink": "#1f2328", "soft": "#59636e", "line": "#d1d9e0", "faint": "#eaeef2"}
LIGHT |= {"one": "#0969da", "two": "#bf6a02", "three": "#1a7f37", "four": "#8250df"}
DARK = {"ink": "#f0f6fc", "soft": "#9198a1", "line": "#3d444d", "faint": "#262c36"}
DARK |= {"one": "#4493f8", "two": "#e3b341", "three": "#3fb950", "four": "#ab7df8"}
COLOURS = ("one", "two", "three")


class Drawing:
    """An SVG that is written shape by shape; colours are names of a theme."""

    def __init__(self, height: int, theme: Mapping[str, str]) -> None:
        self.height = height
        self.theme = theme
        self.shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        anchor: str = "start",
        look: str = "",
    ) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{self.theme[colour]}"'
        self.shapes.append(f"<text {place} {look}>{escape(words)}</text>")

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = "line", dash: str = "none"
    ) -> None:
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        look = f'stroke="{self.theme[colour]}" stroke-width="1.5" stroke-dasharray="{dash}"'
        self.shapes.append(f"<line {ends} {look}/>")

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0
    ) -> None:
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
        fill = f'fill="{self.theme[colour]}" fill-opacity="{opacity:g}"'
        self.shapes.append(f"<rect {size} {fill}/>")

    def dot(self, x: float, y: float, radius: float, colour: str, opacity: float = 1.0) -> None:
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        fill = f'fill="{self.theme[colour]}" fill-opacity="{opacity:g}"'
        self.shapes.append(f"<circle {place} {fill}/>")

    def path(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "none") -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        look = f'stroke="{self.theme[colour]}" stroke-width="2" stroke-dasharray="{dash}"'
        self.shapes.append(f'<polyline points="{joined}" fill="none" {look}/>')

    def svg(self) -> str:
        font = 'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13"'
        view = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {view} {font}>'
        return "\n".join([head, *self.shapes, "</svg>"]) + "\n"


Scale = Callable[[float], float]


def scale(low: float, high: float, start: float, end: float, log: bool = False) -> Scale:
    """Return a function from values to pixels."""
    form: Scale = math.log if log else float
    width = form(high) - form(low)
    return lambda value: start + (end - start) * (form(value) - form(low)) / width


def axes(
    drawing: Drawing, x: Scale, y: Scale, ticks: Sequence[Sequence[float]], titles: Sequence[str]
) -> None:
    """Draw a grid with its ticks, and the titles of both axes."""
    (left, right), (top, bottom) = (
        (min(map(s, t)), max(map(s, t))) for s, t in zip((x, y), ticks, strict=True)
    )
    for tick in ticks[0]:
        drawing.line(x(tick), top, x(tick), bottom, "faint")
        drawing.text(x(tick), bottom + 18, f"{tick:g}", "soft", "middle")
    for tick in ticks[1]:
        drawing.line(left, y(tick), right, y(tick), "faint")
        drawing.text(left - 8, y(tick) + 4, f"{tick:g}", "soft", "end")
    drawing.text((left + right) / 2, bottom + 38, titles[0], "soft", "middle")
    drawing.text(left - 40, top - 12, titles[1], "soft")


PLACES: Mapping[str, tuple[str, float, float, str]] = {
    "teacher": ("teacher, PyTorch", -42, 4, "end"),
    "student": ("student, PyTorch", 18, 4, "start"),
    "onnx": ("student, ONNX", -14, 84, "start"),
    "int8": ("8 bits", -44, -78, "start"),
}
"""Step of a compression -> its words, and where they stand, from its middle."""


def scatter(drawing: Drawing) -> None:
    """Milliseconds against score, from the teacher to the chosen model; area is megabytes."""
    result = compress.part_of(read_runs(newest("headline")), "table")
    rows = {row["name"]: row for row in result.rows if row["name"] in PLACES}
    x, y = scale(0.7, 170, 70, 735, log=True), scale(0.87, 0.965, 330, 40)
    titles = (f"milliseconds for one text ({machine(result)})", "accuracy on SST-2")
    axes(drawing, x, y, ((1, 2, 5, 10, 20, 50, 100), (0.88, 0.9, 0.92, 0.94, 0.96)), titles)
    for name, row in rows.items():
        ms, size = row["latency"]["single"]["p50_ms"], row["size"]["artifact_size_bytes"] / 1e6
        place, value = x(ms), row["score"]["value"]
        colour = "two" if name == "int8" else "one"
        drawing.line(place, y(row["score"]["low"]), place, y(row["score"]["high"]), "line")
        drawing.dot(place, y(value), 1.6 * math.sqrt(size), colour, 0.35)
        drawing.dot(place, y(value), 2.5, colour)
        title, dx, dy, anchor = PLACES[name]
        words = f"{title}: {single_ms(row)} ms, {megabytes(row)} MB"
        drawing.text(place + dx, y(value) + dy, words, "ink", anchor)


def steps(drawing: Drawing) -> None:
    """The chain, with sizes and times from BERT-base to the endpoint."""
    result = compress.part_of(read_runs(newest("headline")), "table")
    rows = {row["name"]: row for row in result.rows}
    stages = (
        ("teacher", "your model, or\nfine-tuned", "teacher"),
        ("distil", "fewer layers,\nsmaller vocabulary", "student"),
        ("prune", "heads and\nneurons", ""),
        ("export", "ONNX graph,\nchecked", "onnx"),
        ("quantize", "8 bits, checked\nby the gate", "int8"),
        ("compare", "one table\nof all", ""),
        ("serve", "Triton,\nno padding", ""),
    )
    for place, (name, words, row) in enumerate(stages):
        left = 8 + 107 * place
        drawing.box(left, 12, 92, 34, "one", 0.16)
        drawing.text(left + 46, 34, name, "ink", "middle", 'font-weight="600"')
        if place:
            drawing.path([(left - 13, 29), (left - 4, 29)], "soft")
            drawing.path([(left - 8, 25), (left - 3, 29), (left - 8, 33)], "soft")
        for line, part in enumerate(words.split("\n")):
            drawing.text(left + 46, 66 + 16 * line, part, "soft", "middle", 'font-size="11.5"')
        if row:
            drawing.text(left + 46, 106, f"{megabytes(rows[row])} MB", "two", "middle")
            drawing.text(left + 46, 123, f"{single_ms(rows[row])} ms", "two", "middle")


Bars = Sequence[tuple[str, Sequence[Speedup]]]
"""Titles of rows, and the bars of each."""


def bars(drawing: Drawing, rows: Bars, names: Sequence[str], unit: str) -> None:
    """Draw rows of bars with intervals, one colour a name."""
    x = scale(0, max(each.high for _, values in rows for each in values) * 1.12, 230, 735)
    for place, name in enumerate(names):
        drawing.box(230 + 150 * place, 10, 12, 12, COLOURS[place], 0.85)
        drawing.text(248 + 150 * place, 21, name, "soft")
    y = 40.0
    for title, values in rows:
        drawing.text(220, y + 9 * len(values), title, "ink", "end")
        for place, each in enumerate(values):
            drawing.box(x(0), y, x(each.value) - x(0), 15, COLOURS[place], 0.85)
            if each.low < each.high:
                drawing.line(x(each.low), y + 7.5, x(each.high), y + 7.5, "ink")
            end = x(max(each.value, each.high))
            drawing.text(end + 6, y + 12, f"{two(each.value)}{unit}", "soft")
            y += 17
        y += 10
    drawing.line(x(0), 36, x(0), y - 6, "soft")


def runtime(place: int) -> Callable[[Drawing], None]:
    """Return a function that draws the engines on one CPU, over float32 in ONNX Runtime."""

    def draw(drawing: Drawing) -> None:
        result = read_runs(newest("runtimes"))[place]
        first, *others = runtimes.shown_rows(result)
        shapes = (("latency", "single_ms"), ("long", "single_ms"), ("latency", "batch_ms"))
        rows = []
        for row in others:
            found = [over(first[part], row[part], key) for part, key in shapes]
            rows.append((runtimes.title(row), found))
        bars(drawing, rows, ("one text", "128 tokens", "32 mixed"), "x")
        words = f"times as fast as float32 in ONNX Runtime, 6 layers, {machine(result)}"
        drawing.text(WIDTH / 2, 40 + 61 * len(rows) + 12, words, "soft", "middle")

    return draw


def dots(drawing: Drawing) -> None:
    """Points of each system over labels alone on SST-2, with intervals."""
    result = next(run for run in read_runs(newest("methods")) if run.about["part"] == "scores")
    gains = methods.gains_over_control(result)
    shown = [(name, gains[name]) for name in gains if not methods.SYSTEMS[name].is_control]
    shown.sort(key=lambda each: -float(each[1].value))
    x = scale(-45, 10, 230, 735)
    for tick in (-40, -30, -20, -10, 0, 10):
        drawing.line(x(tick), 30, x(tick), 40 + 22 * len(shown), "faint")
        drawing.text(x(tick), 58 + 22 * len(shown), f"{tick:+g}" if tick else "0", "soft", "middle")
    drawing.line(x(0), 30, x(0), 40 + 22 * len(shown), "two")
    drawing.text(x(0), 20, "labels alone", "two", "middle")
    for place, (name, change) in enumerate(shown):
        y = 46 + 22 * place
        colour = "one" if change.high >= 0 else "soft"
        drawing.text(220, y + 4, methods.SYSTEMS[name].title, "ink", "end")
        drawing.line(x(change.low), y, x(change.high), y, colour)
        drawing.dot(x(change.value), y, 4.5, colour)
    words = "points of accuracy on SST-2, 3 seeds, 3 minutes of training each, 95 % intervals"
    drawing.text(482, 78 + 22 * len(shown), words, "soft", "middle")


def servers(drawing: Drawing) -> None:
    """Texts a second of the endpoint next to other servers of the same model."""
    (result,) = read_runs(newest("serving"))
    rows = []
    for name in ("bertender", "bertender-embedded", "fastapi", "unbatched", "padded"):
        rates = serving.rates_of(result, "natural", name)
        values = [mean_over(rates[load]) for load in serving.loads_of(result)[-2:]]
        rows.append((SERVERS[name].title.replace("`", ""), values))
    bars(drawing, rows, serving.loads_of(result)[-2:], "")
    words = f"texts a second, {result.about['precision']} of 6 layers, {machine(result)}, one core"
    drawing.text(230, 40 + 44 * len(rows) + 12, words, "soft")


def candidates(drawing: Drawing) -> None:
    """Candidates of `compress` by size and time, with the limits as lines."""
    report = compress.part_of(read_runs(newest("compress")), "report")
    limits = report.about["config"]
    x, y = scale(0, 2, 70, 735), scale(0, 30, 330, 30)
    titles = (f"milliseconds for one text ({machine(report)})", "MB")
    axes(drawing, x, y, ((0, 0.5, 1, 1.5, 2), (0, 10, 20, 30)), titles)
    for row in report.rows:
        cost = row["measured"] or row["predicted"]
        if cost["single_ms"] < 2 and cost["model_mb"] < 30:
            left, top = x(cost["single_ms"]), y(cost["model_mb"])
            if not row["rounds"]:
                drawing.dot(left, top, 2.5, "one" if row["fits"] else "soft", 0.55)
            elif row["score"]:
                drawing.dot(left, top, 6, "two")
                drawing.text(left, top + 20, "chosen", "two", "middle")
            else:
                drawing.dot(left, top, 6, "four")
                drawing.text(left, top - 11, "trained, behind", "four", "middle")
    ms, size = limits["max_ms"], limits["max_mb"]
    drawing.line(x(ms), y(30), x(ms), y(0), "three", "6 4")
    drawing.text(x(ms) + 6, y(28.5), f"--max-ms {ms:g}", "three")
    drawing.line(x(0), y(size), x(2), y(size), "three", "6 4")
    drawing.text(x(2), y(size) - 7, f"--max-mb {size:g}", "three", "end")


def batcher(drawing: Drawing) -> None:
    """Sixteen texts of the long-tailed workload: padded to the maximum, the longest, in buckets."""
    draw = np.random.default_rng(0)
    drawn = np.exp(draw.normal(np.log(serving.MEDIAN_TOKENS), serving.SPREAD, 16))
    lengths = [int(min(max(length, 4), LONGEST_TOKENS)) for length in drawn]
    buckets = length_buckets(lengths, MOST_TOKENS)
    longest, maximum = max(lengths), LONGEST_TOKENS
    panels: list[tuple[str, list[tuple[int, int]]]] = [
        (f"padded to the maximum, {maximum}", [(each, maximum) for each in lengths]),
        (f"padded to the longest, {longest}", [(each, longest) for each in lengths]),
        (
            f"bertender: {len(buckets)} buckets of like length",
            [(lengths[p], max(lengths[q] for q in own)) for own in buckets for p in own],
        ),
    ]
    for column, (title, rows) in enumerate(panels):
        left = 14 + 250 * column
        drawing.text(left, 20, title, "ink")
        for place, (text, padded) in enumerate(rows):
            y = 34 + 12 * place
            drawing.box(left, y, 232 * padded / maximum, 9, "two", 0.3)
            drawing.box(left, y, 232 * text / maximum, 9, "one", 0.9)
        share = sum(lengths) / sum(padded for _, padded in rows)
        drawing.text(left, 246, f"{share:.0%} of the tokens are text", "soft")


def curves(drawing: Drawing) -> None:
    """The score by the share of heads that are cut, on each set."""
    for column, result in enumerate(read_runs(newest("pruning"))):
        _curves(drawing, result, 60 + 245 * column)
    for place, importance in enumerate(pruning.IMPORTANCES):
        drawing.line(60 + 130 * place, 268, 84 + 130 * place, 268, COLOURS[place])
        drawing.text(90 + 130 * place, 272, importance, "soft")
    drawing.text(460, 272, "solid: recovered by training; dashed: only cut", "soft")


def _curves(drawing: Drawing, result: Run, left: int) -> None:
    each = itertools.product(pruning.IMPORTANCES, (False, True))
    found = {key: pruning.curve(result, *key) for key in each}
    values = [value for own in found.values() for value in own.values()]
    low, high = math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10
    x, y = scale(0, 0.9, left, left + 190), scale(low, high, 210, 40)
    marks = [round(low + part / 10, 1) for part in range(round(10 * (high - low)) + 1)]
    titles = ("share of heads cut", task_title(result.about["task"]))
    axes(drawing, x, y, ((0, 0.3, 0.6, 0.9), marks), titles)
    for (importance, recovered), own in found.items():
        colour = COLOURS[pruning.IMPORTANCES.index(importance)]
        points = [(x(share), y(score)) for share, score in own.items()]
        drawing.path(points, colour, "" if recovered else "3 3")


PICTURES: Mapping[str, tuple[int, Callable[[Drawing], None]]] = {
    "scatter": (390, scatter),
    "steps": (134, steps),
    "runtimes-vnni": (370, runtime(0)),
    "runtimes-amx": (370, runtime(1)),
    "runtimes-avx2": (310, runtime(3)),
    "methods": (470, dots),
    "serving": (284, servers),
    "compress": (390, candidates),
    "batcher": (262, batcher),
    "pruning": (284, curves),
}
"""Name -> height, and the function that draws it."""


def drawn(name: str, theme: Mapping[str, str]) -> str:
    """Return a picture as SVG."""
    height, draw = PICTURES[name]
    drawing = Drawing(height, theme)
    draw(drawing)
    return drawing.svg()


def run() -> None:
    """Draw every picture, light and dark."""
    for name in PICTURES:
        for mode, theme in (("light", LIGHT), ("dark", DARK)):
            file = IMAGES / f"{name}-{mode}.svg"
            file.write_text(drawn(name, theme), encoding="utf-8")
