"""The served model answers as the local one on a whole held-out split, on the real Triton."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertender.core.artifact import Artifact, copy_companions
from bertender.core.errors import ServingError
from bertender.core.findings import Findings
from bertender.core.machine import data_directory
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.own_models import OWN_MODELS
from bertender.problems.ranking import RANKING
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.text.batch import Batch, Example
from distill.pretraining.vocabularies import train_wordpiece
from export.config import ExportConfig
from export.exporter import export
from quantize.post_training import write_dynamic
from serve import check
from serve.client.endpoint import Endpoint
from tests.fake_predictor import FakePredictor
from tests.quantize.contexts import context_of
from tests.served import ask_one_by_one, one_by_one, served
from tests.toy_models import save_artifact, tiny_classifier
from tests.toys import new_toy, tiny_bert, toy_task, write_model

CLIENTS = 4


def sst2() -> Task:
    return load_task(TaskConfig(task="sst2", max_train=600))


@dataclass(frozen=True)
class Models:
    """A torch model whose logits spread, and its two ONNX forms."""

    task: Task
    artifacts: dict[str, Artifact]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Over SST-2 where it is at hand, else over the toy task."""
    task = sst2() if data_directory() else toy_task()
    folder = tmp_path_factory.mktemp("models")
    exported = export(spread_model(task, folder / "m"), task, ExportConfig(), folder / "onnx")
    return Models(task, {"float32": exported, "int8": quantized(exported, folder / "int8")})


