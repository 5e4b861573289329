"""Every kind of artifact opens as the same thing, and answers what its own library answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from transformers import BertForMaskedLM, BertForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import Classifier, onnx_classifier, onnx_file, open_classifier
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch, keep_text
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig
from export.config import ExportConfig
from export.exporter import export
from tests.fake_predictor import FakePredictor

PADDING_TOLERANCE = 1e-5
"""Between a text alone and beside longer ones, in fp32."""


@pytest.fixture(scope="module")
def artifacts(
    teacher: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Artifact]:
    """One artifact of each kind."""
    out = tmp_path_factory.mktemp("kinds")
    return {
        "torch": teacher,
        "onnx": export(teacher, task, ExportConfig(), out / "onnx"),
        "bag-of-words": train_bag_of_words(task, BagOfWordsConfig(), out / "bag"),
    }


@pytest.mark.parametrize("kind", ("torch", "onnx", "bag-of-words"))
def test_every_kind_opens(kind: str, artifacts: dict[str, Artifact], task: Task) -> None:
    classifier = open_classifier(artifacts[kind])
    logits = classifier.logits(task.dev.examples)
    assert logits.shape == (len(task.dev), 2) and logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert classifier.labels == task.labels and classifier.name == artifacts[kind].name
    assert classifier.parameters == artifacts[kind].card.findings.parameters


@pytest.mark.parametrize("kind", ("torch", "onnx", "bag-of-words"))
def test_neighbours_and_padding_do_not_change_an_answer(
    kind: str, artifacts: dict[str, Artifact], task: Task
) -> None:
    classifier = open_classifier(artifacts[kind])
    together = classifier.logits(task.dev.examples)
    alone = np.concatenate([classifier.logits([example]) for example in task.dev.examples])
    np.testing.assert_allclose(alone, together, atol=PADDING_TOLERANCE)


def test_torch_and_onnx_answer_alike(artifacts: dict[str, Artifact], task: Task) -> None:
    logits = [
        open_classifier(artifacts[kind]).logits(task.dev.examples) for kind in ("torch", "onnx")
    ]
    np.testing.assert_allclose(*logits, atol=1e-5)


def test_torch_answers_as_transformers_does(artifacts: dict[str, Artifact], task: Task) -> None:
    classifier = open_classifier(artifacts["torch"], threads=1)
    model = BertForSequenceClassification.from_pretrained(artifacts["torch"].path).eval()
    batch = classifier.encode(task.dev.examples)
    with torch.inference_mode():
        expected = model(**{name: torch.tensor(array) for name, array in batch.arrays.items()})
    np.testing.assert_array_equal(classifier.predictor.logits(batch), expected.logits)
    assert classifier.parameters == model.num_parameters()


def three_classes(task: Task) -> Task:
    """The toy task with a third label for its longest texts."""

    def relabelled(split: Split) -> Split:
        pairs = zip(split.examples, split.label_ids, strict=True)
        ids = tuple(2 if len(text.split()) > 9 else label for (text,), label in pairs)
        return Split(split.examples, ids)

    return Task(
        "toy3",
        (*task.labels, "long"),
        task.metric,
        task.text_columns,
        relabelled(task.train),
        relabelled(task.dev),
    )


@pytest.mark.parametrize("longest_ngram", [1, 2])
@pytest.mark.parametrize("classes", [2, 3])
def test_bag_of_words_answers_as_scikit_learn_does(
    classes: int, longest_ngram: int, task: Task, tmp_path: Path
) -> None:
    task = task if classes == 2 else three_classes(task)
    config = BagOfWordsConfig(longest_ngram=longest_ngram)
    own = open_classifier(train_bag_of_words(task, config, tmp_path / "bag"))
    theirs = make_pipeline(
        TfidfVectorizer(ngram_range=(1, longest_ngram), sublinear_tf=True),
        LogisticRegression(C=config.inverse_regularisation, max_iter=1000, random_state=0),
    )
    theirs.fit([text for (text,) in task.train.examples], task.train.label_ids)
    texts = [text for (text,) in task.dev.examples]
    probabilities = softmax(own.logits(task.dev.examples), axis=1)
    np.testing.assert_allclose(probabilities, theirs.predict_proba(texts), atol=1e-5)
    assert own.logits([("unknown words only",)]).shape == (1, classes)


def test_onnx_without_an_artifact(artifacts: dict[str, Artifact], task: Task) -> None:
    artifact = artifacts["onnx"]
    assert onnx_file(artifact) == artifact.path / ONNX_NAME and onnx_file(artifact).is_file()
    bare = onnx_classifier(
        artifact.path,
        artifact.card.task,
        name="draft",
        parameters=5,
        threads=1,
        max_length=9,
    )
    assert (bare.name, bare.parameters, bare.encode.max_length) == ("draft", 5, 9)
    short = [("saw drill",), ("plum",)]
    np.testing.assert_array_equal(
        bare.logits(short), open_classifier(artifact, threads=1).logits(short)
    )


def test_fake_predictor_keeps_what_it_was_asked() -> None:
    fake = FakePredictor(lambda batch: np.ones((len(batch), 2), dtype=np.float32))
    classifier = Classifier("fake", ("a", "b"), keep_text, fake, 0)
    assert classifier.logits([("x",), ("y",)]).shape == (2, 2)
    assert fake.batches == [Batch((("x",), ("y",)), {})]


def copied(artifact: Artifact, place: Path) -> Artifact:
    """Copy an artifact to damage the copy; it is read without its digests being checked."""
    shutil.copytree(artifact.path, place)
    return Artifact.load(place, verify=False)


@pytest.mark.parametrize(
    ("kind", "file"),
    [("torch", "model.safetensors"), ("torch", "config.json"), ("onnx", ONNX_NAME)],
)
def test_a_damaged_model(
    kind: str, file: str, artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    artifact = copied(artifacts[kind], tmp_path / "copy")
    (artifact.path / file).write_bytes((artifact.path / file).read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot open"):
        open_classifier(artifact)


def test_an_encoder_without_a_head_is_no_classifier(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    """A head of random weights would answer, and nobody would know."""
    artifact = copied(artifacts["torch"], tmp_path / "copy")
    config = BertForSequenceClassification.from_pretrained(artifact.path).config
    BertForMaskedLM(config).save_pretrained(artifact.path)
    with pytest.raises(ModelError, match=r"not a classifier.*classifier\.weight.*Fine-tune"):
        open_classifier(artifact)


def test_weights_in_a_pickle_are_never_read(artifacts: dict[str, Artifact], tmp_path: Path) -> None:
    artifact = copied(artifacts["torch"], tmp_path / "copy")
    model = BertForSequenceClassification.from_pretrained(artifact.path)
    torch.save(model.state_dict(), artifact.path / "pytorch_model.bin")
    (artifact.path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        open_classifier(artifact)


def test_onnx_predictor_takes_what_its_graph_takes(
    artifacts: dict[str, Artifact], task: Task
) -> None:
    batch = open_classifier(artifacts["onnx"]).encode(task.dev.examples)
    more = Batch(batch.examples, {**batch.arrays, "position_ids": batch.arrays["input_ids"]})
    calm = RUNTIMES["onnxruntime"].open(onnx_file(artifacts["onnx"]), 1, spinning=False)
    np.testing.assert_allclose(calm.logits(more), calm.logits(batch))
    assert set(calm.inputs) <= set(batch.arrays)
