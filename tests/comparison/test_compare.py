"""Comparing real artifacts of each kind that needs no export: torch, and the bag of words."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertender.comparison.accuracy import constant_row, evaluate
from bertender.comparison.averages import averages
from bertender.comparison.compare import compare, texts_chosen_on
from bertender.comparison.latency import TimedModel
from bertender.comparison.records import CompareConfig, Comparison
from bertender.comparison.rows import row_names
from bertender.comparison.table import comparison_lines, markdown_table
from bertender.core import machine as load
from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ConfigError, MachineBusyError, ModelError
from bertender.core.findings import Findings
from bertender.core.machine import CpuSeconds, MachineLoad, environment
from bertender.gate.judge import TOLERANCES, check_parity
from bertender.models.classifier import Classifier, open_classifier
from bertender.problems.problem import most_frequent
from bertender.tasks.loading import load_task
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task, TaskConfig
from tests.toy_heads import JOINT
from tests.toy_kinds import TASKS as TASKS_OF_KINDS
from tests.toy_models import save_artifact, tiny_classifier, with_turned_labels
from tests.toys import FRUIT, TOOLS, NoConfig, ToyNamedTask, new_toy

CONFIG = CompareConfig(
    single_texts=3, batch_size=4, processes=1, rounds=2, warmup_rounds=0, warmup_texts=0, threads=1
)

NOISY = CONFIG.model_copy(update={"noisy": True})


def copy_of(artifact: Artifact, out: Path, findings: Findings | None = None) -> Artifact:
    """Another artifact of the same files."""
    card = artifact.card
    with new_artifact(
        out,
        kind=card.kind,
        family=card.family,
        task=card.task,
        stage="distill",
        config=NoConfig(),
        seed=5,
        parent=artifact,
    ) as draft:
        for name in card.files:
            shutil.copy(artifact.path / name, draft.directory / name)
        draft.findings = findings or Findings()
    return Artifact.load(out)


@pytest.fixture(scope="module")
def bag_of_words(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Artifact:
    """A bag of words that knows the toy classes' words, so it is right everywhere."""
    words = [*FRUIT, *TOOLS]
    weights = np.array([[1.0] * len(FRUIT) + [-1.0] * len(TOOLS)])
    out = tmp_path_factory.mktemp("artifacts") / "bag"
    with new_toy(
        out, kind="bag-of-words", family="tfidf", task=task.record(), stage="baseline"
    ) as draft:
        vocabulary = {word: index for index, word in enumerate(words)}
        settings = {"vocabulary": vocabulary, "ngram_range": [1, 1], "sublinear_tf": True}
        (draft.directory / "vocabulary.json").write_text(json.dumps(settings))
        save_file(
            {
                "idf": np.ones(len(words)),
                "coefficients": np.concatenate([weights, -weights]),
                "intercepts": np.zeros(2),
            },
            draft.directory / "model.safetensors",
        )
        draft.findings = Findings(parameters=2 * len(words) + 2)
    return Artifact.load(out)


