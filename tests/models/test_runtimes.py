"""RUNTIMES: every row gives the logits of the others, on the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError, RuntimeMissingError, UnknownNameError
from bertender.core.machine import BF16_FLAGS
from bertender.gate.judge import TOLERANCES
from bertender.models import runtimes as cpu_flags
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, check_installed, tolerance_in
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from tests.runtimes import ATOL, EVERY_RUNTIME, needs

ARCHITECTURES = ("bert", "distilbert", "mpnet", "modernbert")


@pytest.fixture(scope="module")
def graph(plain_export: Any) -> Artifact:
    artifact: Artifact = plain_export("bert")[1]
    return artifact


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_its_logits_are_those_of_the_model(
    runtime: str, architecture: str, plain_export: Any, task: Task
) -> None:
    source, artifact = plain_export(architecture)
    examples = [*task.dev.examples, ("plum",)]  # of mixed lengths: with padding
    opened = open_classifier(artifact, threads=1, runtime=runtime)
    expected = open_classifier(source).logits(examples)
    atol = ATOL[RUNTIMES[runtime].float_type]
    np.testing.assert_allclose(opened.logits(examples), expected, atol=atol)
    alone = np.concatenate([opened.logits([example]) for example in examples])
    np.testing.assert_allclose(alone, expected, atol=atol)


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_it_takes_what_its_graph_takes(runtime: str, graph: Artifact, task: Task) -> None:
    batch = open_classifier(graph).encode(task.dev.examples)
    more = Batch(batch.examples, {**batch.arrays, "position_ids": batch.arrays["input_ids"]})
    calm = RUNTIMES[runtime].open(onnx_file(graph), 1, spinning=False)
    first = calm.logits(batch)
    np.testing.assert_allclose(calm.logits(more), first)
    assert set(calm.inputs) <= set(batch.arrays) and first.dtype == np.float32
    before = first.copy()
    calm.logits(Batch(batch.examples, {key: value[::-1] for key, value in batch.arrays.items()}))
    np.testing.assert_array_equal(first, before, "the next batch leaves earlier logits alone")


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_threads_of_a_server_share_it(runtime: str, graph: Artifact, task: Task) -> None:
    opened = open_classifier(graph, threads=1, runtime=runtime)
    batches = [opened.encode([example]) for example in task.dev.examples]
    expected = [opened.predictor.logits(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(opened.predictor.logits, batches), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_a_damaged_graph_is_named_with_what_to_do(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"cannot open .*graph\.onnx: .*export and quantize"):
        RUNTIMES[runtime].open(tmp_path / "graph.onnx")


@needs("openvino")
def test_openvino_takes_the_threads_that_it_is_given(graph: Artifact) -> None:
    for threads, spinning, runs in ((1, True, 1), (2, False, 1), (1, False, 2)):
        opened: Any = RUNTIMES["openvino"].open(
            onnx_file(graph), threads, spinning=spinning, concurrent_runs=runs
        )
        taken = opened.compiled.get_property("INFERENCE_NUM_THREADS")
        assert taken == min(threads * runs, len(os.sched_getaffinity(0)))
        assert opened.compiled.get_property("NUM_STREAMS") == runs
        assert opened.compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"


@needs("openvino")
def test_openvino_takes_the_threads_that_pytorch_takes(
    graph: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for asked, threads in ((0, 2), (1, 1)):
        opened: Any = RUNTIMES["openvino"].open(onnx_file(graph), asked)
        taken = opened.compiled.get_property("INFERENCE_NUM_THREADS")
        assert taken == min(threads, len(os.sched_getaffinity(0)))


@needs("openvino-bf16")
def test_bfloat16_is_what_floats_are_computed_in(graph: Artifact, task: Task) -> None:
    exact, coarse = (
        open_classifier(graph, threads=1, runtime=name) for name in ("openvino", "openvino-bf16")
    )
    predictor: Any = coarse.predictor
    hint = predictor.compiled.get_property("INFERENCE_PRECISION_HINT")
    assert hint.to_string() == "bf16"
    distance = np.abs(coarse.logits(task.dev.examples) - exact.logits(task.dev.examples)).max()
    assert distance > ATOL["float32"], "it would be float32 otherwise"


def test_a_cpu_without_bfloat16_is_named(graph: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "1.0")
    monkeypatch.setattr(cpu_flags, "cpu_facts", lambda: ("a CPU", ("avx2", "avx512f")))
    check_installed(DEFAULT_RUNTIME, "openvino")
    message = r"'openvino-bf16' needs a CPU with avx512_bf16 or amx_bf16.*: onnxruntime, openvino\."
    with pytest.raises(RuntimeMissingError, match=message):
        check_installed("openvino-bf16")
    with pytest.raises(RuntimeMissingError, match=r"has neither\. Use runtime 'openvino'"):
        open_classifier(graph, runtime="openvino-bf16")
    monkeypatch.setattr(cpu_flags, "cpu_facts", lambda: ("a CPU", ("amx_bf16",)))
    check_installed("openvino-bf16")


@pytest.mark.parametrize(
    ("runtime", "precision", "expected"),
    [
        ("onnxruntime", "float32", "float32"),
        ("openvino-bf16", "float32", "bfloat16-activations"),
        ("openvino-bf16", "float16", "bfloat16-activations"),
        ("openvino", "bfloat16", "bfloat16"),
        ("onnxruntime-cuda", "float16", "float16-activations"),
        ("onnxruntime-cuda", "float32", "float32"),
        ("onnxruntime", "float16", "float16"),
        ("openvino-bf16", "int8", "int8"),
        ("triton-onnxruntime", "float32", "float32"),
    ],
)
def test_what_a_runtime_computes_in_has_a_tolerance_of_its_own(
    runtime: str, precision: str, expected: str
) -> None:
    assert tolerance_in(runtime, precision) == expected
    assert expected in TOLERANCES


def test_its_flags_are_those_by_which_training_takes_bfloat16() -> None:
    assert set(RUNTIMES["openvino-bf16"].cpu_flags) == BF16_FLAGS


@needs("openvino")
def test_openvino_is_imported_without_its_telemetry(tmp_path: Path) -> None:
    (tmp_path / "openvino_telemetry.py").write_text("raise SystemExit('an event was sent')")
    code = (
        "import sys; from bertender.models.runtimes import import_openvino; "
        "import_openvino(); assert 'openvino_telemetry' not in sys.modules"
    )
    places = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": places}, check=True
    )


def test_only_the_runtime_that_is_used_is_imported() -> None:
    code = (
        "import sys; import bertender.models.runtimes; "
        "assert not {'onnxruntime', 'openvino', 'torch', 'tokenizers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_runtime_names_the_extra(
    graph: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "openvino":
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(sys.modules, "openvino", None)
    check_installed(DEFAULT_RUNTIME)
    with pytest.raises(RuntimeMissingError, match=r"'bertender\[openvino\]'.*: onnxruntime\."):
        check_installed("openvino")
    with pytest.raises(RuntimeMissingError, match=r"'openvino'.*'bertender\[openvino\]'"):
        open_classifier(graph, runtime="openvino")


def test_an_unknown_runtime_names_the_known_ones(graph: Artifact) -> None:
    message = (
        r"no runtime 'openvin'. Did you mean 'openvino'\? "
        r"Known: onnxruntime, onnxruntime-cuda, openvino, openvino-bf16\."
    )
    with pytest.raises(UnknownNameError, match=message):
        bertender.open_model(graph, runtime="openvin")
