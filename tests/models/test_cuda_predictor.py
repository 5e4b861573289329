"""The runtime of NVIDIA GPUs, as far as a machine without one can tell; see also test_runtimes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

import bertender
from bertender.comparison.rows import timed_models
from bertender.compression.config import CompressConfig
from bertender.core import hardware
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError
from bertender.core.hardware import gpu, gpu_problem
from bertender.models.classifier import onnx_file
from bertender.models.runtimes import RUNTIMES, Runtime, check_installed, check_used, suits
from bertender.tasks.task import Task
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from serve.config import ServeCommandConfig
from serve.repository import write_repository

CUDA = "onnxruntime-cuda"
PROVIDER = "CUDAExecutionProvider"


@pytest.fixture
def graph(plain_export: Any) -> Path:
    artifact: Artifact = plain_export("bert")[1]
    return onnx_file(artifact)


def driver(**results: int) -> Callable[[str], Any]:
    """A driver whose calls return these numbers, 0 otherwise."""

    def get_name(buffer: Any, length: int, device: Any) -> int:
        buffer.value = b"NVIDIA H100"
        return results.get("cuDeviceGetName", 0)

    library = SimpleNamespace(
        cuInit=lambda flags: results.get("cuInit", 0),
        cuDeviceGet=lambda device, number: results.get("cuDeviceGet", 0),
        cuDeviceGetName=get_name,
    )
    return lambda name: library


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what puts a driver in place."""

    def put(**results: int) -> None:
        monkeypatch.setattr(ctypes, "CDLL", driver(**results))
        gpu.cache_clear()

    yield put
    gpu.cache_clear()


def test_the_driver_names_the_gpu(with_driver: Callable[..., None]) -> None:
    with_driver()
    assert gpu().name == "NVIDIA H100" and not gpu_problem()


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGet", "cuDeviceGetName"])
def test_a_gpu_that_cannot_be_used_is_refused_with_what_failed(
    call: str, graph: Path, with_driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(**{call: 803})
    monkeypatch.setattr(Runtime, "version", "1.0")
    failed = f"needs an NVIDIA GPU .*: {call} of the driver returns 803"
    with pytest.raises(RuntimeMissingError, match=rf"{failed}\. Use another: onnxruntime, "):
        check_installed(CUDA)
    with pytest.raises(RuntimeMissingError, match=rf"{failed}\. Use runtime 'onnxruntime'"):
        RUNTIMES[CUDA].open(graph)


def test_without_the_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "DRIVER", "libcuda-that-is-not-there.so.1")
    assert gpu.__wrapped__().failure == "libcuda-that-is-not-there.so.1 cannot be loaded"


def test_a_package_for_the_cpu_is_named_with_the_other(
    graph: Path, with_driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeMissingError, match=r"for the CPU alone.*pip install 'onnxruntime-"):
        RUNTIMES[CUDA].open(graph)
    monkeypatch.setattr(Runtime, "version", "1.0")
    check_installed(CUDA)


def test_a_session_that_fell_back_to_the_cpu_is_not_taken(
    graph: Path, with_driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [PROVIDER])
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **settings: session)
    with pytest.raises(ModelError, match=r"cannot load its CUDA provider .*\[cuda,cudnn\]"):
        RUNTIMES[CUDA].open(graph, 1)


def test_a_provider_that_fails_is_an_error_in_its_own_words(
    graph: Path,
    with_driver: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_driver()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [PROVIDER])
    asked: list[Any] = []

    def session(path: str, options: Any, **settings: Any) -> Any:
        asked.append(settings)
        raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    with pytest.raises(ModelError, match=r"CUBLAS_STATUS_ALLOC_FAILED.*use runtime 'onnxruntime'"):
        RUNTIMES[CUDA].open(graph, 1)
    assert asked[0]["providers"] == [(PROVIDER, {"use_tf32": "0"}), "CPUExecutionProvider"]
    assert asked[0]["enable_fallback"] == 0, "ONNX Runtime would try once more, on the CPU"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "settings"),
    [(QuantizeConfig, {"runtime": CUDA}), (CompressConfig, {"runtimes": (CUDA,)})],
)
def test_nothing_is_quantized_for_it(config: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="back into floats"):
        config.parse({"max_mb": 10, **settings} if config is CompressConfig else settings)


def test_of_quantized_artifacts_no_row_is_compared_on_it(
    plain_export: Any, task: Task, tmp_path: Path
) -> None:
    source, exported = plain_export("bert")
    small = quantize(exported, task, QuantizeConfig(scheme="dynamic"), tmp_path / "small")
    assert not suits(CUDA, small) and suits(CUDA, exported)
    rows = timed_models([source, exported, small], ["onnxruntime", CUDA])
    assert [(row.artifact.name, row.runtime) for row in rows] == [
        ("source", "onnxruntime"),
        ("onnx", "onnxruntime"),
        ("onnx", CUDA),
        ("small", "onnxruntime"),
    ]
    message = rf"runtime={CUDA} multiplies no 8-bit integers, and .*small is of precision int8"
    with pytest.raises(ConfigError, match=message):
        bertender.open_model(small, runtime=CUDA)
    with pytest.raises(ConfigError, match=message):
        check_used([exported, small], CUDA)
    with pytest.raises(ConfigError, match=message):
        check_used([small], "onnxruntime", CUDA)
    check_used([exported, small], "onnxruntime", CUDA)
    with pytest.raises(ConfigError, match=message):
        write_repository(small, tmp_path / "repository", ServeCommandConfig(runtime=CUDA))


def test_a_float16_file_is_not_timed_in_float32_but_for_the_first(plain_export: Any) -> None:
    _, exported = plain_export("bert")
    card = exported.card.model_copy(update={"precision": "float16"})
    half = replace(exported, path=exported.path.parent / "half", card=card)

    def rows(*artifacts: Artifact) -> list[tuple[str, str]]:
        timed = timed_models(artifacts, ["onnxruntime", CUDA])
        return [(row.artifact.name, row.runtime) for row in timed]

    whole = [("onnx", "onnxruntime"), ("onnx", CUDA)]
    assert rows(exported, half) == [*whole, ("half", CUDA)]
    assert rows(half) == [("half", "onnxruntime"), ("half", CUDA)], "both were asked for"
    assert rows(half, exported) == [*rows(half), *whole], "the first row is what others are over"


def test_another_package_may_bring_the_same_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "onnxruntime":
            raise metadata.PackageNotFoundError(package)
        return "1.31.1"

    monkeypatch.setattr(metadata, "version", version)
    assert RUNTIMES["onnxruntime"].version == RUNTIMES[CUDA].version == "1.31.1"
