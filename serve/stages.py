"""ENDPOINT: a check that the real server's predictions are those of the local model."""

from __future__ import annotations

from pathlib import Path

from bertender.pipeline.products import ONNX_CLASSIFIER
from bertender.pipeline.stage import Inputs, Stage
from serve.check import EndpointCheck, EndpointConfig, check_endpoint
from serve.installation import find_installation

__all__ = ["ENDPOINT"]


def _check(inputs: Inputs, config: EndpointConfig, out: Path) -> EndpointCheck:
    task = inputs.task
    true_labels = [task.problem.by_names(target, task.labels) for target in task.dev.label_ids]
    return check_endpoint(inputs.sources[0], task.dev.examples, config, true_labels)


ENDPOINT = Stage(
    name="endpoint",
    config=EndpointConfig,
    function=_check,
    wants=lambda config, position: ONNX_CLASSIFIER,
    shown_by="serve.endpoint_table:show_endpoint",
    requires=lambda: str(find_installation().binary),
    cacheable=False,
)
