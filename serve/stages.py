"""ENDPOINT: a check that the real server's predictions are those of the local model.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertender.recipes.stage import ONNX_CLASSIFIER, Inputs, Stage
from serve.config import EndpointConfig
from serve.server.installation import find_installation

if TYPE_CHECKING:
    from serve.check import EndpointCheck


def _check(inputs: Inputs, config: EndpointConfig, out: Path) -> EndpointCheck:
    from serve.check import check_endpoint

    task = inputs.task
    true_labels = [task.problem.by_names(target, task.labels) for target in task.dev.label_ids]
    return check_endpoint(inputs.sources[0], task.dev.examples, config, true_labels)


ENDPOINT = Stage(
    name="endpoint",
    config=EndpointConfig,
    function=_check,
    wants=lambda config, position: ONNX_CLASSIFIER,
    shown_by="serve.check:show_endpoint",
    requires=lambda: str(find_installation().binary),
    cacheable=False,
)
