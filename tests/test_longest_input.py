"""The longest input of a model, from its training to the endpoint.

What each text is lies in its first tokens, and all that follows says the opposite, so that a reader
that goes on at the 17th predicts the wrong label.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import bertender
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.comparison.table import comparison_lines
from bertender.core.artifact import Artifact, read_golden
from bertender.core.card import read_card
from bertender.core.errors import ConfigError
from bertender.models.classifier import open_classifier
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Split, Task
from serve.backend.opening import open_served_model
from serve.config import BackendParameters
from serve.deploy import readable
from tests.serve.asking import logits_of
from tests.toy_models import save_encoder
from tests.toys import FRUIT, TOOLS

LENGTH = 16
FIRST, AFTER = 14, 40
SETTINGS = {"epochs": 8, "learning_rate": 3e-3, "batch_size": 16, "precision": "fp32"}


@pytest.fixture(scope="module")
def contrary() -> Task:
    """Fruit, and then more tools; or the other way round."""
    generator = random.Random(3)

    def split(size: int) -> Split:
        examples, labels = [], []
        for row in range(size):
            own, other = (FRUIT, TOOLS) if row % 2 else (TOOLS, FRUIT)
            words = generator.choices(own, k=FIRST) + generator.choices(other, k=AFTER)
            examples.append((" ".join(words),))
            labels.append(row % 2)
        return Split(tuple(examples), tuple(labels))

    return Task("contrary", ("tool", "fruit"), "accuracy", ("text",), split(96), split(32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("short")


@pytest.fixture(scope="module")
def short(contrary: Task, folder: Path) -> Artifact:
    """A classifier of the first 16 tokens."""
    encoder = save_encoder("bert", folder / "encoder")
    return bertender.finetune(
        contrary, out=folder / "short", teacher=encoder, max_length=LENGTH, **SETTINGS
    )


@pytest.fixture(scope="module")
def graph(short: Artifact, contrary: Task, folder: Path) -> Artifact:
    return bertender.export(short, contrary, out=folder / "onnx")


def labels(artifact: Artifact, task: Task, **settings: int) -> list[int]:
    logits = open_classifier(artifact, **settings).logits(task.dev.examples)
    return np.asarray(logits).argmax(axis=1).tolist()


def test_training_is_scored_as_all_read_after_it(short: Artifact, contrary: Task) -> None:
    assert short.card.findings.scores.score == 1.0
    assert labels(short, contrary) == list(contrary.dev.label_ids)
    assert labels(short, contrary, max_length=60) != list(contrary.dev.label_ids)


def test_card_and_tokenizer_have_it(short: Artifact, graph: Artifact) -> None:
    for artifact in (short, graph):
        assert artifact.card.max_length == LENGTH
        assert AutoTokenizer.from_pretrained(artifact.path).model_max_length == LENGTH
    lengths = short.card.findings.lengths
    assert (lengths.training.longer, lengths.held_out.longer) == (96, 32)
    assert lengths.held_out.longest == FIRST + AFTER + 2


MAKERS: dict[str, Callable[[Artifact, Artifact, Task, Path], Artifact]] = {
    "export": lambda short, graph, task, out: graph,
    "quantize": lambda short, graph, task, out: bertender.quantize(
        graph, task, out=out, scheme="dynamic", max_drop=100.0
    ),
    "prune": lambda short, graph, task, out: bertender.prune(
        short, task, out=out, heads=0.25, epochs=1, rounds=1
    ),
    "distill": lambda short, graph, task, out: bertender.distill(
        short, task, out=out, method="distilbert", layers=2, **SETTINGS
    ),
    "distill, fewer tokens": lambda short, graph, task, out: bertender.distill(
        short, task, out=out, method="pkd", layers=2, vocab_size=200, **SETTINGS
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_made_of_it_reads_no_more(
    maker: str, short: Artifact, graph: Artifact, contrary: Task, tmp_path: Path
) -> None:
    made = MAKERS[maker](short, graph, contrary, tmp_path / "out")
    classifier = open_classifier(made)
    batch = classifier.encode(contrary.dev.examples)
    assert batch.arrays["input_ids"].shape[1] == LENGTH == made.card.max_length
    assert labels(made, contrary) == list(contrary.dev.label_ids)


def limits(**settings: int) -> BackendParameters:
    return BackendParameters(tokens_per_bucket=256, threads=1, **settings)


def served(graph: Artifact, **settings: int) -> Callable[[Sequence[tuple[str, ...]]], list[int]]:
    model = open_served_model(graph.path, limits(**settings), max_batch_size=64)
    return lambda examples: logits_of(model, examples).argmax(axis=1).tolist()


def test_an_endpoint_reads_it_unless_told_otherwise(graph: Artifact, contrary: Task) -> None:
    right, examples = list(contrary.dev.label_ids), contrary.dev.examples
    assert served(graph)(examples) == right
    assert served(graph, max_length=60)(examples) != right


def test_golden_texts_of_a_server_that_reads_more(graph: Artifact) -> None:
    golden = read_golden(graph)
    assert len(readable(golden, SINGLE_LABEL, limits(), LENGTH)) == len(golden.texts)
    with pytest.raises(bertender.BertenderError, match="no golden text"):
        readable(golden, SINGLE_LABEL, limits(max_length=60), LENGTH)


def test_a_comparison_says_what_was_cut(short: Artifact, graph: Artifact, contrary: Task) -> None:
    config = CompareConfig(
        processes=1, rounds=2, single_texts=2, batch_size=2, warmup_rounds=0, threads=1, noisy=True
    )
    comparison = compare([short, graph], contrary, config)
    assert [row.score.value for row in comparison.rows] == [1.0, 1.0]
    said = "`short`, `onnx`: 32 of 32 held-out texts are longer than 16 tokens and were cut; the "
    assert any(line.startswith(said) for line in comparison_lines(comparison))


def test_no_more_than_the_model_has_positions_for(
    short: Artifact, graph: Artifact, contrary: Task, tmp_path: Path
) -> None:
    for artifact in (short, graph):
        with pytest.raises(ConfigError, match="max_length=65: the model has positions for 64"):
            open_classifier(artifact, max_length=65)
    for make in (bertender.distill, bertender.prune):
        more = {"heads": 0.5} if make is bertender.prune else {}
        with pytest.raises(ConfigError, match="max_length=65: the model has positions for 64"):
            make(short, contrary, out=tmp_path / "out", max_length=65, **more)


def test_a_new_task_is_not_cut_as_the_last_one_was(
    short: Artifact, contrary: Task, tmp_path: Path
) -> None:
    again = bertender.finetune(contrary, out=tmp_path / "again", teacher=short.path, epochs=1)
    assert again.card.max_length == 64


def test_an_earlier_card_has_none(short: Artifact, tmp_path: Path) -> None:
    card = json.loads(short.card.model_dump_json())
    del card["max_length"]
    (tmp_path / "artifact.json").write_text(json.dumps(card))
    assert read_card(tmp_path).max_length is None
