"""What is said of a quantization at its end."""

from __future__ import annotations

from typing import Any

import pytest

from bertender.cli.findings import quantization_lines
from bertender.core.findings import Findings

FOUND = {
    "target": "vnni",
    "products": 26,
    "running_in_integers": 26,
    "operators": {"Add": 9, "MatMul": 8, "MatMulIntegerToFloat": 24, "QGemm": 2},
    "float_nodes": {"/scores": "both sides are activations", "/b": "returned to float: number 1"},
    "saturation": {
        "products": 26,
        "rows": 256,
        "largest_deviation": 0.00000123,
        "worst": "/a",
        "allowed": 0.001,
    },
    "product_check": {"checked": 29, "worst": {}},
    "largest_difference_between_products": 0.0,
}


def lines_of(quantization: dict[str, Any], **others: Any) -> list[str]:
    return quantization_lines(Findings.model_validate({"quantization": quantization, **others}))


def test_nothing_is_said_where_nothing_was_quantized() -> None:
    assert quantization_lines(Findings(parameters=7)) == []


def test_what_runs_and_how_exactly() -> None:
    first, second = lines_of(FOUND)
    assert "26 of 26 quantized products run in integers" in first
    assert "(24 MatMulIntegerToFloat, 2 QGemm); 2 nodes stay in float" in first
    assert "1.2e-06 of the largest" in second


def test_bits_of_the_file() -> None:
    _, bits, _ = lines_of({**FOUND, "weight_bits": {"/a": 4, "/b": 2, "/c": 2}})
    assert bits == (
        "weights of products in the file: 2 of 2 bits, 1 of 4 bits, the others of 8; they are "
        "multiplied in 8"
    )


def test_scores_and_the_sensitivity_table() -> None:
    table = {f"/{letter}": 1.0 / place for place, letter in enumerate("bacdefgh", start=1)}
    returned = {"/b": "returned to float: number 1"}
    sensitivity = {"by_node": table, "drops": [1.5, 0.1], "returned": returned}
    scores = {"chosen_on": "dev", "score_before": 0.91, "score": 0.9, "scores": {}}
    _, _, score, title, *rows = lines_of({**FOUND, "sensitivity": sensitivity}, scores=scores)
    assert score == "score 0.91 before, 0.9 now"
    assert title == "most sensitive parts:"
    assert [row.split()[1] for row in rows] == ["/b", "/a", "/c", "/d", "/e"]
    assert "(went back)" in rows[0] and "(went back)" not in rows[1]


def test_what_was_not_checked_is_not_claimed() -> None:
    found = {**FOUND, "target": "arm64", "running_in_integers": None, "saturation": None}
    (line,) = lines_of(found)
    assert "for arm64: 26 products quantized" in line and "was not checked" in line
    unproven = {**FOUND, "saturation": {"products": 0, "rows": 0, "allowed": 0.001}}
    assert len(lines_of(unproven)) == 1


def test_the_product_that_is_least_like_its_twin() -> None:
    worst = {"/a": {"kind": "8-bit", "figures": {"weights_snr_db": 31.23, "weights_gain": 1.0}}}
    found = {**FOUND, "product_check": {"checked": 29, "worst": worst}}
    *_, line = lines_of(found)
    assert "29 products and tables" in line
    assert "/a (weights snr db 31.23, weights gain 1)" in line


def test_what_was_tried_before() -> None:
    tried = [{"scheme": "dynamic", "refused": "it moved"}, {"scheme": "static", "skipped": "why"}]
    *_, first, second = lines_of({**FOUND, "tried": tried})
    assert first == "scheme dynamic was refused: it moved"
    assert second == "scheme static was skipped: why"


@pytest.mark.parametrize(
    ("chosen_on", "said"), [("selection", "judged by 40 validation texts"), ("dev", "")]
)
def test_where_a_drop_was_judged(chosen_on: str, said: str) -> None:
    choice = {"before": 0.95, "after": 0.94, "n": 40}
    scores = {
        "score_before": 0.91,
        "score": 0.9,
        "scores": {},
        "chosen_on": chosen_on,
        "choice": choice,
    }
    line = lines_of(FOUND, scores=scores)[2]
    assert line.startswith("score 0.91 before, 0.9 now")
    assert said in line and ("held-out, read once" in line) is bool(said)
