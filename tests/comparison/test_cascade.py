"""A cascade of two models: its threshold, who is asked, and its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bertender.comparison.accuracy import Answers
from bertender.comparison.cascade import Answered, CascadePredictor, check_cascade, chosen
from bertender.comparison.compare import compare
from bertender.comparison.latency import PassedOn, TimedModel
from bertender.comparison.records import CompareConfig, Comparison
from bertender.comparison.table import comparison_lines, markdown_table
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models import runtimes
from bertender.models.classifier import Classifier, open_classifier
from bertender.problems.problem import Outputs
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example, keep_text
from tests.front import fail
from tests.toy_kinds import TASKS as TASKS_OF_KINDS
from tests.toy_models import with_turned_labels
from tests.toys import ToyNamedTask

FASTEST = CompareConfig(
    processes=1, rounds=2, single_texts=4, batch_size=4, warmup_rounds=0, noisy=True, threads=1
)


def logits_of(confidence: float, label: int) -> np.ndarray:
    """Logits of two labels, of which one has this probability."""
    own = np.log(confidence / (1 - confidence))
    return np.array([[own, 0.0] if label == 0 else [0.0, own]], dtype=np.float32)


def answered(confidences: Sequence[float], labels: Sequence[int]) -> Answered:
    pairs = zip(confidences, labels, strict=True)
    outputs = [Outputs(logits_of(*each), np.zeros(1, int)) for each in pairs]
    return Answered(
        Answers(outputs, np.array(labels)), SINGLE_LABEL.confidence(outputs, ("a", "b"))
    )


TRUTH = (0, 1, 0, 1)
TEXTS = Split(tuple((f"text {row}",) for row in range(4)), TRUTH)
TASK = Task("toy", ("a", "b"), "accuracy", ("text",), TEXTS, TEXTS)
STRONG = answered([0.9] * 4, TRUTH)


def test_the_threshold_passes_on_as_few_as_it_can() -> None:
    """The small model is wrong about the two texts that it is least sure of."""
    small = answered([0.6, 0.7, 0.8, 0.95], (1, 0, 0, 1))
    found = chosen(("s", "l"), small, STRONG, TEXTS, TASK)
    assert 0.7 < found.threshold <= 0.8
    assert (found.score, found.strong_score, found.chosen_on) == (1.0, 1.0, 4)
    made = small.then(STRONG, SINGLE_LABEL, found.threshold)
    assert made.answers.predictions.tolist() == list(TRUTH)
    assert [
        own is other for own, other in zip(made.answers.outputs, small.answers.outputs, strict=True)
    ] == [*(False, False, True, True)]


def test_nothing_is_passed_on_where_the_small_model_scores_as_much() -> None:
    small = answered([0.6, 0.7, 0.8, 0.95], TRUTH)
    assert chosen(("s", "l"), small, STRONG, TEXTS, TASK).threshold == 0.0


def test_all_is_passed_on_where_the_small_model_is_surely_wrong() -> None:
    small = answered([0.6, 0.7, 0.8, 1 - 1e-9], (0, 1, 0, 0))
    found = chosen(("s", "l"), small, STRONG, TEXTS, TASK)
    assert found.threshold > 1.0, "it passes on texts of probability 1 too"
    assert small.then(STRONG, SINGLE_LABEL, found.threshold).answers.predictions.tolist() == list(
        TRUTH
    )


def test_an_undefined_score_chooses_no_threshold() -> None:
    """Matthews of one answer to all texts is 0, and the strong model's is below 0."""
    by_matthews = replace(TASK, metric="matthews")
    small = answered([0.6, 0.7, 0.8, 0.95], (0, 0, 0, 0))
    worse = answered([0.9] * 4, (1, 0, 0, 0))
    assert chosen(("s", "l"), small, worse, TEXTS, by_matthews).threshold > 0
    with pytest.raises(ConfigError, match=r"l has no matthews on the 4 .*: all predictions are"):
        chosen(("s", "l"), worse, small, TEXTS, by_matthews)


@dataclass
class Scripted:
    """A classifier that answers texts by their last word, and remembers them."""

    answers: dict[str, tuple[float, int]]
    asked: list[Example]
    labels = ("a", "b")
    problem = SINGLE_LABEL

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        self.asked += examples
        return [Outputs(logits_of(*self.answers[text]), np.zeros(1, int)) for (text,) in examples]


def test_the_strong_model_is_asked_about_the_others_alone() -> None:
    small = Scripted({"x": (0.9, 0), "y": (0.6, 0)}, [])
    strong = Scripted({"x": (0.99, 1), "y": (0.99, 1)}, [])
    both = cast(tuple[Classifier, Classifier], (small, strong))
    predictor = CascadePredictor(*both, 0.8)
    logits = predictor.logits(keep_text([("x",), ("y",), ("x",)]))
    assert logits.argmax(axis=1).tolist() == [0, 1, 0]
    assert (len(small.asked), strong.asked) == (3, [("y",)])
    predictor.logits(keep_text([("x",)]))
    assert len(strong.asked) == 1


