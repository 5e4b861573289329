"""Golden texts: what an onnx artifact stores of them, and when answers to them agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import (
    GOLDEN_NAME,
    Artifact,
    GoldenText,
    GoldenTexts,
    read_golden,
    write_golden,
)
from bertender.core.errors import ArtifactError
from bertender.gate.golden import (
    MOST_BYTES,
    GoldenPrediction,
    check_golden,
    golden_examples,
    golden_texts,
)
from bertender.gate.judge import TOLERANCES, check_parity
from bertender.models.classifier import open_classifier
from bertender.problems import PROBLEMS
from bertender.problems.problem import Outputs
from bertender.problems.ranking import RANKING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.fake_classifier import EXAMPLES, encode_words, fake_classifier, logits_of

LABELS = ("fruit", "tool")


def exported(source: Artifact, task: Task, out: Path, count: int) -> Artifact:
    return export(source, task, ExportConfig(parity_texts=8, golden_texts=count), out)


def answers_of(golden: GoldenTexts) -> dict[int, GoldenPrediction]:
    predictions = (GoldenPrediction(text.label, np.array(text.logits)) for text in golden.texts)
    return dict(enumerate(predictions))


@pytest.fixture(scope="module")
def golden(trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory) -> GoldenTexts:
    return read_golden(exported(trained, task, tmp_path_factory.mktemp("golden") / "onnx", 6))


def test_an_export_has_texts_of_the_task_with_its_own_outputs(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = exported(trained, task, tmp_path / "onnx", 5)
    golden, local = read_golden(artifact), open_classifier(artifact, threads=1)
    assert GOLDEN_NAME in artifact.card.files and len(golden.texts) == 5
    assert {text.example for text in golden.texts} <= {*task.choices.examples}
    assert (golden.runtime, golden.tolerance) == ("onnxruntime", "float32")
    for text in golden.texts:
        (outputs,) = local.outputs([text.example])
        np.testing.assert_allclose(text.logits, outputs.logits, rtol=1e-6, atol=1e-7)
        assert text.label == task.labels[int(outputs.logits.argmax())]
        assert text.tokens == len(local.encode([text.example]).arrays["input_ids"][0])


def test_a_quantized_model_has_outputs_of_its_own(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    onnx = exported(trained, task, tmp_path / "onnx", 4)
    settings = {"scheme": "dynamic", "target": "vnni", "parity_texts": 8}
    int8 = quantize(onnx, task, QuantizeConfig(**settings), tmp_path / "int8")
    golden = read_golden(int8)
    assert golden.tolerance == "int8" and golden.logit_spread > 0
    assert golden.texts[0].logits != read_golden(onnx).texts[0].logits
    bare = quantize(onnx, task, QuantizeConfig(**settings, golden_texts=0), tmp_path / "bare")
    assert GOLDEN_NAME not in bare.card.files, "its source's are not its own"


def test_without_golden_texts_the_next_step_is_named(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = exported(trained, task, tmp_path / "onnx", 0)
    assert not (artifact.path / GOLDEN_NAME).exists()
    with pytest.raises(ArtifactError, match=r"no golden texts.*`bertender export`"):
        read_golden(artifact)


def test_unreadable_golden_texts_are_named(trained: Artifact, task: Task, tmp_path: Path) -> None:
    shutil.copytree(exported(trained, task, tmp_path / "onnx", 2).path, tmp_path / "copy")
    artifact = Artifact.load(tmp_path / "copy")
    (artifact.path / GOLDEN_NAME).write_text('{"texts": "secret"}')
    with pytest.raises(ArtifactError, match=r"golden\.json cannot be read") as caught:
        read_golden(artifact)
    assert "secret" not in str(caught.value)


def test_long_texts_are_left_out() -> None:
    examples = [("short",), ("é" * MOST_BYTES,), ("another",)]
    assert golden_examples(examples, 9, 0) == (("short",), ("another",))
    assert golden_examples(examples[1:2], 9, 0) == ()


def test_they_come_back_as_they_were_written(golden: GoldenTexts, tmp_path: Path) -> None:
    write_golden(golden, tmp_path)
    read = GoldenTexts.model_validate_json((tmp_path / GOLDEN_NAME).read_text())
    assert read == golden


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_equal_answers_agree(name: str, golden: GoldenTexts) -> None:
    own = golden.model_copy(update={"tolerance": name})
    check = check_golden(own, answers_of(own), SINGLE_LABEL, LABELS)
    assert check.failures == () and check.max_abs_difference == 0


def _moved(answer: GoldenPrediction, by: float) -> GoldenPrediction:
    shift = np.array([[by, -by]])
    return replace(answer, logits=answer.logits + shift)


@pytest.mark.parametrize(("share", "agrees"), [(0.5, True), (2.0, False)])
def test_a_float_model_may_move_by_its_tolerance(
    share: float, agrees: bool, golden: GoldenTexts
) -> None:
    bound = TOLERANCES["float32"].max_abs
    assert bound is not None
    answers = answers_of(golden)
    answers[2] = _moved(answers[2], share * bound * golden.logit_scale)
    check = check_golden(golden, answers, SINGLE_LABEL, LABELS)
    assert (check.failures == ()) == agrees
    assert agrees or ("max_abs" in check.failures[0] and "golden text 3 of 6" in check.failures[0])


@pytest.mark.parametrize(("share", "agrees"), [(0.5, True), (2.0, False)])
def test_a_rounded_model_may_move_by_a_share_of_the_spread(
    share: float, agrees: bool, golden: GoldenTexts
) -> None:
    bound = TOLERANCES["int8"].max_median
    assert bound is not None
    own = golden.model_copy(update={"tolerance": "int8"})
    by = share * bound * own.logit_spread
    moved = {row: _moved(each, by) for row, each in answers_of(own).items()}
    named = {
        row: replace(each, label=LABELS[int(each.logits.argmax())]) for row, each in moved.items()
    }
    check = check_golden(own, named, SINGLE_LABEL, LABELS)
    assert (check.failures == ()) == agrees
    assert agrees or any("max_median" in failure for failure in check.failures)


def test_another_label_is_named_without_its_text(golden: GoldenTexts) -> None:
    answers = answers_of(golden)
    other = {"fruit": "tool", "tool": "fruit"}[str(answers[1].label)]
    answers[1] = GoldenPrediction(other, answers[1].logits[:, ::-1])
    check = check_golden(golden, answers, SINGLE_LABEL, LABELS)
    assert check.failures[0].startswith(
        f"golden text 2 of 6 (label '{golden.texts[1].label}') is predicted '{other}'; its logits "
        "differ by "
    )
    words = golden.texts[1].example[0].split()
    assert not [word for word in words if word in " ".join(check.failures).split()]


def test_the_names_of_labels_count(golden: GoldenTexts) -> None:
    answers = {
        row: replace(each, label=f"{each.label}s") for row, each in answers_of(golden).items()
    }
    assert len(check_golden(golden, answers, SINGLE_LABEL, LABELS).failures) == len(answers)


def test_what_no_decision_tells_may_differ_within_bounds() -> None:
    """The order of passages after the first, and the number of a head: other machines round."""
    query = ("q", "a", "b", "c")
    ranking = (RANKING, ("relevance",), query, [[5.0], [1.0], [1.0001]], [[5.0], [1.0001], [1.0]])
    heads = PROBLEMS["kind:single_label_classification,stars:regression"]
    labels = ("kind:a", "kind:b", "stars:number")
    numbers = (heads.of_labels(labels), labels, ("t",), [[5.0, -5.0, 3.25]], [[5.0, -5.0, 3.2501]])
    for problem, names, example, then, now in (ranking, numbers):
        places = np.arange(len(then))
        before, after = (
            problem.by_names(problem.decode(Outputs(np.array(each), places), example), names)
            for each in (then, now)
        )
        assert before != after
        text = GoldenText(
            example=example, label=before, logits=then, places=tuple(places.tolist()), tokens=9
        )
        own = GoldenTexts(
            runtime="", tolerance="float32", logit_scale=5.0, logit_spread=1.0, texts=(text,)
        )
        answer = GoldenPrediction(after, np.array(now))
        assert check_golden(own, {0: answer}, problem, names).failures == ()
        other = replace(answer, label=before)  # not what its logits say
        assert check_golden(own, {0: other}, problem, names).failures


def test_each_head_is_judged_in_its_own_units() -> None:
    """Beside numbers of thousands, logits of any label would be rounding."""
    labels = ("kind:a", "kind:b", "price:number")
    problem = PROBLEMS["kind:single_label_classification,price:regression"].of_labels(labels)

    def answer(batch: Batch) -> np.ndarray:
        logits = logits_of(batch.examples)
        return np.hstack([logits, 5000 + 300 * logits[:, :1]])

    fake = fake_classifier(answer=answer, labels=labels, encode=encode_words)
    model, bounds = replace(fake, problem=problem), TOLERANCES["int8"]
    parity = check_parity(model, model, EXAMPLES, bounds)
    own = golden_texts(model, EXAMPLES[:16], runtime="", tolerance="int8", parity=parity)
    assert parity.heads["price"][1] > 100 * parity.heads["kind"][1] and own.heads == parity.heads
    answers = answers_of(own)
    assert check_golden(own, answers, problem, labels).failures == ()
    for row, each in answers.items():
        turned = each.logits[:, [1, 0, 2]]
        outputs = Outputs(turned, np.zeros(1, dtype=np.int64))
        label = problem.by_names(problem.decode(outputs, EXAMPLES[row]), labels)
        answers[row] = GoldenPrediction(label, turned)
    failures = check_golden(own, answers, problem, labels).failures
    assert any(each.startswith("kind: max_median") for each in failures)
    assert any("is predicted kind: " in each for each in failures)


def test_texts_without_a_prediction_are_counted_and_change_no_number(golden: GoldenTexts) -> None:
    answers = answers_of(golden)
    for row in (0, 3):
        del answers[row]
    check = check_golden(golden, answers, SINGLE_LABEL, LABELS)
    assert (check.texts, check.left_out, check.failures) == (4, 2, ())
    answers[4] = replace(answers[4], logits=answers[4].logits[:, ::-1] * 9)
    failures = check_golden(golden, answers, SINGLE_LABEL, LABELS).failures
    assert failures and all("golden text 5 of 6" in each for each in failures)


BROKEN: dict[str, Callable[[GoldenPrediction], GoldenPrediction]] = {
    "another number of labels": lambda answer: replace(answer, logits=np.zeros((1, 3))),
    "not finite": lambda answer: replace(answer, logits=answer.logits * np.nan),
}


@pytest.mark.parametrize("name", BROKEN)
def test_logits_that_cannot_be_compared_are_a_failure(name: str, golden: GoldenTexts) -> None:
    answers = answers_of(golden)
    answers[0] = BROKEN[name](answers[0])
    (failure,) = check_golden(golden, answers, SINGLE_LABEL, LABELS).failures
    assert "golden text 1 of 6" in failure


def test_comparing_loads_no_library_that_makes_models() -> None:
    script = (
        "import sys, bertender.gate.golden\n"
        "print({'torch', 'transformers', 'scipy', 'sklearn', 'datasets'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
