"""The runtime of NVIDIA GPUs, as far as a machine without one can tell; see also test_runtimes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from bertender.compression.config import CompressConfig
from bertender.core import gpu
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError
from bertender.core.gpu import gpu_name
from bertender.measure import runtimes
from bertender.measure.runtimes import check_installed
from bertender.models import cuda_predictor
from bertender.models.opening import onnx_file
from bertender.models.runtimes import RUNTIMES, Runtime
from quantize.quantizer import QuantizeConfig

CUDA = "onnxruntime-cuda"
PROVIDER = "CUDAExecutionProvider"


@pytest.fixture
def graph(plain_export: Any) -> Path:
    artifact: Artifact = plain_export("bert")[1]
    return onnx_file(artifact)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cuda_predictor, runtimes):
        monkeypatch.setattr(module, "gpu_name", lambda: "H100")


def test_without_a_gpu_it_is_refused_before_any_work(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cuda_predictor, runtimes):
        monkeypatch.setattr(module, "gpu_name", lambda: None)
    monkeypatch.setattr(Runtime, "version", "1.0")
    with pytest.raises(RuntimeMissingError, match=r"needs an NVIDIA GPU.*another: onnxruntime, "):
        check_installed(CUDA)
    with pytest.raises(RuntimeMissingError, match="needs an NVIDIA GPU"):
        RUNTIMES[CUDA].open(graph)


@pytest.mark.usefixtures("with_gpu")
def test_a_package_for_the_cpu_is_named_with_the_other(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeMissingError, match=r"for the CPU alone.*pip install 'onnxruntime-"):
        RUNTIMES[CUDA].open(graph)
    monkeypatch.setattr(Runtime, "version", "1.0")
    check_installed(CUDA)


@pytest.mark.usefixtures("with_gpu")
def test_a_session_that_fell_back_to_the_cpu_is_not_taken(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [PROVIDER])
    asked: list[Any] = []
    real = cuda_predictor.create_session

    def created(path: Path, options: Any, providers: Any) -> Any:
        asked.append(providers)
        return real(path, options, ["CPUExecutionProvider"])

    monkeypatch.setattr(cuda_predictor, "create_session", created)
    with pytest.raises(ModelError, match=r"cannot load its CUDA provider .*\[cuda,cudnn\]"):
        RUNTIMES[CUDA].open(graph, 1)
    assert asked == [((PROVIDER, {"use_tf32": "0"}), "CPUExecutionProvider")]


@pytest.mark.parametrize(
    ("config", "settings"),
    [(QuantizeConfig, {"runtime": CUDA}), (CompressConfig, {"runtimes": (CUDA,)})],
)
def test_nothing_is_quantized_for_it(config: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="back into floats"):
        config.parse({"max_mb": 10, **settings} if config is CompressConfig else settings)


def driver(initialised: int, devices: int) -> Callable[[str], Any]:
    def get_name(buffer: Any, length: int, device: Any) -> int:
        buffer.value = b"NVIDIA H100"
        return 0

    library = SimpleNamespace(
        cuInit=lambda flags: initialised,
        cuDeviceGet=lambda device, number: 0 if devices else 101,
        cuDeviceGetName=get_name,
    )
    return lambda name: library


@pytest.mark.parametrize(
    ("initialised", "devices", "expected"),
    [(0, 1, "NVIDIA H100"), (100, 0, None), (0, 0, None)],
)
def test_the_driver_names_the_gpu(
    initialised: int, devices: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", driver(initialised, devices))
    assert gpu.gpu_name.__wrapped__() == expected


def test_without_the_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libcuda-that-is-not-there.so.1")
    assert gpu_name.__wrapped__() is None


def test_another_package_may_bring_the_same_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(package: str) -> str:
        if package == "onnxruntime":
            raise metadata.PackageNotFoundError(package)
        return "1.31.1"

    monkeypatch.setattr(metadata, "version", version)
    assert RUNTIMES["onnxruntime"].version == RUNTIMES[CUDA].version == "1.31.1"
