"""Drift: tests of two samples by hand, and texts that a model was not trained for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from bertender.comparison.drift import (
    Drift,
    DriftConfig,
    Observed,
    _labels_of,
    compared,
    drift,
    drift_lines,
    of_labels,
    of_numbers,
    require_no_drift,
)
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, DriftError
from bertender.tasks.task import Split, Task, TaskConfig
from tests.front import fail, invoke
from tests.toy_heads import JOINT, RATED
from tests.toy_kinds import TASKS
from tests.toy_tagging import TASK as TAGGING
from tests.toys import choice_task, toy_task

PLAIN = DriftConfig()


def one_each(**counts: int) -> list[tuple[str]]:
    """Texts with one label, given how many have each."""
    return [(label,) for label, count in counts.items() for _ in range(count)]


def test_effects_by_hand() -> None:
    """Of four numbers two are above all others: half of them would have to change."""
    then, now = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 9.0, 9.0])
    assert of_numbers(then, now)[0] == 0.5
    effect, p = of_labels(one_each(a=60, b=40), one_each(a=30, b=70))
    assert effect == pytest.approx(0.3)
    assert p == pytest.approx(chi2_contingency([[60, 40], [30, 70]]).pvalue)
    assert of_labels(one_each(a=9), one_each(a=5)) == (0.0, 1.0)
    # a label that is new
    assert of_labels(one_each(a=50), one_each(a=25, b=25))[0] == pytest.approx(0.5)


def test_several_labels_of_a_text_are_one_observation() -> None:
    """Five labels that only occur together have the p of one, and words of a sentence no less."""
    then, now = one_each(a=60, b=40, c=20), one_each(a=40, b=60, c=20)
    _, p = of_labels(then, now)
    for sides in (
        [[tuple(label + part for part in "12345") for (label,) in own] for own in (then, now)],
        [[own * 20 for own in side] for side in (then, now)],
    ):
        assert of_labels(*sides)[1] == pytest.approx(p)
    same = [("a", "b")] * 60
    assert of_labels(same, same) == (0.0, 1.0)


def test_differences_of_a_batch_are_none_by_hand() -> None:
    """Nearly all texts are sure: noise of the batch would order them anew."""
    generator = np.random.default_rng(0)
    sure = 1 - generator.random(400) * 1e-4
    noisy = sure - 2e-4
    assert of_numbers(sure, noisy)[0] == 1.0
    assert of_numbers(sure, noisy, same=1e-3) == (0.0, 1.0)
    then, now = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1005, 0.2, 0.9, 0.9])
    for one, other in ((then, now), (now, then)):
        assert of_numbers(one, other, same=1e-3)[0] == 0.5
    shifted = of_numbers(sure, sure - 0.3, same=1e-3)
    assert shifted[0] == 1.0 and shifted[1] < 1e-9


def of_confidence(then: np.ndarray, now: np.ndarray) -> Drift:
    sides = [Observed({"confidence": each}, {}) for each in (then, now)]
    return compared(*sides, PLAIN, artifact="a", file="f", reference="r", texts=(1, 1))


def test_an_alarm_needs_an_effect_and_more_than_chance() -> None:
    generator = np.random.default_rng(0)
    many, few = (generator.random(size) for size in (200_000, 20))
    shifted = of_confidence(many, generator.random(200_000) + 0.02)
    assert shifted.measures[0].p < 1e-9 and not shifted.drifted, "many texts, a small effect"
    chance = of_confidence(few, generator.random(20) + 0.1)
    assert chance.measures[0].effect > PLAIN.max_effect and not chance.drifted, "few texts"
    assert of_confidence(many, many + 0.2).drifted == ("confidence",)
    with pytest.raises(DriftError, match=r"f is not like r: confidence differ by more than 0\.1"):
        require_no_drift(of_confidence(many, many + 0.2))


def test_each_test_has_its_part_of_the_chance() -> None:
    numbers = {"confidence": np.ones(5), "tokens of a text": np.ones(5)}
    side = Observed(numbers, {"predicted labels": one_each(a=5, b=5)})
    found = compared(side, side, PLAIN, artifact="a", file="f", reference="r", texts=(5, 5))
    assert found.max_p == pytest.approx(0.01 / 3)
    assert [each.name for each in found.measures][-1] == "predicted labels"


def words_alone(train_size: int, dev_size: int) -> Task:
    """The toy task without the numbers of its texts, which are others in each split."""
    task = toy_task(train_size, dev_size)

    def bare(split: Split) -> Split:
        return replace(split, examples=tuple((each.split(" number")[0],) for each in split.texts()))

    return replace(task, train=bare(task.train), dev=bare(task.dev))


def file_of(folder: Path, split: Split, name: str = "recent.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(["text", *split.texts()]), encoding="utf-8")
    return path


def test_texts_of_the_same_kind_have_not_drifted(trained: Artifact, tmp_path: Path) -> None:
    task = words_alone(240, 150)
    half = replace(task, dev=task.dev.first(75))
    found = drift(trained, file_of(tmp_path, task.dev.after(75)), PLAIN, half)
    assert not found.drifted and found.reference.startswith("the held-out texts")
    names = [each.name for each in found.measures]
    assert names == [
        "confidence",
        "tokens of a text",
        "share of unknown or rare tokens",
        "predicted labels",
    ]
    labels = found.measures[-1].reference
    assert isinstance(labels, dict) and set(labels) == {"fruit", "tool"}
    apart = replace(half, selection=half.dev)
    again = drift(trained, file_of(tmp_path, task.dev.after(75)), PLAIN, apart)
    assert again.reference.startswith("the validation texts") and again.measures == found.measures


def test_other_texts_have(trained: Artifact, tmp_path: Path) -> None:
    task = words_alone(240, 75)
    long = Split(tuple((f"{text} ✂ saw saw saw saw",) for text in task.dev.texts()), ())
    found = drift(trained, file_of(tmp_path, long), PLAIN, task)
    assert {"tokens of a text", "share of unknown or rare tokens"} <= set(found.drifted)
    assert any("DRIFT" in line for line in drift_lines(found))


def test_a_file_can_be_the_reference(trained: Artifact, tmp_path: Path) -> None:
    task = words_alone(240, 120)
    reference = file_of(tmp_path, task.train, "then.csv")
    recent = file_of(tmp_path, task.dev)
    words = ("drift", trained.path, recent, "--reference", reference, "--json")
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    found = Drift.model_validate_json(result.stdout.splitlines()[-1])
    assert (found.reference_texts, found.recent_texts) == (120, 120)
    tools = Split(tuple(("hammer saw",) for _ in range(60)), ())
    other = invoke(*words[:2], file_of(tmp_path, tools, "tools.csv"), *words[3:])
    assert other.exit_code == 1
    shares = {each["name"]: each for each in json.loads(other.stdout.splitlines()[-1])["measures"]}
    assert shares["predicted labels"]["drifted"] and "is not like" in other.stderr


def test_the_columns_that_are_named_are_read(
    trained: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the file has the model's own column besides."""
    split = words_alone(240, 120).dev
    plain, named = tmp_path / "plain.csv", tmp_path / "named.csv"
    plain.write_text("\n".join(["text", *split.texts()]))
    named.write_text("\n".join(["text,body", *(f"saw,{text}" for text in split.texts())]))
    words = ("--reference", plain, "--json")
    found = Drift.model_validate_json(invoke("drift", trained.path, plain, *words).stdout)
    words = ("--reference", named, "--text-column", "body", "--json")
    by_name = Drift.model_validate_json(invoke("drift", trained.path, named, *words).stdout)
    assert by_name.measures == found.measures
    pairs = TaskConfig.parse({"text_column": "body", "pair_column": "text"})
    both = drift(trained, named, DriftConfig(reference=named), reading=pairs)
    tokens = both.measures[1].reference
    assert isinstance(tokens, float) and tokens > float(found.measures[1].reference)  # type: ignore[arg-type]
    bad = tmp_path / "bad.csv"
    bad.write_text(named.read_text() + "\nsaw,hammer,more\n")
    with pytest.raises(DataError, match="3 fields where there are 2 columns"):
        drift(trained, bad, DriftConfig(reference=named))
    skips = TaskConfig.parse({"text_column": "body", "skip_bad_rows": True})
    skipping = drift(trained, bad, DriftConfig(reference=named), reading=skips)
    assert skipping.recent_texts == 120
    assert skipping.left_out is not None and skipping.left_out.count == 1
    assert "1 bad rows are left out" in caplog.text


