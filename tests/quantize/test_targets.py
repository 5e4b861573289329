"""Integers by machine: what a CPU adds exactly, and what no GPU runs faster."""

from __future__ import annotations

import pytest

from bertender.core.errors import ModelError, UnknownNameError
from bertender.core.machine import Environment, environment
from bertender.models.runtimes import RUNTIMES
from quantize import integers as targets
from quantize.config import QuantizeConfig
from quantize.integers import INTEGERS, TARGETS, check_exact, runs_here, target_of


def machine(platform: str = "Linux x86_64", *flags: str) -> Environment:
    return environment().model_copy(update={"platform": platform, "cpu_flags": flags})


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (machine("Linux x86_64", "avx2", "avx512_vnni"), "vnni"),
        (machine("Windows AMD64", "avx_vnni"), "vnni"),
        (machine("Linux x86_64", "avx2", "avx512f"), "avx2"),
        (machine("Linux x86_64"), "avx2"),
        (machine("Linux aarch64"), "arm64"),
        (machine("Darwin arm64"), "arm64"),
    ],
)
def test_auto_is_what_the_machine_adds_exactly(here: Environment, expected: str) -> None:
    assert target_of("auto", here) == (expected, TARGETS[expected])
    assert target_of("avx2", here)[0] == "avx2"


VNNI, AVX2, ARM = machine("Linux x86_64", "avx512_vnni"), machine(), machine("Linux aarch64")


@pytest.mark.parametrize(
    ("target", "here", "expected"),
    [
        ("vnni", VNNI, {"onnxruntime", "openvino", "openvino-bf16"}),
        ("vnni", AVX2, {"onnxruntime"}),
        ("avx2", VNNI, {"onnxruntime", "openvino", "openvino-bf16"}),
        ("avx2", AVX2, {"onnxruntime", "openvino", "openvino-bf16"}),
        ("arm64", ARM, {"onnxruntime", "openvino", "openvino-bf16"}),
        ("arm64", AVX2, set()),
        ("vnni", ARM, set()),
    ],
)
def test_sums_are_checked_where_they_are_those_of_the_target(
    target: str, here: Environment, expected: set[str]
) -> None:
    assert {name for name in RUNTIMES if runs_here(target, name, here)} == expected


def refusal(target: str, runtime: str) -> str:
    try:
        check_exact(target, runtime)
    except ModelError as error:
        return str(error)
    return ""


def test_what_no_gate_could_judge_here_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "saturates", lambda: True)
    assert not any(refusal(name, "onnxruntime") for name in TARGETS)
    assert not refusal("avx2", "openvino")
    for name in ("vnni", "arm64"):
        message = refusal(name, "openvino")
        assert f"target={name!r} with runtime='openvino'" in message and "avx2" in message
    monkeypatch.setattr(targets, "saturates", lambda: False)
    assert not any(refusal(name, "openvino") for name in TARGETS)


def test_a_gpu_is_refused_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"gpu.*no 8-bit kernels.*back into floats.*float16"):
        target_of("gpu")


@pytest.mark.parametrize("name", [name for name, row in TARGETS.items() if not row.refused])
def test_weights_are_symmetric_and_both_rows_exist(name: str) -> None:
    assert INTEGERS[TARGETS[name].weights].symmetric
    assert TARGETS[name].activations in INTEGERS
    assert QuantizeConfig.parse({"target": name}).target == name


def test_only_targets_whose_sums_fit_have_8_bit_weights() -> None:
    def fits(name: str) -> bool:
        row = TARGETS[name]
        largest = INTEGERS[row.activations].highest * INTEGERS[row.weights].highest
        return 2 * largest < 2**15

    assert fits("avx2") and not fits("vnni")


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"target 'vnmi'. Did you mean 'vnni'"):
        QuantizeConfig.parse({"target": "vnmi"})
