"""Tiny ONNX artifacts, and the running servers that tests share, one for each kind of settings.

A test that ends its server, or that needs other settings, starts one of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.findings import Findings
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from serve.door.callers import digest
from serve.server.server import Server
from tests.cli.fakes import endpoint
from tests.conftest import Once
from tests.serve.certificates import SECRET, make_certificate
from tests.serve.layouts import ENCODER_RUNTIME, lay_out_with_encoders
from tests.serve.marked_model import BATCH, QUEUE, marked_server
from tests.served import served as running
from tests.toys import new_toy, toy_task

__all__ = ["endpoint"]


def write_onnx(teacher: Artifact, out: Path, task: TaskRecord) -> Artifact:
    """Export the tiny teacher, said to have been made for `task`."""
    model = AutoModelForSequenceClassification.from_pretrained(
        teacher.path, attn_implementation="eager"
    )
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 5, dtype=torch.int64)
    with new_toy(out, kind="onnx", family="bert", task=task, stage="export") as draft:
        model.config.save_pretrained(draft.directory)
        load_tokenizer(teacher.path).save_pretrained(draft.directory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing, which is right for these shapes
            torch.onnx.export(
                model,
                (ids, torch.ones_like(ids), torch.zeros_like(ids)),
                str(draft.directory / "model.onnx"),
                input_names=names,
                output_names=["logits"],
                dynamic_axes={name: {0: "batch", 1: "seq"} for name in names},
                dynamo=False,
            )
        draft.findings = Findings(parameters=model.num_parameters())
    return Artifact.load(out)


@pytest.fixture(scope="session")
def onnx_artifact(once: Once, teacher: Artifact) -> Artifact:
    def fill(folder: Path) -> None:
        write_onnx(teacher, folder / "student-onnx", teacher.card.task)

    return Artifact.load(once("student-onnx", fill) / "student-onnx")


@pytest.fixture(scope="session")
def pair_artifact(once: Once, teacher: Artifact) -> Artifact:
    task = teacher.card.task.model_copy(update={"text_columns": ("first", "second")})

    def fill(folder: Path) -> None:
        write_onnx(teacher, folder / "pair-onnx", task)

    return Artifact.load(once("pair-onnx", fill) / "pair-onnx")


@pytest.fixture(scope="session")
def local(onnx_artifact: Artifact) -> Classifier:
    """The same model in this process: what the endpoint must answer."""
    return open_classifier(onnx_artifact, threads=1)


@pytest.fixture(scope="session")
def texts() -> tuple[Example, ...]:
    """A few hundred toy texts of mixed lengths, some longer than the model takes."""
    long = (("saw " * 90,), ("apple melon " * 40,), ("ß 漢字 🍐 pear",))
    return (*toy_task(train_size=297).train.examples, *long)


def lasting(
    start: Callable[[str], AbstractContextManager[Server]],
) -> Iterator[Callable[[str], Server]]:
    """Start each server where it is first asked for: that takes seconds, and it lasts for all
    files of this folder, not beyond: a server that nobody asks costs time too."""
    with ExitStack() as servers:
        yield cache(lambda name: servers.enter_context(start(name)))


@pytest.fixture(scope="package")
def engines(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Server]]:
    """The server of an engine."""

    @contextmanager
    def start(engine: str) -> Iterator[Server]:
        settings = {"max_batch_size": 16, "server": engine, "page": True}
        folder = tmp_path_factory.mktemp("served")
        with ExitStack() as stack:
            with pytest.MonkeyPatch.context() as environment:
                if engine == "embedded":  # an index may have no wheel of protobuf with its C
                    environment.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
                server = stack.enter_context(running(onnx_artifact, folder, **settings))
            yield server

    yield from lasting(start)


@pytest.fixture(scope="package", params=["triton", "embedded"])
def served(engines: Callable[[str], Server], request: pytest.FixtureRequest) -> Server:
    """A running server of the tiny ONNX model, on free ports, with a page, and with each engine
    behind its door."""
    return engines(request.param)


@pytest.fixture(scope="package")
def administered(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A running server whose administrative routes are open to the token in a file."""
    folder = tmp_path_factory.mktemp("administered")
    files = {"admin_token_file": folder / "token", "log_file": folder / "server.log"}
    with running(onnx_artifact, folder, **files) as server:
        yield server


@pytest.fixture(scope="package")
def guarded(
    onnx_artifact: Artifact, tls: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A running server with TLS, and a key for the caller `shop`."""
    folder = tmp_path_factory.mktemp("guarded")
    files = {"tls_certificate": tls[0], "tls_key": tls[1], "api_keys": folder / "api-keys"}
    files["api_keys"].write_text(f"shop {digest(SECRET)}\n", encoding="ascii")
    with running(onnx_artifact, folder, **files) as server:
        yield server


@pytest.fixture(scope="package")
def marked_runtimes(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Server]]:
    """The marked server of a runtime."""

    def start(runtime: str) -> AbstractContextManager[Server]:
        folder = tmp_path_factory.mktemp("marked")
        settings = {"max_batch_size": BATCH, "max_queue_texts": QUEUE, "queue_timeout_ms": 3000}
        settings |= {"runtime": runtime}
        if runtime == ENCODER_RUNTIME:
            settings |= {"tritonserver": lay_out_with_encoders(folder / "root")}
        return marked_server(onnx_artifact, folder, **settings)

    yield from lasting(start)


@pytest.fixture(scope="package", params=[DEFAULT_RUNTIME, ENCODER_RUNTIME])
def marked(marked_runtimes: Callable[[str], Server], request: pytest.FixtureRequest) -> Server:
    """A running server with a short queue, whose runs obey marked words."""
    return marked_runtimes(request.param)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of this machine, which signs itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    return tmp_path / "key"
