"""A comparison as one HTML file: the table, its conditions, and maps of the remaining heads."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from bertender.comparison.records import Comparison, PrunedHeads
from bertender.comparison.table import columns_of, comparison_lines, table_rows

# --- from bertender.report.heat_map
# A map of layers x heads in colour: what each head was worth, and whether pruning left it.


@dataclass(frozen=True)
class HeadCell:
    """A head on a map in colour."""

    words: str
    colour: str
    remains: bool


def heat_map(pruned: PrunedHeads) -> list[tuple[int, list[HeadCell]]]:
    """Return a row for each layer, by its number: its heads, the darker the more important."""
    most = max((score for layer in pruned.importance for score in layer), default=0.0) or 1.0
    rows = zip(pruned.layers, pruned.importance, pruned.kept, strict=True)
    return [
        (number, [_cell(number, h, s, s / most, h in remaining) for h, s in enumerate(scores)])
        for number, scores, remaining in rows
    ]


def _cell(layer: int, head: int, score: float, share: float, remains: bool) -> HeadCell:
    words = f"layer {layer}, head {head}: {score:.4g}, {'remains' if remains else 'cut'}"
    return HeadCell(words, f"hsl(210 70% {95 - 50 * share:.0f}%)", remains)


# --- from bertender.report.html
# A comparison as one HTML file: the table, its conditions, and maps of the remaining heads.
#
# Everything comes from the saved Comparison, every word of it is escaped, and the file asks no
# other
# for anything.

TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1b1f24 }
table { border-collapse: collapse }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d5d9de; text-align: left }
.number { text-align: right; font-variant-numeric: tabular-nums }
.beside { color: #5b6570; font-size: .85em }
.heads td { width: 1.6rem; height: 1.6rem; padding: 0; border: 1px solid #fff; text-align: center }
.heads th { border: 0 }
</style>
<h1>{{ title }}</h1>
<table>
<tr>
{%- for column in columns %}
<th{% if column.numeric %} class="number"{% endif %}>{{ column.heading | join(", ") }}</th>
{%- endfor %}
</tr>
{%- for row in rows %}
<tr>
{%- for column, cell in row %}
<td{% if column.numeric %} class="number"{% endif %}>{{ cell[0] }}
{%- for part in cell[1:] %}<div class="beside">{{ part }}</div>{% endfor %}</td>
{%- endfor %}
</tr>
{%- endfor %}
</table>
<ul>
{%- for note in notes %}
<li>{{ note }}</li>
{%- endfor %}
</ul>
{%- for name, layers in maps %}
<h2>Heads of {{ name }}</h2>
<p>A layer a row; the darker, the more important before the first cut. &times; marks what was
cut.</p>
<table class="heads">
{%- for layer, heads in layers %}
<tr><th>layer {{ layer }}</th>
{%- for head in heads %}
<td title="{{ head.words }}" style="background: {{ head.colour }}">
{%- if not head.remains %}&times;{% endif %}</td>
{%- endfor %}
</tr>
{%- endfor %}
</table>
{%- endfor %}
</html>
"""


def html_report(comparison: Comparison) -> str:
    """Render the comparison as an HTML page."""
    conditions = comparison.circumstances
    title, *notes = comparison_lines(comparison)
    columns = columns_of(comparison, wide=True)
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE)
    headings = [
        {"heading": column.heading(conditions), "numeric": column.numeric} for column in columns
    ]
    rows = [list(zip(columns, cells, strict=True)) for cells in table_rows(comparison, columns)]
    return page.render(
        title=title,
        notes=notes,
        columns=headings,
        rows=rows,
        maps=[(row.name, heat_map(row.pruned)) for row in comparison.rows if row.pruned],
    )
