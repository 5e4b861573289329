"""PROBLEMS: every row is trained, exported, quantized, compared and read as an endpoint does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest
import transformers

import bertender
from benchmarks.faults import ANSWER_FAULTS, kind_of, with_answers
from bertender.comparison.accuracy import evaluate, predict_outputs
from bertender.comparison.compare import compare
from bertender.comparison.fitting import evaluated, validated
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.gate.artifacts import VerifyConfig, verify
from bertender.gate.judge import TOLERANCES, check_parity, labelled_sample
from bertender.metrics import METRICS
from bertender.models.classifier import Classifier, open_classifier
from bertender.problems import PROBLEMS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.regression import REGRESSION
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch, Example
from bertender.text.tokenizer import load_tokenizer
from bertender.training.heads import HEADS, head_of
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.teachers.encoders import load_classifier
from export.bundle import bundle, single_file
from export.config import PROGRAMS, BundleConfig, ExportConfig
from export.exporter import export, write_onnx
from quantize.config import QuantizeConfig
from quantize.graph_check import failures_if_quantized
from quantize.quantizer import quantize
from serve.backend.fair_queue import Refusal
from serve.backend.opening import open_served_model
from serve.config import BackendParameters, ServeConfig
from serve.repository.config_pbtxt import model_config
from serve.wire import TOKENS, TRUNCATED
from tests.fake_predictor import FakePredictor
from tests.packages import HAS_NODE, NODE_MODULES
from tests.problems.kinds import eight_bits, graph, graph_of, named, same, task, teacher
from tests.quick import quick
from tests.serve.asking import ask
from tests.toy_heads import JOINT
from tests.toy_kinds import ALL, TASKS, pace
from tests.toy_tagging import TASK as TAGGING

__all__ = ["eight_bits", "graph", "graph_of", "task", "teacher"]

SETTINGS: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}
ONE_OF_HEADS = pytest.mark.parametrize(
    "task", quick(ALL, *PROBLEMS, JOINT.problem_type), indirect=True
)
"""Several heads go one path, whatever their kinds are."""
NO_TORCH = """
import sys
import {module}
assert "torch" not in sys.modules, "torch is loaded"
"""
FASTEST = CompareConfig(
    processes=1,
    rounds=2,
    single_texts=4,
    batch_size=4,
    warmup_rounds=0,
    threads=1,
    noisy=True,
)


def test_every_row_has_a_head_and_known_metrics() -> None:
    assert list(HEADS) == list(PROBLEMS)
    for name, row in PROBLEMS.items():
        assert row.name == name == HEADS[name].problem
        assert set(row.metrics) <= set(METRICS)


def test_a_model_learns_its_task(teacher: Artifact, task: Task) -> None:
    score, predictions = evaluate(open_classifier(teacher), task.dev, task.metric)
    assert score.value > 0.9
    assert len(predictions) == len(task.dev)
    assert teacher.card.task.model_copy(update={"fitted": {}}) == task.record()


def test_the_graph_predicts_as_the_model_does(
    graph: Artifact, teacher: Artifact, task: Task
) -> None:
    for example in task.dev.examples[:5]:
        ours, theirs = (open_classifier(each).outputs([example])[0] for each in (graph, teacher))
        np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-4)
        assert np.array_equal(ours.places, theirs.places)


BY_OPTIMUM = {
    SINGLE_LABEL.name: "ModelForSequenceClassification",
    MULTI_LABEL.name: "ModelForSequenceClassification",
    REGRESSION.name: "ModelForSequenceClassification",
    TOKEN_CLASSIFICATION.name: "ModelForTokenClassification",
    QUESTION_ANSWERING.name: "ModelForQuestionAnswering",
}
"""Kind of problem -> the class of transformers that opens its model, after "Auto", and of Optimum
that opens its graph, after "ORT"."""


@pytest.mark.parametrize("task", BY_OPTIMUM, indirect=True)
def test_optimum_gives_the_outputs_of_transformers(
    teacher: Artifact, graph: Artifact, eight_bits: Artifact, task: Task
) -> None:
    optimum = pytest.importorskip("optimum.onnxruntime", reason="none takes transformers 5")
    kind = BY_OPTIMUM[task.problem_type]
    tokenizer, example = load_tokenizer(teacher.path), task.dev.examples[3]
    words = (list(example),) if task.problem.labels_words else example
    read = tokenizer(*words, is_split_into_words=task.problem.labels_words, return_tensors="pt")
    expected = getattr(transformers, f"Auto{kind}").from_pretrained(teacher.path)(**read)
    for artifact, far in ((graph, 1e-4), (eight_bits, 0.2)):
        found = getattr(optimum, f"ORT{kind}").from_pretrained(artifact.path)(**read)
        for name in task.problem.column_outputs or ("logits",):
            ours, theirs = (getattr(each, name).detach().numpy() for each in (found, expected))
            np.testing.assert_allclose(ours, theirs, atol=far)


SCHEMES: dict[str, dict[str, Any]] = {
    "static": {},
    "qat": {"epochs": 1, "batch_size": 8, "precision": "fp32"},
    "mixed": {"max_drop": 5.0},
    "q-bert": {"epochs": 2, "batch_size": 8, "precision": "fp32", "weight_bits": 4},
}


@pytest.mark.one_path
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_quantizes_it(
    scheme: str, graph: Artifact, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme=scheme, **SCHEMES[scheme])
    source = teacher if config.trains else graph
    made = quantize(source, task, config, tmp_path / "made", write_onnx=written(task))
    assert made.card.precision == config.graph_precision
    found = made.card.findings.quantization
    few = task.problem.gives_vectors or len(found.weight_bits or ()) < found.products
    assert few, "a classifier of 8"
    assert evaluate(open_classifier(made), task.dev, task.metric)[0].value > 0.8


def written(task: Task) -> Any:
    return lambda artifact, directory: write_onnx(artifact, task, ExportConfig(), directory)


@pytest.mark.parametrize("task", quick(ALL, TOKEN_CLASSIFICATION.name), indirect=True)
def test_verify_and_compare(
    teacher: Artifact, graph: Artifact, eight_bits: Artifact, task: Task
) -> None:
    parity = verify(graph, eight_bits, task, VerifyConfig(), failures_if_quantized)
    assert parity.passed, parity.failures
    assert parity.score_change is not None
    comparison = compare([teacher, graph, eight_bits], task, FASTEST)
    assert [row.score.metric for row in comparison.rows] == [task.metric] * 3
    assert comparison.rows[1].change is not None
    assert abs(comparison.rows[1].change.value) < 1e-6
    assert comparison.constant is not None
    assert comparison.constant.score.value < comparison.rows[0].score.value


@ONE_OF_HEADS
def test_the_gate_finds_a_forgotten_padding_mask(teacher: Artifact, task: Task) -> None:
    sound = open_classifier(teacher)

    def maskless(batch: Batch) -> Any:
        arrays = {**batch.arrays, "attention_mask": np.ones_like(batch.arrays["input_ids"])}
        return sound.predictor.logits(replace(batch, arrays=arrays))

    broken = Classifier(
        "broken", sound.labels, sound.encode, FakePredictor(maskless), 0, sound.problem
    )
    examples, truth = labelled_sample(task, task.dev, 16, 0)
    tolerance = TOLERANCES["float32"]
    assert check_parity(sound, sound, examples, tolerance, truth=truth).passed
    parity = check_parity(sound, broken, examples, tolerance, truth=truth)
    assert any("max_abs_difference" in failure for failure in parity.failures)


@ONE_OF_HEADS
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_gate_finds_wrong_answers(
    teacher: Artifact, graph: Artifact, task: Task, precision: str
) -> None:
    own = [name for name, (kind, _) in ANSWER_FAULTS.items() if kind == kind_of(task.problem)]
    assert own, "what goes wrong in answers of this kind?"
    sound, candidate = open_classifier(teacher), open_classifier(graph)
    examples, truth = labelled_sample(task, task.dev, 32, 0)
    tolerance = TOLERANCES[precision]
    assert check_parity(sound, candidate, examples, tolerance, truth=truth).passed
    for fault in own:
        faulty = with_answers(candidate, fault)
        assert not check_parity(sound, faulty, examples, tolerance, truth=truth).passed, fault


@ONE_OF_HEADS
@pytest.mark.parametrize("to", PROGRAMS)
def test_a_bundle_answers_as_the_graph(
    to: str, graph: Artifact, task: Task, tmp_path: Path
) -> None:
    """transformers.js too, where it is there, in Node: tokens and outputs of each kind."""
    settings: dict[str, Any] = {"to": to, "parity_texts": 8}
    if to == "single-file":
        pytest.importorskip("onnxruntime_extensions")
        pairs = len(task.text_columns) > 1 and not task.problem.gives_vectors
        if pairs or task.problem_type not in single_file.ANSWERS:
            with pytest.raises(ModelError, match="Use --to browser"):
                bundle(graph, task, BundleConfig(**settings), tmp_path / "out")
            return
    if to == "browser":
        settings |= {"golden_texts": 8, "node_modules": NODE_MODULES if HAS_NODE else None}
    config = BundleConfig(**settings)
    written = bundle(graph, task, config, tmp_path / "out")
    found = written.card.findings.bundle
    assert found is not None and found.opens_as
    if to == "browser":
        assert json.loads((written.path / "texts.json").read_text())["rows"]


@ONE_OF_HEADS
def test_a_student_is_distilled(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = DistillConfig(method="minibert", layers=2, epochs=2, **pace(task))
    student = distill(teacher, task, config, tmp_path / "student")
    assert student.card.task.model_copy(update={"fitted": {}}) == task.record()
    assert student.card.findings.scores is not None
    assert student.card.findings.scores.score > 0.5


@pytest.mark.one_path
@pytest.mark.parametrize("settings", [{"epochs": 2}, {"retraining_free": True}])
def test_heads_and_neurons_are_pruned(
    settings: dict[str, Any], teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    training = {} if "retraining_free" in settings else SETTINGS
    config = PruneConfig(heads=0.25, ffn=0.25, scored_texts=32, **training, **settings)
    pruned = prune(teacher, task, config, tmp_path / "pruned")
    assert pruned.card.findings.parameters < teacher.card.findings.parameters
    assert evaluate(open_classifier(pruned), task.dev, task.metric)[0].value > 0.5


@pytest.mark.one_path
@pytest.mark.parametrize("task", [QUESTION_ANSWERING.name], indirect=True)
def test_the_score_before_is_that_of_the_model_with_its_threshold(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    record = teacher.card.task.model_copy(update={"fitted": {"no_answer": 1000.0}})
    silent = replace(teacher, card=teacher.card.model_copy(update={"task": record}))
    config = PruneConfig(ffn=0.25, retraining_free=True, scored_texts=32, allow_constant=True)
    scores = prune(silent, task, config, tmp_path / "pruned").card.findings.scores
    assert scores is not None and scores.score_before == pytest.approx(
        evaluate(open_classifier(silent), task.dev, task.metric)[0].value
    )


@pytest.mark.one_path
@pytest.mark.parametrize("task", [QUESTION_ANSWERING.name], indirect=True)
def test_an_epoch_of_questions_is_scored_with_its_threshold(
    teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_classifier(str(teacher.path), task.labels, task.problem)
    settings, silent = (model, tokenizer, task), {"no_answer": 1000.0}
    monkeypatch.setattr(type(task.problem), "fit", lambda *given: silent)
    found, answered = validated(*settings)
    assert not any(answered) and found.value < 0.5
    assert found.value == evaluated(*settings, task.choices, silent)[0].value


@pytest.mark.one_path
@pytest.mark.parametrize("method", ["minibert", "distilbert"])
def test_a_student_learns_from_texts_alone(
    teacher: Artifact, task: Task, tmp_path: Path, method: str
) -> None:
    """It has no label to learn from, and no other file than these texts."""
    texts = tmp_path / "texts.txt"
    if len(task.text_columns) == 1:
        texts.write_text("\n".join(map(" ".join, task.train.examples)))
    else:
        texts = texts.with_suffix(".jsonl")
        rows = (columns_of(task, each) for each in task.train.examples)
        texts.write_text("\n".join(map(json.dumps, rows)))
    unlabelled = {"unlabelled": texts, "method": method, "layers": 2}
    config = DistillConfig(**unlabelled, epochs=6, **SETTINGS)
    without = replace(task, train=Split((), ()))
    student = distill(teacher, without, config, tmp_path / "student")
    assert student.card.findings.scores is not None
    assert student.card.findings.scores.score > 0.5


def columns_of(task: Task, example: Example) -> dict[str, Any]:
    """A row of a file without labels."""
    first, *more = example
    values = [more] if task.problem.takes_list else more
    return dict(zip(task.text_columns, [first, *values], strict=True))


MORE_OF_TEXTS: dict[str, dict[str, Any]] = {
    "a small vocabulary": {"vocab_size": 150},
    "other texts": {"augmentation": "bilstm", "augmented_copies": 2},
    "several teachers": {},
}


@pytest.mark.one_path
@pytest.mark.parametrize("setting", MORE_OF_TEXTS)
def test_what_texts_are_given_to_a_student(
    teacher: Artifact, task: Task, tmp_path: Path, setting: str
) -> None:
    settings = {**SETTINGS, **MORE_OF_TEXTS[setting], "method": "pkd", "layers": 2, "epochs": 4}
    if setting == "several teachers":
        settings["more_teachers"] = (teacher.path,)
    config = DistillConfig(**settings)
    said = "token by token" if head_of(task.problem).per_token else "directions of their own"
    averages = not task.problem.gives_vectors or setting != "several teachers"
    if head_of(task.problem).per_token or not averages:
        with pytest.raises(ConfigError, match=said):
            distill(teacher, task, config, tmp_path / "student")
        return
    student = distill(teacher, task, config, tmp_path / "student")
    assert student.card.findings.scores is not None
    assert student.card.findings.scores.score > 0.5


@ONE_OF_HEADS
def test_a_smaller_vocabulary_changes_nothing_or_is_refused(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(vocab="task", vocab_floor=1, recover=False)
    if head_of(task.problem).per_token:
        with pytest.raises(ConfigError, match="tags and answers are learned token by token"):
            prune(teacher, task, config, tmp_path / "pruned")
        return
    pruned = prune(teacher, task, config, tmp_path / "pruned")
    assert pruned.card.findings.parameters < teacher.card.findings.parameters
    for example in task.train.examples[:5]:
        ours, theirs = (open_classifier(each).outputs([example])[0] for each in (pruned, teacher))
        np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-5)


def test_the_endpoint_answers_as_the_model_predicts(graph: Artifact, task: Task) -> None:
    """All that Triton does in between is to carry the tensors."""
    parameters = BackendParameters(tokens_per_bucket=64, threads=1, problem_type=task.problem_type)
    served, problem = open_served_model(graph.path, parameters, max_batch_size=64), task.problem
    examples = problem.asked(task.dev.examples[:7])
    read = [problem.to_example(problem.to_texts(example)) for example in examples]
    assert read == list(examples)
    (tensors,) = ask(served, read)
    served.close()
    assert not isinstance(tensors, Refusal)
    config = model_config(graph.card, ServeConfig())
    *outputs, tokens, truncated = config.output
    assert (tokens.name, truncated.name) == (TOKENS, TRUNCATED)
    assert [output.name for output in outputs] == list(tensors)
    for output in outputs:
        shape = tensors[output.name].shape[1:]
        assert len(shape) == len(output.dims)
        assert all(dim in (-1, size) for dim, size in zip(output.dims, shape, strict=True))
    local = open_classifier(graph)
    found = predict_outputs(local, examples)
    for row, (example, own) in enumerate(zip(examples, found, strict=True)):
        answer = problem.read_response(tensors, row, example)
        assert same(answer["label"], named(own, example, local))
        logits = problem.logits_at(own.places, answer["logits"])
        assert logits == pytest.approx(own.logits, abs=1e-3)
        scores = answer["score"] if problem.heads else {"": answer["score"]}
        for score in map(np.array, (each for each in scores.values() if each is not None)):
            assert np.all((score > 0) & (score <= 1))


@ONE_OF_HEADS
def test_rows_of_a_file_are_scored(graph: Artifact, task: Task, tmp_path: Path) -> None:
    """Each form has the same, and it is what the model says of each text alone."""
    problem, examples = task.problem, task.problem.asked(task.dev.examples[:12])[:12]
    texts = [problem.to_texts(each) for each in examples]
    rows = [(first, others) for first, *others in texts] if problem.takes_list else texts
    columns = problem.asked_columns(task.text_columns)
    source, found = tmp_path / "rows.jsonl", tmp_path / "jsonl"
    named_rows = [dict(zip(columns, row, strict=True)) for row in rows]
    source.write_text("\n".join(map(json.dumps, named_rows)))
    for form in ("jsonl", "parquet"):
        bertender.score(graph, source, out=tmp_path / form, format=form, texts_per_part=8)
    parts = sorted(found.glob("part-*"))
    scored = [json.loads(line) for path in parts for line in path.open()]
    table = pyarrow.dataset.dataset(tmp_path / "parquet", format="parquet").to_table()
    assert len(parts) == 2 and table.to_pylist() == scored
    local = open_classifier(graph)
    for row, source_row, example in zip(scored, named_rows, examples, strict=True):
        assert source_row.items() <= row.items()
        (own,) = local.outputs([example])
        if problem.gives_vectors:
            assert row["embedding"] == pytest.approx(own.logits[0].tolist(), abs=1e-4)
            continue
        answer = named(own, example, local)
        answers = answer if problem.heads else {"": answer}
        for head, each in answers.items():
            predicted = row[f"{head}_predicted" if head else "predicted"]
            assert same(predicted, list(each) if isinstance(each, tuple) else each)


def test_what_is_no_sentence_is_refused_before_it_is_sent() -> None:
    problem = TOKEN_CLASSIFICATION
    assert problem.to_texts(("New York is",)) == ("New York is",)
    with pytest.raises(DataError, match=r"has the character '\\x1f'"):
        problem.to_texts(("New York", "a\x1fb"))
    with pytest.raises(DataError, match="2 texts, and a tagger reads one sentence"):
        problem.to_example(("New York is", "large"))


@pytest.mark.parametrize(
    "words", [("New\xa0York", "is"), ("10 000", "\u200b", "in"), ("in", "a b")]
)
def test_words_with_white_space_arrive_as_they_are(words: tuple[str, ...]) -> None:
    problem = TOKEN_CLASSIFICATION
    (text,) = problem.to_texts(words)
    assert problem.to_example((text,)) == words
    assert text.split() == [part for word in words for part in word.split()], "to a server before"


LIMITED = [
    name
    for name, stage in STAGES.items()
    if stage.problem_types is not None and TAGGING.problem_type not in stage.problem_types
]


@pytest.mark.parametrize("name", LIMITED)
def test_a_stage_that_labels_texts_alone_refuses_others(name: str, tmp_path: Path) -> None:
    stage = STAGES[name]
    with pytest.raises(ConfigError, match=rf"'{name}' takes tasks of 'single_label.*'token_class"):
        stage.run([], TAGGING, stage.config(), tmp_path / "out")


def test_a_task_of_another_problem_type_is_refused(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    other = next(each for each in TASKS.values() if each.problem_type != task.problem_type)
    for refused in (
        lambda: export(teacher, other, ExportConfig(), tmp_path / "out"),
        lambda: verify(teacher, teacher, other, VerifyConfig(), failures_if_quantized),
        lambda: distill(teacher, other, DistillConfig(), tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match=task.problem_type):
            refused()
    assert not any(tmp_path.iterdir())


def test_models_of_two_problem_types_are_not_compared(teacher: Artifact, task: Task) -> None:
    other = next(name for name in PROBLEMS if name != task.problem_type)
    record = teacher.card.task.model_copy(update={"problem_type": other})
    candidate = replace(teacher, card=teacher.card.model_copy(update={"task": record}))
    with pytest.raises(ConfigError, match=f"for '{task.problem_type}' and .* for '{other}'"):
        verify(teacher, candidate, task, VerifyConfig(), failures_if_quantized)


@pytest.mark.parametrize("module", ["bertender.problems", "bertender.metrics", "serve.client"])
def test_no_torch_in_a_fresh_process(module: str) -> None:
    subprocess.run([sys.executable, "-c", NO_TORCH.format(module=module)], check=True)


def test_the_backend_of_words_loads_no_torch() -> None:
    """Of transformers it needs the tokenizers alone, as `serve` starts it."""
    command = [sys.executable, "-c", NO_TORCH.format(module="bertender.text.batch")]
    subprocess.run(command, env={**os.environ, "USE_TORCH": "0"}, check=True)


def test_the_client_loads_no_transformers() -> None:
    code = "import serve.client, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_tokenizer_says_where_words_begin(teacher: Artifact, task: Task) -> None:
    batch = task.problem.encoder(load_tokenizer(teacher.path))(task.dev.examples[:3])
    assert (batch.words is not None) == head_of(task.problem).per_token