def test_columns_are_of_the_file_and_not_of_the_models_own(
    trained: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, Any]] = []
    task = words_alone(240, 75)

    def task_of(artifacts: Sequence[Artifact], settings: Mapping[str, Any]) -> Task:
        asked.append(settings)
        return task

    monkeypatch.setattr("bertender.api.task_of", task_of)
    recent = tmp_path / "recent.csv"
    recent.write_text("\n".join(["body", *task.dev.texts()]))
    column = ("--text-column", "body")
    invoke("drift", trained.path, recent, *column)
    invoke("drift", trained.path, recent, *column, "--dev", recent)
    assert asked == [{}, {"text_column": "body", "dev": recent}]


def test_a_reference_takes_no_other_data(trained: Artifact, tmp_path: Path) -> None:
    recent = file_of(tmp_path, toy_task().train)
    words = ("drift", trained.path, recent, "--reference", recent, "--dev", recent)
    assert "reads no task, so it takes no dev" in fail(*words)


def test_what_is_missing_is_asked_for(trained: Artifact, tmp_path: Path) -> None:
    recent = file_of(tmp_path, toy_task().train)
    assert "--reference FILE" in fail("drift", trained.path, recent)
    few = file_of(tmp_path, toy_task().train.first(9), "few.csv")
    with pytest.raises(DataError, match=r"9 texts of .*few.csv are too few"):
        drift(trained, few, DriftConfig(reference=recent))
    with pytest.raises(DataError, match="nowhere"):
        drift(trained, tmp_path / "nowhere.csv", DriftConfig(reference=recent))


