"""The advice for a machine: one row holds for each, and doctor shows it."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise

import pytest

from bertender.cli.doctor import ADVICE, USES, Advice, advice_for, findings, shown_advice
from bertender.cli.main import COMMANDS
from bertender.core.machine import Environment
from bertender.models.runtimes import RUNTIMES, Runtime
from export.precision import PRECISIONS
from quantize.config import SCHEMES, QuantizeConfig
from quantize.integers import TARGETS, target_of
from tests.core.machines import bare

MACHINES: dict[str, Environment] = {
    "an NVIDIA GPU": bare(gpu="H100", cpu_flags=("avx512_vnni",)),
    "a 64-bit ARM CPU": bare(platform="Linux aarch64"),
    "an x86 CPU with AMX": bare(
        platform="Linux x86_64", cpu_flags=("avx2", "avx512_vnni", "amx_bf16", "amx_int8")
    ),
    "an x86 CPU with VNNI, whose AMX the kernel denies": bare(
        platform="Linux x86_64", cpu_flags=("avx2", "avx512_vnni"), denied_flags=("amx_int8",)
    ),
    "an x86 CPU with VNNI, without AMX": bare(
        platform="Linux x86_64", cpu_flags=("avx2", "avx_vnni")
    ),
    "an x86 CPU without either": bare(platform="Linux x86_64", cpu_flags=("avx2",)),
}


@pytest.mark.parametrize("row", ADVICE.values(), ids=lambda row: row.machine)
def test_every_row_holds_for_a_machine(row: Advice) -> None:
    assert advice_for(MACHINES[row.machine])[0] is row


CHOICES = [(row, use) for row in ADVICE.values() for use in row.choices]


@pytest.mark.parametrize("row", ADVICE.values(), ids=lambda row: row.machine)
def test_every_row_has_a_choice_for_each_use(row: Advice) -> None:
    assert row.choices.keys() == USES.keys()


@pytest.mark.parametrize(("row", "use"), CHOICES)
def test_commands_have_values_that_are_there(row: Advice, use: str) -> None:
    known: dict[str, Container[str]] = {
        **{"--scheme": SCHEMES, "--target": TARGETS, "--precision": PRECISIONS},
        "--runtime": {*RUNTIMES, "triton-onnxruntime"},
    }
    for command in row.choices[use].commands:
        program, name, *words = command.split()
        assert program == "bertender" and name in COMMANDS
        for option, value in pairwise(words):
            assert option not in known or value in known[option], (option, value)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_scheme_goes_with_its_runtime(machine: str) -> None:
    for choice in advice_for(MACHINES[machine])[-1].choices.values():
        _, name, _, *flags = choice.make.split()
        if name == "quantize":
            names = (flag.removeprefix("--") for flag in flags[::2])
            settings = dict(zip(names, flags[1::2], strict=True))
            assert settings.pop("out") == "MODEL"
            assert QuantizeConfig.parse(settings).runtime == choice.runtime


def test_the_target_is_the_one_that_quantizing_takes() -> None:
    for machine in MACHINES.values():
        target, _ = target_of("auto", machine)
        advised = advice_for(machine)[-1].choices["single"].make
        assert "--target" not in advised or f"--target {target}" in advised


def test_next_to_a_gpu_the_cpu_has_its_row() -> None:
    rows = advice_for(MACHINES["an NVIDIA GPU"])
    assert [row.machine for row in rows] == [
        "an NVIDIA GPU",
        "an x86 CPU with VNNI, without AMX",
    ]


def test_bfloat16_is_for_a_cpu_that_has_it() -> None:
    with_it = MACHINES["an x86 CPU with AMX"]
    without = MACHINES["an x86 CPU with VNNI, without AMX"]
    assert "--runtime openvino-bf16" in shown_advice(with_it, "exact")
    assert "--runtime onnxruntime" in shown_advice(without, "exact")


def test_a_runtime_that_is_not_installed_is_shown_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Runtime, "version", None)
    shown = shown_advice(MACHINES["an x86 CPU with AMX"], "batches")
    assert shown.endswith("(needs pip install 'bertender[openvino]')")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("machine", MACHINES)
def test_doctor_shows_it(machine: str, use: str) -> None:
    values = {each.name: each.value for each in findings(MACHINES[machine])}
    assert values[f"to try first {USES[use]}"] == shown_advice(MACHINES[machine], use)


@pytest.mark.parametrize("machine", MACHINES)
def test_doctor_says_why(machine: str) -> None:
    values = {each.name: each.value for each in findings(MACHINES[machine])}
    shown = values["why these first"]
    assert all(row.why in shown for row in advice_for(MACHINES[machine]))
