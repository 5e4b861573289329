"""Table of the recipe's step `endpoint`."""

from __future__ import annotations

from pathlib import Path

from bertender.cli.output import print_rows, print_words
from serve.check import EndpointCheck, Served

__all__ = ["show_endpoint"]


def show_endpoint(output: Path) -> None:
    """Print a saved check of an endpoint."""
    check = EndpointCheck.model_validate_json(output.read_text(encoding="utf-8"))
    rows = [
        (
            *(_text(served), _shown(served.answer.label)),
            *(_score(served.answer.score), _shown(served.true_label)),
        )
        for served in check.served
    ]
    right = sum(served.answer.label == served.true_label for served in check.served)
    print_rows(("held-out text", "label", "score", "true label"), rows)
    print_words(f"{right} of {len(rows)} labelled as in the data")
    print_words(
        f"served by Triton and stopped; logits within {check.max_abs_difference:.1g} of the local "
        "model's"
    )


def _text(served: Served) -> str:
    """Return the texts of an example, or its sentence where words have labels."""
    return (" | " if isinstance(served.answer.label, str) else " ").join(served.text)


def _shown(label: str | tuple[str, ...] | None) -> str:
    """Return a label, or several; a dash for none."""
    return (label if isinstance(label, str) else " ".join(label or ())) or "-"


def _score(score: float | tuple[float, ...]) -> str:
    """Return a score; of several words or labels, the lowest."""
    scores = (score,) if isinstance(score, float) else score
    return f"{min(scores):.3f}" if scores else "-"