LABELS = {"confidence", "predicted labels"}
PREDICTED = {
    "token_classification": LABELS,
    "multi_label_classification": LABELS,
    "multiple_choice": LABELS,
    "regression": {"predicted number"},
    "ranking": set[str](),
    JOINT.problem_type: {"confidence", *(f"predicted labels of {x}" for x in ("intent", "slots"))},
    RATED.problem_type: {"confidence", "predicted labels of length", "predicted number of stars"},
}


@pytest.mark.parametrize("kind", PREDICTED)
def test_other_kinds_have_what_they_predict(kind: str, tmp_path: Path) -> None:
    from tests.comparison.test_calibration import sure_model
    from tests.toy_kinds import write_asked

    task: Task = TASKS[kind]
    artifact = sure_model(task, tmp_path / "model")
    examples = task.problem.asked(task.train.examples)
    path = write_asked(task, examples, tmp_path)
    found = drift(artifact, path, DriftConfig(reference=path))
    assert not found.drifted
    names = {each.name for each in found.measures}
    assert names == {"tokens of a text", "share of unknown or rare tokens"} | PREDICTED[kind]


def test_a_question_may_have_more_choices_than_the_model_knows(tmp_path: Path) -> None:
    """A finished model records the first one alone."""
    from tests.comparison.test_calibration import sure_model

    task = choice_task()
    alone = replace(task, labels=task.labels[:1], text_columns=("question", "choices"))
    artifact = sure_model(alone, tmp_path / "model")
    path = tmp_path / "asked.jsonl"
    rows = [{"question": first, "choices": more} for first, *more in task.train.examples]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = drift(artifact, path, DriftConfig(reference=path))
    shares = found.measures[-1].reference
    assert isinstance(shares, dict) and {*shares} == {"0", "1", "2"}


def test_words_outside_of_entities_hide_no_change() -> None:
    """Of ten words one is in an entity: its kind is another now, in every text."""
    tags = ("O", "B-fruit", "B-tool")
    texts = [(0,) * 9 + (1,), (0,) * 9 + (2,)]
    then, now = ([_labels_of(TAGGING.problem, tags, text)] * 60 for text in texts)
    assert of_labels(then, now)[0] == 1.0
    assert _labels_of(TAGGING.problem, tags, (0, 0)) == ("none",)


def test_the_texts_of_vectors_are_compared_with_those_of_their_column(
    teacher_of: Callable[[str], Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions are short, and answers long: neither is like both together."""
    words = [f"apple {'pear ' * (row % 3)}" for row in range(240)]
    pairs = tuple((text.strip(), f"{text}saw saw hammer drill") for text in words)
    split, columns = Split(pairs, (math.inf,) * len(pairs)), ("question", "answer")
    kind = "sentence_embedding"
    task = replace(TASKS[kind], text_columns=columns, train=split, dev=split)
    artifact = teacher_of(kind)
    record = artifact.card.task.model_copy(update={"text_columns": columns})
    artifact = replace(artifact, card=artifact.card.model_copy(update={"task": record}))
    path = tmp_path / "recent.csv"
    path.write_text("\n".join(["question,answer", *map(",".join, pairs)]), encoding="utf-8")
    for column, settings in {"question": {}, "answer": {"text_column": "answer"}}.items():
        found = drift(artifact, path, PLAIN, task, TaskConfig.parse(settings))
        assert not found.drifted and all(each.effect == 0 for each in found.measures)
        assert found.reference.startswith(f"column '{column}' of the held-out texts")
    both = TaskConfig.parse({"pair_column": "answer"})
    with pytest.raises(ConfigError, match=r"Leave --pair-column out"):
        drift(artifact, path, PLAIN, task, both)
    monkeypatch.setattr("bertender.api.task_of", lambda artifacts, settings: task)
    named = ("--text-column", "question", "--pair-column", "answer", "--dev", path)
    assert invoke("drift", artifact.path, path, *named).exit_code == 0, "pairs of --dev"


def test_a_task_is_one_of_the_models_kind(trained: Artifact, tmp_path: Path) -> None:
    recent = file_of(tmp_path, words_alone(240, 75).dev)
    with pytest.raises(ConfigError, match="is one of 'regression'"):
        drift(trained, recent, PLAIN, TASKS["regression"])
