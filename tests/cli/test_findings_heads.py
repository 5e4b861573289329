"""What is said of a pruning."""

from __future__ import annotations

from typing import Any

from bertender.cli.findings import head_map, pruning_lines
from bertender.core.findings import Findings

ROUND: dict[str, Any] = {
    "heads": [2, 1],
    "neurons": [4, 4],
    "score": 0.875,
    "score_after_cut": 0.5,
    "head_importance": [[0.0, 0.5, 1.0], [0.25, 0.75, 0.125]],
}
READINGS = {
    name: {"entries": entries, "pieces_per_text": 20.5, "unknown": 0.0}
    for name, entries in (("before", 900), ("after", 300))
} | {"whole_words": 0.95}


def lines_of(pruning: dict[str, Any], **others: Any) -> list[str]:
    return pruning_lines(Findings.model_validate({"pruning": pruning, **others}))


def test_a_head_is_as_high_as_its_score() -> None:
    assert head_map(ROUND["head_importance"]) == [" 0  ▄█", " 1 ▂▆▁"]
    assert head_map([[0.0, 0.0]]) == [" 0   "]


def test_the_lines_say_what_is_left_and_what_it_scores() -> None:
    later = {**ROUND, "heads": [1, 1], "score": 0.75}
    first, second, third, *rest = lines_of(
        {"unpruned": 0.9, "rounds": [ROUND, later], "vocabulary": READINGS}
    )
    assert first == "score 0.75, 0.5 before recovery, 0.9 unpruned"
    assert second == "heads by layer: 1, 1; neurons: 4, 4"
    assert third.startswith(
        "vocabulary: 300 of 900 tokens; 95.0% of the words of held-out texts stay whole; these "
        "have 20.5 tokens (20.5"
    )
    assert len(rest) == 3, "a map of the first round's scores"


def test_a_target_is_told_beside_what_was_reached() -> None:
    speed: dict[str, Any] = {
        "target": 2.0,
        "predicted": 2.01,
        "measured": {"value": 1.92, "low": 1.9, "high": 1.95},
        "table": {
            "load": {"texts": 1, "tokens": 26, "threads": 2},
            "cpu_model": "made up",
            "attention": [],
            "feed_forward": [],
            "rest_ms": [],
            "machine_load": {"other_work": 0.0, "steal": 0.0},
        },
    }
    lines = lines_of({"unpruned": 0.9, "rounds": [ROUND], "latency": speed})
    assert lines[2].startswith(
        "1.92x as fast as unpruned [1.90, 1.95], 2.01x foretold, 2x asked for; texts in a batch: 1"
    )
    assert lines[2].endswith("on the CPU")
    for other_work, ending in ((0.01, "on the CPU"), (0.4, "while the parts were timed")):
        speed["table"]["machine_load"] = {"other_work": other_work, "steal": 0.0}
        lines = lines_of({"unpruned": 0.9, "rounds": [ROUND], "latency": speed})
        assert lines[2].endswith(ending)


def test_other_artifacts_and_plain_vocabularies_have_fewer_lines() -> None:
    assert pruning_lines(Findings(parameters=7)) == []
    only = {"unpruned": 0.9, "rounds": [{**ROUND, "head_importance": None}]}
    assert len(lines_of(only)) == 2


def test_scores_apart_are_told_beside_the_held_out_ones() -> None:
    apart = {"chosen_on": "selection", "score": 0.7, "score_before": 0.8, "scores": {}}
    pruning = {"unpruned": 0.9, "rounds": [ROUND]}
    first, *_ = lines_of(pruning, scores=apart)
    assert first.endswith(
        "0.9 unpruned, on validation texts; held-out, read once: 0.7, 0.8 unpruned"
    )
    same = {**apart, "chosen_on": "dev"}
    assert lines_of(pruning, scores=same)[0].endswith("0.9 unpruned")
