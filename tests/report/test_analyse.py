"""Analyses of tiny models: what masking and attention read, in every family and kind of problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.families import FAMILIES
from bertender.models.own_models import heads_of
from bertender.report.analyse import (
    analyse,
    each_text,
    gates,
    masking,
    open_model,
    punctuation_of,
)
from bertender.report.analyses import (
    PICTURES,
    AnalyseConfig,
    analysis_lines,
    check_folder,
    figures_of,
    read_analysis,
    save_analysis,
)
from bertender.report.attention import PATTERNS
from bertender.tasks.task import Split, Task
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import number_task, pair_task, set_task, toy_task

ATTENTION = AnalyseConfig(only=("attention", "similarity"), texts=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_its_attention_and_states(family: str, tmp_path: Path) -> None:
    task = toy_task(8, 8)
    artifact = save_artifact(tiny_classifier(family), task, tmp_path / "model")
    opened = open_model(artifact, task, ATTENTION)
    config = opened.model.config
    for text in each_text(opened, "test", attention=True):
        assert [len(maps) for maps in text.attention] == heads_of(config)
        for maps in text.attention:
            assert maps.shape[1:] == (len(text.ids),) * 2
            assert np.allclose(maps.sum(axis=-1), 1, atol=1e-5), "padding has none"
    states = next(each_text(opened, "test", attention=False))
    assert states.states.shape[:2] == (config.num_hidden_layers + 1, len(states.ids))


def test_a_closed_gate_is_a_masked_head() -> None:
    one, others = gates([2, 3], 1, 0, 0.0), gates([2, 3], 1, 0, 1.0)
    assert [each.tolist() for each in one] == [[1, 1], [0, 1, 1]]
    assert [each.tolist() for each in others] == [[1, 1], [1, 0, 0]]


def test_masking_reads_what_the_model_scores(tmp_path: Path) -> None:
    task = number_task(8, 24)
    artifact = save_artifact(tiny_classifier("bert", 1), task, tmp_path / "model")
    opened = open_model(artifact, task, AnalyseConfig(texts=24))
    found = masking(opened)
    counts = heads_of(opened.model.config)
    assert [len(layer) for layer in found.without] == counts == [len(x) for x in found.alone]
    for scores in (found.without, found.alone):
        assert {each for layer in scores for each in layer} != {found.score}
    # where heads write nothing, no mask changes anything
    for name, weight in opened.model.named_parameters():
        if name.endswith("attention.output.dense.weight"):
            torch.nn.init.zeros_(weight)
    silent = masking(opened)
    assert {each for layer in (*silent.without, *silent.alone) for each in layer} == {silent.score}


def test_an_undefined_score_is_no_zero(trained: Artifact, task: Task) -> None:
    """Of texts that all have one label, and get one, Matthews' coefficient says nothing."""
    example = task.dev.examples[0]
    dev = Split((example,) * 8, (task.dev.label_ids[0],) * 8)
    same = replace(task, metric="matthews", dev=dev)
    found = analyse(trained, same, AnalyseConfig(only=("masking",), texts=8))
    assert found.masking is not None and found.masking.score is None
    assert any("matthews is undefined" in line for line in analysis_lines(found))
    assert figures_of(found) == {}


def test_an_analysis_is_saved_and_shown(trained: Artifact, task: Task, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    found = analyse(trained, task, AnalyseConfig(texts=32))
    assert found.importance and found.masking and found.attention and found.similarity
    for layer in found.attention:
        for head in layer:
            assert sum(head.patterns.values()) == pytest.approx(1, abs=1e-3)
            assert set(head.patterns) == {*PATTERNS}
            assert set(head.on) == {"[CLS]", "[SEP]", "punctuation"}
            assert 0 < head.on["[CLS]"] < 1 and head.on["punctuation"] == 0
    names = save_analysis(found, tmp_path / "analysis")
    assert names == [
        "analysis.json",
        *("importance.svg", "without-one.svg", "one-alone.svg", "patterns.svg"),
        *("attention-on.svg", "similarity.svg"),
    ]
    assert read_analysis(tmp_path / "analysis") == found
    assert (*figures_of(found),) == PICTURES


def test_a_folder_that_was_filled_in_part_is_filled_again(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, found = tmp_path / "analysis", analyse(trained, task, ATTENTION)

    def full(text: str, path: Path) -> None:
        path.write_text("")
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("bertender.report.analyses.charts.svg", lambda spec: "<svg/>")
    monkeypatch.setattr("bertender.report.analyses.save_text", full)
    with pytest.raises(OSError, match="No space left"):
        save_analysis(found, out)
    check_folder(out)
    (out / "analysis.json").rename(out / ".analysis.json.draft-1-a")
    with pytest.raises(ConfigError, match="other files than an analysis"):
        check_folder(out)
    (out / "patterns.svg").unlink()
    check_folder(out)


@pytest.mark.parametrize("make", [number_task, set_task, pair_task])
def test_other_kinds_of_problems_are_analysed(
    make: Callable[[int, int], Task], tmp_path: Path
) -> None:
    task = make(16, 12)
    model = tiny_classifier("bert", len(task.labels), problem_type=task.problem_type)
    artifact = save_artifact(model, task, tmp_path / "model")
    found = analyse(artifact, task, AnalyseConfig(texts=12))
    assert found.masking is not None and found.masking.metric == task.metric
    assert found.importance is not None and len(found.importance) == model.config.num_hidden_layers
    assert found.texts == 12


def test_only_what_is_asked_for_is_computed(trained: Artifact, task: Task) -> None:
    found = analyse(trained, task, AnalyseConfig(only=("importance",), texts=8))
    assert found.importance is not None
    assert (found.masking, found.attention, found.similarity) == (None, None, None)


def test_labels_are_matched_by_name(trained: Artifact, task: Task) -> None:
    config = AnalyseConfig(only=("importance", "masking"), texts=8)
    labels = [1 - each for each in task.dev.label_ids]
    other = replace(task, labels=task.labels[::-1], dev=replace(task.dev, label_ids=tuple(labels)))
    found, again = (analyse(trained, each, config) for each in (task, other))
    assert found == again
    named = replace(task, labels=("a", "b"))
    with pytest.raises(ConfigError, match=r"predicts .* the labels of task 'toy' are 'a', 'b'"):
        analyse(trained, named, config)


def test_a_graph_is_refused(exported: Artifact, task: Task) -> None:
    with pytest.raises(ModelError, match="only PyTorch models are analysed"):
        analyse(exported, task, ATTENTION)


def test_punctuation_of_a_vocabulary_has_no_special_token(trained: Artifact, task: Task) -> None:
    tokenizer = open_model(trained, task, ATTENTION).tokenizer
    marked = replace_tokens(tokenizer)
    assert {tokenizer.convert_ids_to_tokens(each) for each in punctuation_of(tokenizer)} == marked


def replace_tokens(tokenizer: object) -> set[str]:
    """The tokens of the toy vocabulary that have no letter and no digit, special ones left out."""
    vocabulary = tokenizer.get_vocab()  # type: ignore[attr-defined]
    return {token for token in vocabulary if not any(each.isalnum() for each in token)}
