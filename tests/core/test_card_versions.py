"""Cards of earlier schemas: each figure of them is found again in the findings."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertender.core.card import CARD_NAME, SCHEMA_VERSION, Card, current_schema, read_card
from bertender.core.errors import NotAnArtifactError
from bertender.core.findings import Findings
from tests.front import WRITERS

CARDS = {path.stem: path for path in sorted((Path(__file__).parent / "cards").glob("*.json"))}
"""Written by schema 1, of tiny models."""


def metrics_of(name: str) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(CARDS[name].read_text())["metrics"]
    return metrics


def card_of(name: str, folder: Path) -> Card:
    shutil.copy(CARDS[name], folder / CARD_NAME)
    return read_card(folder)


def figures(value: Any) -> Iterator[Any]:
    """Yield every figure and word of plain values."""
    if isinstance(value, dict):
        for each in value.values():
            yield from figures(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from figures(each)
    elif value is not None:
        yield value


def test_every_stage_that_writes_an_artifact_has_a_stored_card() -> None:
    stages = {json.loads(path.read_text())["stage"] for path in CARDS.values()}
    assert stages == set(WRITERS)


@pytest.mark.parametrize("name", CARDS)
def test_no_figure_is_lost(name: str, tmp_path: Path) -> None:
    before, card = metrics_of(name), card_of(name, tmp_path)
    if before.get("earlier_losses") and isinstance(before["earlier_losses"], list):
        assert card.findings.training is not None
        assert card.findings.training.steps is None, "those of all phases were counted together"
        del before["steps"]
    lost = Counter(figures(before)) - Counter(figures(card.findings.model_dump(mode="json")))
    assert not lost


@pytest.mark.parametrize("name", CARDS)
def test_it_is_written_in_the_current_schema(name: str, tmp_path: Path) -> None:
    card = card_of(name, tmp_path)
    assert card.schema_version == SCHEMA_VERSION == 2
    (tmp_path / CARD_NAME).write_text(card.model_dump_json())
    assert read_card(tmp_path) == card


Part = Callable[[Findings], Any]
PARTS: dict[str, tuple[Part, str]] = {
    "baseline": (lambda found: found.parameters, "parameters"),
    "finetune": (lambda found: found.training.steps, "steps"),
    "finetune-apart": (lambda found: found.scores.score, "score"),
    "finetune-together": (
        lambda found: found.training.together["cola"].artifact,
        "together.cola.artifact",
    ),
    "finetune-tagger": (lambda found: found.training.epochs[-1], "epochs.-1"),
    "distill": (lambda found: found.training.augmented_texts, "augmented_texts"),
    "distill-tagger": (lambda found: found.training.losses[0], "losses.0"),
    "distill-general": (lambda found: found.training.epochs[-1], "epochs.-1"),
    "pretrain": (lambda found: found.training.steps, "steps"),
    "pretrain-lengths": (
        lambda found: found.training.earlier_phases[0].epochs[-1],
        "earlier_epochs.0.-1",
    ),
    "prune": (lambda found: found.pruning.rounds[-1].remaining_heads, "rounds.-1.heads_kept"),
    "prune-layers": (lambda found: found.pruning.layers, "layers"),
    "prune-latency": (lambda found: found.pruning.latency.table.rest_ms, "latency.table.rest_ms"),
    "export": (lambda found: found.parity.near_ties, "parity.near_ties"),
    "export-fused-float16": (lambda found: found.numbers.largest, "numbers.largest"),
    "quantize-dynamic": (
        lambda found: found.quantization.running_in_integers,
        "quantization.running_in_integers",
    ),
    "quantize-static": (
        lambda found: list(found.quantization.ranges.values()),
        "quantization.ranges.*",
    ),
    "quantize-mixed": (
        lambda found: found.quantization.sensitivity.drops,
        "quantization.drops",
    ),
    "quantize-four-bit": (
        lambda found: found.quantization.products_of_4_bits,
        "quantization.products_of_4_bits",
    ),
    "quantize-qat": (lambda found: found.training.losses[-1], "quantization.losses.-1"),
    "quantize-returned": (
        lambda found: found.quantization.sensitivity.returned,
        "quantization.returned",
    ),
    "quantize-skipped": (
        lambda found: found.quantization.tried[0].skipped,
        "quantization.tried.0.skipped",
    ),
    "quantize-tried": (
        lambda found: found.quantization.tried[0].refused,
        "quantization.tried.0.refused",
    ),
}
"""Card -> where a figure of it is now, and where it was."""


def at(values: Any, path: str) -> Any:
    for key in path.split("."):
        if key == "*":
            values = list(values.values())
        else:
            values = values[int(key) if isinstance(values, list) else key]
    return values


@pytest.mark.parametrize("name", CARDS)
def test_a_figure_of_each_stage_is_where_it_belongs(name: str, tmp_path: Path) -> None:
    part, path = PARTS[name]
    found = json.loads(json.dumps(part(card_of(name, tmp_path).findings)))
    assert found == at(metrics_of(name), path) is not None


def converted(**metrics: Any) -> Findings:
    return Findings.model_validate(current_schema({"metrics": metrics})["findings"])


def quantized(**changes: Any) -> dict[str, Any]:
    return {**metrics_of("quantize-dynamic")["quantization"], **changes}


def test_null_was_a_number_that_is_not_finite() -> None:
    numbers = {"place": "Add", "largest": None, "texts": 3}
    training = {"steps": 1, "losses": [], "epochs": [{"loss": 2.0, "perplexity": None}]}
    findings = converted(numbers=numbers, **training)
    assert findings.numbers is not None and findings.numbers.largest == math.inf
    assert findings.training is not None and math.isnan(findings.training.epochs[0]["perplexity"])


def test_before_texts_were_set_apart_the_held_out_ones_chose() -> None:
    findings = converted(quantization=quantized(score=0.5, score_before=0.75))
    assert findings.scores is not None
    assert (findings.scores.chosen_on, findings.scores.choice) == ("dev", None)


def test_logits_that_were_compared_say_nothing_of_sums() -> None:
    """The earliest cards say so of saturation."""
    logits = {"products": 20, "texts": 64, "mean_difference": 1e-7, "max_difference": 1e-6}
    findings = converted(quantization=quantized(saturation=logits))
    assert findings.quantization is not None and findings.quantization.saturation is None


def test_what_is_not_known_any_more_is_left_out() -> None:
    assert converted(parameters=7, colour="red") == Findings(parameters=7)


@pytest.mark.parametrize("version", [0, 3, "1", None, [1], 1.5])
def test_another_schema_is_refused_with_those_that_are_known(version: Any) -> None:
    with pytest.raises(NotAnArtifactError, match=r"schema_version is .* reads 1, 2\. Install"):
        current_schema({"schema_version": version})
