"""LINT_RULES: what is checked of each model of a repository."""

from __future__ import annotations

from bertender.core.config import Table
from serve.lint import calls, devices, ours, structure, tensors
from serve.lint.findings import LintRule

LINT_RULES = Table(
    "rule",
    {
        "name": LintRule("the name in config.pbtxt is the folder's", structure.names),
        "versions": LintRule("the versions are there", structure.versions),
        "model-file": LintRule("each version has the file of its backend", structure.model_files),
        "backend": LintRule("Triton has the backend", structure.backends, "warning"),
        "instance-group": LintRule("Triton takes the instance groups", structure.instance_groups),
        "graph": LintRule("the graph can be read", tensors.graphs),
        "weight-file": LintRule("files with weights are next to the graph", tensors.weight_files),
        "tensor-name": LintRule(
            "each tensor is one of the graph's, and no input is missing", tensors.tensor_names
        ),
        "unused-output": LintRule(
            "each output of the graph can be asked for", tensors.unused_outputs, "warning"
        ),
        "tensor-type": LintRule("data types are the graph's", tensors.tensor_types),
        "tensor-shape": LintRule(
            "ranks and fixed dimensions are the graph's", tensors.tensor_shapes
        ),
        "batch-dimension": LintRule(
            "with a max_batch_size, first dimensions are dynamic", tensors.batch_dimension
        ),
        "warm-up": LintRule("samples of the warm-up are the inputs", tensors.warm_up),
        "backend-parameter": LintRule(
            "parameters are documented ones of the backend onnxruntime",
            structure.parameters,
            "warning",
        ),
        "called-model": LintRule("models that others call are there", calls.called_models),
        "called-tensor": LintRule("they have the tensors of the call", calls.called_tensors),
        "parameter": LintRule("bertender's backend reads the parameters", ours.own_parameters),
        "artifact": LintRule("the artifact's files have their digests", ours.artifacts),
        "own-tensor": LintRule(
            "tensors of bertender's backend have the types and dimensions that it reads",
            ours.own_tensors,
        ),
        "labels": LintRule("logits are as many as the artifact's labels", ours.labels),
        "unsuited-runtime": LintRule(
            "no 8-bit graph in a runtime of GPUs", devices.unsuited_runtime
        ),
        "integers-on-gpu": LintRule("no 8-bit graph on a GPU", devices.integers_on_gpu, "warning"),
        "float16-on-cpu": LintRule(
            "no float16 graph on the CPU", devices.float16_on_cpu, "warning"
        ),
    },
)
