"""VERIFY: the parity gate as a step of a recipe."""

from __future__ import annotations

from pathlib import Path

from bertender.core.saving import save_result
from bertender.measure.parity import require_parity
from bertender.measure.runtimes import check_installed
from bertender.measure.verify import Verification, VerifyConfig, verify
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task

__all__ = ["VERIFY"]


def _verify(inputs: Inputs, config: VerifyConfig, out: Path) -> Verification:
    reference, candidate = inputs.sources
    parity = verify(reference, candidate, inputs.task, config, inputs.provided["quantize.failures"])
    if not parity.passed:
        save_result(parity, out)  # also after a failure, so that it can be read
    require_parity(parity)
    return parity


def _check(config: VerifyConfig, task: Task) -> None:
    check_installed(config.runtime)


VERIFY = Stage(
    name="verify",
    config=VerifyConfig,
    function=_verify,
    uses=("quantize.failures",),
    sources=(2,),
    check=_check,
    shown_by="bertender.cli.measure_commands:show_parity",
)
