"""Writes the README's tables from the raw results: `python benchmarks/readme.py [--check]`."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from bertender.measure.compare import Comparison, ComparisonRow
from bertender.report.table import markdown_table

__all__ = ["RESULTS", "block", "rewritten", "seed_summary"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = {"sst2": "benchmarks/results/2026-11-21-sst2-cpu-ort1.31.1.json"}
SEED_SUFFIX = re.compile(r"-seed-\d+$")


def rewritten(readme: str) -> str:
    """Return the README with each marked block made anew from its file."""
    for name, file in RESULTS.items():
        pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
        text = block(file, Comparison.model_validate_json((ROOT / file).read_text()))
        readme = pattern.sub(rf"\g<1>{_literal(text)}\g<2>", readme)
    return readme


def _literal(text: str) -> str:
    """Return text as `re.sub` must be given it to insert it unchanged."""
    return text.replace("\\", r"\\")


def block(file: str, comparison: Comparison) -> str:
    """Return the table of a comparison, the summary over seeds, and the file that both are from."""
    return f"{markdown_table(comparison)}\n{seed_summary(comparison)}\nRaw: `{file}`\n"


def seed_summary(comparison: Comparison) -> str:
    """Return a line for each model that was trained with several seeds: mean and range."""
    groups: dict[str, list[ComparisonRow]] = {}
    for row in comparison.rows:
        groups.setdefault(SEED_SUFFIX.sub("", row.name), []).append(row)
    lines = [_seed_line(name, rows) for name, rows in groups.items() if len(rows) > 1]
    return "\n".join(lines) + "\n"


def _seed_line(name: str, rows: list[ComparisonRow]) -> str:
    scores = [row.score.value for row in rows]
    listed = ", ".join(f"{score:.4f}" for score in scores)
    return (
        f"- `{name}`, {len(rows)} seeds: {rows[0].score.metric} {statistics.mean(scores):.4f} "
        f"on average ({listed})"
    )


def main() -> None:
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = rewritten(before)
    if "--check" in sys.argv and before != after:
        raise SystemExit("README.md is not what benchmarks/readme.py writes: run it")
    path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
