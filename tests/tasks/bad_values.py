"""Rows of a data set, and values that are no labels or texts."""

from __future__ import annotations

from typing import Any

from bertender.tasks.rows import READERS

TRAIN: list[dict[str, Any]] = [
    {"text": " good ", "label": "pos"},
    {"text": "bad", "label": "neg"},
    {"text": "über 🍺", "label": "pos"},
]
DEV: list[dict[str, Any]] = [{"text": "fine", "label": "pos"}]
BAD_VALUES: dict[str, tuple[str, dict[str, Any], str]] = {
    **{
        f"empty text {suffix}": (suffix, {"text": "  ", "label": "pos"}, "column 'text': empty")
        for suffix in READERS
    },
    **{
        f"nothing to see {suffix}": (
            suffix,
            {"text": "\ufeff\u200b \x01", "label": "pos"},
            "column 'text': .* no visible character",
        )
        for suffix in READERS
    },
    **{
        f"empty label {suffix}": (suffix, {"text": "t", "label": ""}, "column 'label': empty")
        for suffix in READERS
    },
    **{
        f"nan label {suffix}": (suffix, {"text": "t", "label": "nan"}, "'label': missing value")
        for suffix in READERS
    },
    **{
        f"missing label {suffix}": (suffix, {"text": "t", "label": None}, "'label': missing value")
        for suffix in (".jsonl", ".parquet")
    },
    **{
        f"missing text {suffix}": (suffix, {"text": None, "label": "pos"}, "'text': missing value")
        for suffix in (".jsonl", ".parquet")
    },
    **{
        f"NUL {suffix}": (
            suffix,
            {"text": "a\0b", "label": "pos"},
            "'text': characters .* not text",
        )
        for suffix in READERS
    },
    "number for text": (".jsonl", {"text": 5, "label": "pos"}, "column 'text': 5 is not text"),
    "list for label": (".jsonl", {"text": "t", "label": ["a"]}, "'label': label .* is neither"),
    "half label": (".jsonl", {"text": "t", "label": 0.5}, "'label': label 0.5 is neither"),
    "NaN label": (".jsonl", {"text": "t", "label": float("nan")}, "'label': missing value .nan"),
    "no label key": (".jsonl", {"text": "t"}, "column 'label': missing; this row has 'text'"),
    "surrogate": (".jsonl", {"text": "\ud800", "label": "pos"}, "'text': characters .* not text"),
}