def test_what_makes_no_cascade_is_named() -> None:
    with pytest.raises(ConfigError, match="task 'toy' has no validation texts"):
        check_cascade(SINGLE_LABEL, TASK)
    apart = replace(TASK, selection=TEXTS)
    check_cascade(SINGLE_LABEL, apart)
    for kind in ("regression", "token_classification", "multiple_choice"):
        with pytest.raises(ConfigError, match=f"is one of '{kind}'"):
            check_cascade(TASKS_OF_KINDS[kind].problem, apart)
    refused = fail("compare", "--saved", "x.json", "--cascade", "a", "b")
    assert "takes no cascade" in refused


def test_no_thread_of_its_models_waits_in_a_loop(
    exported: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the core that the other model runs on."""
    asked: list[bool] = []
    open_session = runtimes.open_session

    def watched(graph: Path, **settings: Any) -> Any:
        asked.append(settings["spinning"])
        return open_session(graph, **settings)

    monkeypatch.setattr(runtimes, "open_session", watched)
    alone = TimedModel(name="alone", artifact=exported.path)
    then = PassedOn(artifact=exported.path, threshold=0.9)
    graph = alone.model_copy(update={"graph": exported.path / "model.onnx"})
    alone.open(1, None)
    alone.model_copy(update={"then": then}).open(1, None)
    graph.open(1, None, spinning=False)
    assert asked == [True, False, False, False]


def with_threshold(found: Comparison, threshold: float) -> Comparison:
    """The comparison, if its cascade in the last row had this threshold."""
    *rows, both = found.rows
    assert both.cascade is not None
    cascade = both.cascade.model_copy(update={"threshold": threshold})
    both = both.model_copy(update={"cascade": cascade})
    return found.model_copy(update={"rows": (*rows, both)})


def test_a_cascade_is_a_row(
    teacher: Artifact, trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """The untrained model is small, and the trained one strong."""
    apart = replace(task, selection=task.train.first(60))
    found = compare([trained, teacher], apart, FASTEST, cascade=(teacher, trained))
    strong, small, both = found.rows
    cascade = both.cascade
    assert cascade is not None and (cascade.small, cascade.strong) == (small.name, strong.name)
    assert both.name == f"{small.name}, then {strong.name}" and both.kind == "cascade"
    assert both.size.parameters == (small.size.parameters or 0) + (strong.size.parameters or 0)
    assert both.digest not in (small.digest, strong.digest) and strong.cascade is None
    # asked text by text, as it is timed
    local = [open_classifier(each) for each in (teacher, trained)]
    predictor = CascadePredictor(*cast(Any, local), cascade.threshold)
    logits = [predictor.logits(keep_text([each])) for each in task.dev.examples]
    predicted = np.concatenate(logits).argmax(axis=1)
    assert both.score.value == pytest.approx((predicted == task.dev.label_ids).mean())
    assert both.latency.single.p99_ms > 0
    path = tmp_path / "saved.json"
    path.write_text(found.model_dump_json(), encoding="utf-8")
    again = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    assert again == found
    assert "Passed on" in markdown_table(again)
    lines = {0.0: "nothing is passed on", 0.6: "the other", 1.0 + 1e-9: "every text is passed on"}
    for threshold, said in lines.items():
        other = with_threshold(again, threshold)
        (line,) = (each for each in comparison_lines(other) if each.startswith(f"`{both.name}`"))
        assert said in line and "60 validation texts" in line and "at p99" in line
    alone = compare([trained], task, FASTEST)
    assert "Passed on" not in markdown_table(alone)


def test_a_cascade_is_scored_on_the_texts_of_further_tasks(
    teacher: Artifact, trained: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(task, selection=task.train.first(60), source={"task": "toy"})
    other = ToyNamedTask.of(replace(task, dev=task.dev.first(9)))
    monkeypatch.setitem(TASKS, "toy", replace(ToyNamedTask.of(task), scored_too=("toy-other",)))
    monkeypatch.setitem(TASKS, "toy-other", other)
    found = compare([trained, teacher], apart, FASTEST, cascade=(teacher, trained))
    *_, both = found.rows
    alone = replace(apart, dev=task.dev.first(9))
    expected = compare([trained, teacher], alone, FASTEST, cascade=(teacher, trained)).rows[-1]
    assert both.further == {"toy-other": expected.score}
    assert "toy-other accuracy" in markdown_table(found)
    before = both.model_copy(update={"further": {}})
    saved = found.model_copy(update={"rows": (*found.rows[:-1], before)})
    assert markdown_table(saved), "a table of an earlier version is shown, with a dash"


def test_the_models_of_a_cascade_may_have_their_own_orders(
    teacher: Artifact, trained: Artifact, task: Task, tmp_path: Path
) -> None:
    apart = replace(task, selection=task.train.first(60))
    turned = with_turned_labels(trained, task, tmp_path / "turned")
    (plain, other) = (
        compare([strong, teacher], apart, FASTEST, cascade=(teacher, strong)).rows[-1]
        for strong in (trained, turned)
    )
    assert (other.scores, other.confusion) == (plain.scores, plain.confusion)
    assert plain.cascade is not None and other.cascade is not None
    assert other.cascade.threshold == plain.cascade.threshold
    then = PassedOn(artifact=turned.path, threshold=1.0)
    timed = TimedModel(name="both", artifact=teacher.path, then=then).open(1, None)
    expected = open_classifier(trained).logits(task.dev.examples[:4])
    np.testing.assert_allclose(timed.logits(task.dev.examples[:4]), expected, atol=1e-5)
