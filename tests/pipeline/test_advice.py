"""The advice for a machine: one row holds for each, and doctor shows it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bertender.core.environment import Environment
from bertender.models.runtimes import RUNTIMES
from bertender.pipeline.advice import ADVICE, Advice, advice_for, shown_advice
from bertender.pipeline.doctor import findings
from quantize.schemes import SCHEMES
from quantize.targets import TARGETS, target_of
from tests.core.machines import bare

MACHINES: dict[str, Environment] = {
    "an NVIDIA GPU": bare(gpu="H100", cpu_flags=("avx512_vnni",)),
    "a 64-bit ARM CPU": bare(platform="Linux aarch64"),
    "an x86 CPU with 8-bit dot products (VNNI or AMX)": bare(
        platform="Linux x86_64", cpu_flags=("avx2", "avx_vnni")
    ),
    "an x86 CPU without them": bare(platform="Linux x86_64", cpu_flags=("avx2",)),
}


@pytest.mark.parametrize("row", ADVICE, ids=lambda row: row.machine)
def test_every_row_holds_for_a_machine(row: Advice) -> None:
    assert advice_for(MACHINES[row.machine])[0] is row


@pytest.mark.parametrize("row", ADVICE, ids=lambda row: row.machine)
def test_options_have_values_that_are_there(row: Advice) -> None:
    known = {"--scheme": SCHEMES, "--runtime": {*RUNTIMES, "triton-onnxruntime"}}
    words = f"{row.single_texts} {row.batches}".replace("`", " ").replace(",", " ").split()
    for option, value in pairwise(words):
        assert option not in known or value in known[option], (option, value)
        assert option != "--target" or value in TARGETS


def test_the_target_is_the_one_that_quantizing_takes() -> None:
    for machine in MACHINES.values():
        target, _ = target_of("auto", machine)
        advised = advice_for(machine)[-1].single_texts
        assert "--target" not in advised or f"--target {target}" in advised


def test_next_to_a_gpu_the_cpu_has_its_row() -> None:
    rows = advice_for(MACHINES["an NVIDIA GPU"])
    assert [row.machine for row in rows] == [ADVICE[0].machine, ADVICE[2].machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_doctor_shows_it(machine: str) -> None:
    (finding,) = (each for each in findings(MACHINES[machine]) if each.name == "to try first")
    assert finding.value == shown_advice(MACHINES[machine]).replace("`", "")
