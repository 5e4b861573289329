"""A server of models of each kind of problem, asked by each client, measured and deployed to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bertender
from bertender.comparison.accuracy import predict_outputs
from bertender.core.artifact import Artifact
from bertender.models.classifier import open_classifier
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.ranking import RANKING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task
from bertender.text.batch import Example
from serve.check import LARGEST_DIFFERENCE, largest_difference, served_outputs
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.server.server import Server, serving
from tests.front import succeed
from tests.problems.kinds import eight_bits, graph, graph_of, named, same, task, teacher
from tests.quick import quick
from tests.serve.layouts import ENCODER_RUNTIME, lay_out_with_encoders
from tests.served import ANY_PORTS
from tests.toy_heads import JOINT
from tests.toy_kinds import ALL, write_asked

__all__ = ["eight_bits", "graph", "graph_of", "task", "teacher"]

pytestmark = pytest.mark.server

NAMES = {problem_type: f"kind-{number}" for number, problem_type in enumerate(ALL)}
"""Of the models on the server, by type of problem."""
SHORT = ("--concurrency", "1", "--warmup-s", "0.1", "--noisy")


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "token"


@pytest.fixture(scope="module")
def server(graph_of: Callable[[str], Artifact], token: Path) -> Iterator[Server]:
    """One for all kinds, which starts once."""
    # several texts of up to 64 KiB wait for each model: little of the shared memory
    limits = {"max_batch_size": 8, "max_queue_texts": 8, "max_text_bytes": 65536}
    config = ServeConfig(
        **ANY_PORTS, **limits, threads_per_instance=1, admin_token_file=token, ready_timeout_s=300
    )
    with serving({name: graph_of(kind) for kind, name in NAMES.items()}, config) as server:
        yield server


def asked_of(task: Task) -> list[Example]:
    return task.problem.asked(task.dev.examples[:3])


def answers_alike(server: Server, model: str, graph: Artifact, task: Task) -> list[Any]:
    """Ask by each client, compare with the model here, and return the answers."""
    examples = asked_of(task)
    several = len(examples[0]) > 1 and not task.problem.labels_words
    texts: Any = examples if several else [" ".join(each) for each in examples]
    answers = bertender.classify(texts, server.http_url, model=model)
    with Endpoint(server.grpc_url, model=model) as endpoint:
        assert [answer.label for answer in endpoint.classify(examples)] == [
            answer.label for answer in answers
        ]
        whole = task.dev.examples[:3]
        stated = [endpoint.classify(task.problem.asked([example])) for example in whole]
    local = open_classifier(graph)
    found = predict_outputs(local, examples)
    pairs = [*map(partial(served_outputs, local), whole, stated)]
    assert largest_difference(pairs) < LARGEST_DIFFERENCE
    for answer, example, own in zip(answers, examples, found, strict=True):
        assert same(answer.label, named(own, example, local))
    return answers


def test_the_real_endpoint_answers_texts_and_examples_alike(
    server: Server, graph: Artifact, task: Task, tmp_path: Path
) -> None:
    """A sentence may come as one text, whatever its words are labelled by."""
    model, examples = NAMES[task.problem_type], asked_of(task)
    answers = answers_alike(server, model, graph, task)
    asked = write_asked(task, examples, tmp_path)
    to_file = ("--output", tmp_path / "answers.jsonl", "--url", server.http_url, "--model", model)
    succeed("classify", "--input", asked, *to_file)
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").open()]
    assert len(rows) == sum(
        len(example) - 1 if task.problem.takes_list else 1 for example in examples
    )
    if not (task.problem.takes_list or task.problem.heads):
        own = [json.loads(answer.model_dump_json())["label"] for answer in answers]
        assert [row.get("label") for row in rows] == own
    load = ("--model", model, "--input", asked, "--duration-s", "0.5", *SHORT)
    succeed("loadtest", server.http_url, *load)


@pytest.mark.parametrize("task", quick(ALL, SINGLE_LABEL.name), indirect=True)
def test_an_encoder_of_triton_answers_alike(graph: Artifact, task: Task, tmp_path: Path) -> None:
    binary = lay_out_with_encoders(tmp_path)
    config = ServeConfig(**ANY_PORTS, runtime=ENCODER_RUNTIME, tritonserver=binary)
    with serving(graph, config) as server:
        answers_alike(server, "classifier", graph, task)


# the last that asks a model: its answers are others afterwards
@pytest.mark.parametrize(
    "task", quick(ALL, QUESTION_ANSWERING.name, RANKING.name, JOINT.problem_type), indirect=True
)
def test_a_version_of_8_bits_takes_its_place(
    server: Server, token: Path, eight_bits: Artifact, task: Task
) -> None:
    to_server = ("--to", server.http_url, "--admin-token-file", token)
    said = succeed("deploy", eight_bits.path, *to_server, "--model", NAMES[task.problem_type])
    assert "version 2 is serving" in said.output


@pytest.mark.slow
def test_tune_asks_a_server_with_texts_of_every_kind(
    graph: Artifact, task: Task, tmp_path: Path
) -> None:
    asked = write_asked(task, asked_of(task), tmp_path)
    one = ("--settings", "one-instance", "--rounds", "3", "--duration-s", "1")
    assert "one-instance" in succeed("tune", graph.path, "--input", asked, *one, *SHORT).output