def spread_model(task: Task, out: Path) -> Artifact:
    """An untrained model whose logits differ from text to text, about half for each label."""
    texts = [text for (text,) in (*task.train.examples, *task.dev.examples)]
    tokenizer = train_wordpiece(texts, 600, 64)
    model = tiny_bert(len(tokenizer), task.labels)
    dev = tokenizer(texts[-len(task.dev) :], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        for weights in (parameter for parameter in model.parameters() if parameter.ndim > 1):
            weights.mul_(8)
        model.classifier.weight.mul_(10)
        model.classifier.bias.sub_(model(**dev).logits.mean(dim=0))
    return write_model(model, tokenizer, task, out)


def quantized(source: Artifact, out: Path) -> Artifact:
    """The 8-bit form, without the gate: a model that nobody has trained need not pass it."""
    with new_toy(
        out,
        kind="onnx",
        family=source.card.family,
        task=source.card.task,
        stage="quantize",
        precision="int8",
    ) as draft:
        copy_companions(source, draft.directory)
        context = context_of(source, toy_task(), draft.directory)
        write_dynamic(context, draft.directory / ONNX_NAME)
        draft.findings = Findings(parameters=source.card.findings.parameters)
    return Artifact.load(out)


def ask(url: str, examples: Sequence[Example]) -> tuple[list[str], np.ndarray]:
    """Labels and logits (texts, labels) of an endpoint."""
    with Endpoint(url) as endpoint:
        answers = endpoint.classify(examples)
    return [answer.label for answer in answers], np.array([answer.logits for answer in answers])


def assert_texts_matter(labels: Sequence[str], logits: np.ndarray) -> None:
    """Equal answers to all texts would prove nothing."""
    assert logits.std(axis=0).min() > 0.4
    assert 0.3 < labels.count(labels[0]) / len(labels) < 0.7


@pytest.mark.server
@pytest.mark.slow
def test_float32_answers_in_batches_are_the_local_ones(models: Models, tmp_path: Path) -> None:
    examples = models.task.dev.examples
    labels, logits = one_by_one(open_classifier(models.artifacts["float32"], threads=1), examples)
    assert_texts_matter(labels, logits)
    with served(models.artifacts["float32"], tmp_path) as server:
        for url in (server.http_url, server.grpc_url):
            answered, found = ask(url, examples)
            assert answered == labels
            np.testing.assert_allclose(found, logits, atol=1e-4)
        answered, found = ask_at_once(server.http_url, examples)
        assert answered == labels
        np.testing.assert_allclose(found, logits, atol=1e-4)


def ask_at_once(url: str, examples: Sequence[Example]) -> tuple[list[str], np.ndarray]:
    """Ask as several clients at the same time, whose texts Triton merges into batches."""
    shares = [examples[client::CLIENTS] for client in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        parts = list(pool.map(lambda share: ask_one_by_one(url, share), shares))
    labels, logits = [""] * len(examples), np.empty((len(examples), parts[0][1].shape[1]))
    for client, (answered, found) in enumerate(parts):
        labels[client::CLIENTS] = answered
        logits[client::CLIENTS] = found
    return labels, logits


@pytest.mark.server
@pytest.mark.slow
def test_int8_answers_one_by_one_are_the_local_ones(models: Models, tmp_path: Path) -> None:
    """Dynamic quantization scales a batch as a whole, so only single texts answer exactly."""
    examples = models.task.dev.examples
    labels, logits = one_by_one(open_classifier(models.artifacts["int8"], threads=1), examples)
    assert_texts_matter(labels, logits)
    with served(models.artifacts["int8"], tmp_path) as server:
        answered, found = ask_one_by_one(server.http_url, examples)
    assert answered == labels
    np.testing.assert_allclose(found, logits, atol=1e-6)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("model_type", OWN_MODELS)
def test_an_architecture_of_our_own_is_served(model_type: str, tmp_path: Path) -> None:
    task = toy_task()
    source = save_artifact(tiny_classifier(model_type), task, tmp_path / "model")
    exported = export(source, task, ExportConfig(parity_texts=8), tmp_path / "onnx")
    int8 = quantized(exported, tmp_path / "int8")
    labels, logits = one_by_one(open_classifier(int8, threads=1), task.dev.examples)
    assert logits.std(axis=0).min() > 1e-3, "equal answers to all texts would prove nothing"
    with served(int8, tmp_path) as server:
        answered, found = ask_one_by_one(server.http_url, task.dev.examples)
    assert answered == labels
    np.testing.assert_allclose(found, logits, atol=1e-6)


class OtherModel:
    """A local model that does not answer as the served one does."""

    def __init__(self, artifact: Artifact, shift: float, labels: tuple[str, ...]) -> None:
        self.true = open_classifier(artifact, threads=1)
        predictor = FakePredictor(lambda batch: self.true.logits(batch.examples) + shift)
        self.classifier = replace(self.true, predictor=predictor, labels=labels)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    task, folder = toy_task(), tmp_path_factory.mktemp("checked")
    source = spread_model(task, folder / "model")
    return export(source, task, ExportConfig(parity_texts=8), folder / "onnx")


@pytest.mark.parametrize(
    ("shift", "turned", "said"),
    [
        (0.0, False, None),
        (0.012, False, "differ from the local model's by 0.012"),
        (float("nan"), False, "differ from the local model's by nan"),
        (0.0, True, "its own logits are of"),
    ],
    ids=["equal", "shifted", "nan", "turned labels"],
)
def test_an_endpoint_that_answers_otherwise_is_refused(
    shift: float, turned: bool, said: str | None, toy: Artifact
) -> None:
    examples = toy_task().dev.examples[:3]
    true = open_classifier(toy, threads=1)
    labels, logits = one_by_one(true, examples)
    served_rows = [
        check.Served(
            text=example,
            answer=check.Classification(label=label, score=0.5, logits=tuple(row.tolist())),
        )
        for example, label, row in zip(examples, labels, logits, strict=True)
    ]
    local = OtherModel(toy, shift, true.labels[::-1] if turned else true.labels).classifier
    if said is None:
        difference = check._difference(local, served_rows)
        assert difference < 1e-6
        found = check.EndpointCheck(served=tuple(served_rows), max_abs_difference=difference)
        assert check.EndpointCheck.model_validate_json(found.model_dump_json()) == found
        return
    with pytest.raises(ServingError, match=said):
        check._difference(local, served_rows)


def test_rows_of_an_example_run_as_they_do_behind_an_endpoint() -> None:
    """Dynamic 8 bits have one scale for all rows of a run, so other runs have other logits."""
    example = ("query", *(f"passage {number}" for number in range(5)))
    tokens = {"attention_mask": np.ones((5, 100), dtype=np.int64)}
    batch = Batch((example,), tokens, owners=np.zeros(5, dtype=np.int64))

    def rows_together(rows: Batch) -> np.ndarray:
        return np.full((len(rows), 1), len(rows), dtype=np.float32)

    predictor = FakePredictor(rows_together)
    local = Classifier("ranker", (), lambda examples: batch, predictor, 0, RANKING)
    answer = check.Classification(label=tuple("12340"), score=None, logits=(1, 2, 2, 2, 2))
    served_rows, own = check.served_outputs(local, example, [answer])
    np.testing.assert_array_equal(served_rows.logits, own.logits)