@pytest.fixture(scope="module")
def comparison(
    teacher: Artifact, bag_of_words: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Comparison:
    classifier = open_classifier(teacher, threads=1)
    parity = check_parity(classifier, classifier, task.dev.examples[:4], TOLERANCES["float32"])
    out = tmp_path_factory.mktemp("artifacts") / "student"
    student = copy_of(teacher, out, Findings(parity=parity.summary()))
    return compare([teacher, student, bag_of_words], task, CONFIG)


def test_every_kind_is_a_row_like_others(comparison: Comparison, task: Task) -> None:
    assert [row.name for row in comparison.rows] == ["teacher", "student", "bag"]
    assert [row.kind for row in comparison.rows] == ["torch", "torch", "bag-of-words"]
    for row in comparison.rows:
        assert row.score.n == len(task.dev) and row.score.metric == "accuracy"
        assert row.size.parameters > 0 and row.size.model_size_bytes > 0
        assert len(row.latency.single_ms[0]) == CONFIG.rounds and row.latency.name == row.name
    assert comparison.rows[2].score.value == 1.0
    assert comparison.rows[2].size.parameters == 2 * 12 + 2


def test_scores_are_those_of_evaluate(
    comparison: Comparison, teacher: Artifact, task: Task
) -> None:
    score, _ = evaluate(open_classifier(teacher, threads=1), task.dev, task.metric)
    assert comparison.rows[0].score == score


def test_changes_are_against_the_first_row(comparison: Comparison) -> None:
    first, copy, bag = comparison.rows
    assert first.change is None and copy.change is not None and bag.change is not None
    assert (copy.change.value, copy.change.low, copy.change.high) == (0.0, 0.0, 0.0)
    assert bag.change.value == pytest.approx(100 * (1.0 - first.score.value))
    assert bag.change.low > 0


def test_without_a_score_there_is_no_change(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    """F1 is of the second label, which no text has: a change of 0 would be a finding."""
    fruit = task.dev.where([label == 0 for label in task.dev.label_ids])
    other = copy_of(teacher, tmp_path / "copy")
    found = compare([teacher, other], replace(task, metric="f1", dev=fruit), NOISY)
    assert all(row.score.undefined and row.change is None for row in found.rows)


def test_parity_comes_from_the_card_and_is_missing_where_none_was_measured(
    comparison: Comparison,
) -> None:
    first, copy, bag = comparison.rows
    assert first.parity is None and bag.parity is None
    assert copy.parity is not None and copy.parity.passed
    assert copy.parity.texts == 4 + 2 * 4  # and as many of one word, and over-long ones


@pytest.fixture
def with_another(task: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose models are scored on the texts of another one too."""
    monkeypatch.setitem(TASKS, "toy", replace(ToyNamedTask.of(task), scored_too=("toy-other",)))
    other = replace(task, dev=task.dev.first(9))
    monkeypatch.setitem(TASKS, "toy-other", ToyNamedTask.of(other))
    return replace(task, source={"task": "toy"})


@pytest.mark.parametrize("scores", ["all_scores", "score_by"])
def test_a_score_fails_before_anything_is_timed(
    scores: str, teacher: Artifact, with_another: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise ModelError("no score")

    def timed(*given: object) -> None:
        pytest.fail("timed")

    monkeypatch.setattr(f"bertender.comparison.rows.{scores}", fails)
    monkeypatch.setattr("bertender.comparison.compare.measure_models", timed)
    with pytest.raises(ModelError, match="no score"):
        compare([teacher], with_another, CONFIG)


def test_models_are_scored_on_the_texts_of_further_tasks(
    teacher: Artifact, with_another: Task
) -> None:
    found = compare([teacher], with_another, CONFIG)
    other, metric = with_another.dev.first(9), with_another.metric
    score, _ = evaluate(open_classifier(teacher, threads=1), other, metric)
    assert found.rows[0].further == {"toy-other": score}
    table = markdown_table(found)
    assert "toy-other accuracy" in table
    assert "`toy-other`: the same models on the 9 held-out texts of that task" in table
    (row,) = averages({"toy": found, "third": found.model_copy()}).rows
    assert [*row.scores] == ["toy", "toy-other", "third"]
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_the_comparison_says_where_its_rows_were_chosen(comparison: Comparison) -> None:
    assert comparison.circumstances.chosen_on == (), "the toys do not record it"


@pytest.mark.parametrize(
    ("shares", "chosen_on"),
    [
        ((0.1, 0.2), ("selection",)),
        ((0.0, None), ("dev",)),
        ((0.1, 0.0), ("dev", "selection")),
        ((0.1, None), ("selection",)),
        ((None, None), ()),
    ],
)
def test_where_settings_were_chosen_is_in_the_cards(
    teacher: Artifact, shares: tuple[float | None, ...], chosen_on: tuple[str, ...]
) -> None:
    sources = [{} if share is None else {"select": share} for share in shares]
    tasks = [teacher.card.task.model_copy(update={"source": source}) for source in sources]
    cards = [teacher.card.model_copy(update={"task": task}) for task in tasks]
    assert texts_chosen_on([replace(teacher, card=card) for card in cards]) == chosen_on


def test_conditions_are_complete(comparison: Comparison, task: Task) -> None:
    conditions = comparison.circumstances
    assert conditions.environment == environment()
    assert datetime.fromisoformat(conditions.measured_at).tzinfo == UTC
    assert (conditions.threads, conditions.batch_texts) == (1, 4)
    assert (conditions.task, conditions.n) == ("toy", len(task.dev))
    assert conditions.task_fingerprint == task.fingerprint()
    assert conditions.load == MachineLoad(other_work=None, steal=None), "hidden from tests"
    lengths = conditions.lengths
    words = [len(text.split()) for (text,) in task.dev.examples]
    assert (lengths.mean_words, lengths.max_words) == (np.mean(words), max(words))
    assert lengths.mean_tokens is not None and lengths.mean_tokens > lengths.mean_words


def test_a_first_row_that_reads_words_has_no_token_lengths(
    bag_of_words: Artifact, task: Task
) -> None:
    lengths = compare([bag_of_words], task, CONFIG).circumstances.lengths
    assert lengths.mean_tokens is None and lengths.max_tokens is None


def test_each_model_is_closed_before_the_next_one_is_opened(
    teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ReferenceType[object]] = []
    open_model = TimedModel.open

    def opens(model: TimedModel, threads: int, max_length: int | None) -> Classifier:
        assert not any(predictor() for predictor in opened)
        classifier = open_model(model, threads, max_length)
        opened.append(weakref.ref(classifier.predictor))
        return classifier

    def no_times(models: Sequence[TimedModel], *given: object) -> None:
        assert len(opened) == len(models) and not any(predictor() for predictor in opened)
        raise InterruptedError

    monkeypatch.setattr(TimedModel, "open", opens)
    monkeypatch.setattr("bertender.comparison.compare.measure_models", no_times)
    with pytest.raises(InterruptedError):
        compare([teacher, teacher], task, CONFIG)


def test_json_keeps_everything(comparison: Comparison) -> None:
    text = comparison.model_dump_json()
    assert Comparison.model_validate_json(text) == comparison
    assert len(json.loads(text)["rows"][0]["latency"]["single_ms"][0][0]) == CONFIG.single_texts


def test_names_that_repeat_carry_their_folders(teacher: Artifact, tmp_path: Path) -> None:
    twins = [copy_of(teacher, tmp_path / folder / "model") for folder in ("seed-1", "seed-2")]
    assert row_names([teacher, *twins]) == ["teacher", "seed-1/model", "seed-2/model"]


def test_no_two_rows_have_one_name(teacher: Artifact, tmp_path: Path) -> None:
    """Consumers of a table look its rows up by name."""

    def at(*parts: str) -> Artifact:
        return replace(teacher, path=tmp_path.joinpath(*parts))

    runs = [at("a", "seed-1", "model"), at("b", "seed-1", "model"), at("b", "seed-2", "model")]
    names = ["a/seed-1/model", "b/seed-1/model", "seed-2/model"]
    assert row_names([*runs, runs[0]]) == [*names, "a/seed-1/model (2)"]
    nested = [at("model"), at("x", tmp_path.name, "model")]
    first, second = row_names(nested)
    assert first.endswith(f"/{tmp_path.name}/model") and second == f"x/{tmp_path.name}/model"


def test_nothing_to_compare_is_an_error(task: Task) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        compare([], task, CONFIG)


def test_artifacts_of_another_task_are_named(teacher: Artifact, task: Task) -> None:
    other = Task("other", ("a", "b"), "accuracy", ("text",), task.train, task.dev)
    with pytest.raises(ModelError, match=r"labels \('a', 'b'\).*teacher has"):
        compare([teacher], other, CONFIG)


def test_every_artifact_reads_as_many_texts_as_there_are(teacher: Artifact, task: Task) -> None:
    record = teacher.card.task.model_copy(update={"text_columns": ("premise", "hypothesis")})
    pairs = replace(teacher, card=teacher.card.model_copy(update={"task": record}))
    with pytest.raises(ConfigError, match=r"the columns are text, and the model reads 2 texts"):
        compare([teacher, pairs], task, CONFIG)


@pytest.mark.parametrize(
    "kind",
    [
        *("single_label_classification", "multi_label_classification", "token_classification"),
        JOINT.problem_type,
    ],
)
def test_labels_in_another_order_are_the_same_labels(
    kind: str, teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    model, task = teacher_of(kind), TASKS_OF_KINDS[kind]
    turned = with_turned_labels(model, task, tmp_path / "turned")
    assert turned.card.task.labels != task.labels
    first, second = compare([model, turned], task, NOISY).rows
    assert (second.scores, second.confusion) == (first.scores, first.confusion)
    assert second.change is not None and second.change.value == 0.0
    assert not second.disagreements
    own, theirs = first.reliability, second.reliability
    assert (own is None) == (theirs is None)
    if own is not None and theirs is not None:
        assert theirs.ece == pytest.approx(own.ece, abs=1e-6)


def test_a_label_that_two_outputs_have_has_no_order(task: Task, tmp_path: Path) -> None:
    twice = replace(task, labels=("fruit", "fruit"))
    model = save_artifact(tiny_classifier("bert"), twice, tmp_path / "twice")
    with pytest.raises(ModelError, match="twice has"):
        compare([model], task, NOISY)


def test_one_config_takes_the_flags_of_timing_and_scoring() -> None:
    assert CompareConfig.parse({"rounds": 3, "tokens_per_batch": 100}).rounds == 3
    with pytest.raises(ConfigError, match="Did you mean 'rounds'"):
        CompareConfig.parse({"round": 3})


def test_the_first_row_is_timed_twice_and_the_second_one_hidden(comparison: Comparison) -> None:
    again = comparison.noise_floor
    assert again is not None and again.name == comparison.rows[0].name
    assert again.single_ms != comparison.rows[0].latency.single_ms
    assert again.speedup.low <= again.speedup.value <= again.speedup.high


def test_the_constant_row_is_the_most_frequent_training_label(task: Task) -> None:
    few = Split(task.train.examples[:5], (1, 0, 1, 1, 0))
    constant = constant_row(replace(task, train=few))
    share = sum(label == 1 for label in task.dev.label_ids) / len(task.dev)
    assert (constant.label, constant.name) == ("tool", "always tool")
    assert constant.score.value == share and constant.score.n == len(task.dev)
    assert most_frequent((2, 1, 1, 2)) == 1, "the lowest of several"


def test_a_row_of_one_label_is_said_below_the_table(
    comparison: Comparison, teacher: Artifact, task: Task
) -> None:
    """Its card may not say so, as those of finished models do not; its score looks like one."""
    assert teacher.card.findings.scores is None
    constant, again, other = (row.constant for row in comparison.rows)
    assert constant is not None and constant == again and other is None
    share = sum(task.labels[own] == constant.label for own in task.dev.label_ids) / len(task.dev)
    said = f"`{teacher.name}` predicts {constant.label!r} everywhere; {share:.1%} of"
    lines = [each for each in comparison_lines(comparison) if "everywhere" in each]
    assert lines[0].startswith(said) and len(lines) == 2


def test_answering_the_same_to_every_pair_of_mrpc_is_shown(data_directory: Path) -> None:
    del data_directory  # MRPC is there
    constant = constant_row(load_task(TaskConfig(task="mrpc")))
    assert round(constant.score.value, 3) == 0.812


def test_a_busy_machine_is_refused_before_anything_is_scored(
    teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(CpuSeconds(10.0 * n, 9.0 * n, 0.0, 0.0) for n in range(9))
    monkeypatch.setattr(load, "cpu_seconds", lambda: next(readings))
    monkeypatch.setattr(load, "SAMPLE_S", 0.0)
    monkeypatch.setattr("bertender.comparison.rows.answers", lambda *given: pytest.fail("scored"))
    with pytest.raises(MachineBusyError, match="--noisy"):
        compare([teacher], task, CONFIG)
