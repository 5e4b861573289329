"""The stages that measure: VERIFY and COMPARE."""

from __future__ import annotations

from pathlib import Path

from bertender.comparison.records import CompareConfig, Comparison
from bertender.comparison.runtimes import check_installed
from bertender.core.files import save_result
from bertender.gate.judge import require_parity
from bertender.gate.verify import Verification, VerifyConfig, verify
from bertender.recipes.stage import Inputs, Stage
from bertender.tasks.task import Task

# --- from bertender.pipeline.verify_stage
# VERIFY: the parity gate as a step of a recipe.


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

# --- from bertender.pipeline.compare_stage
# COMPARE: the table of variants as a step of a recipe.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.

MOST_ROWS = 100
"""More than a reader can use."""


def _compare(inputs: Inputs, config: CompareConfig, out: Path) -> Comparison:
    from bertender.comparison.compare import compare

    return compare(inputs.sources, inputs.task, config)


def _check_compare_stage(config: CompareConfig, task: Task) -> None:
    check_installed(*config.runtime)


COMPARE = Stage(
    name="compare",
    config=CompareConfig,
    function=_compare,
    sources=range(1, MOST_ROWS + 1),
    check=_check_compare_stage,
    shown_by="bertender.cli.measure_commands:show_comparison",
)
