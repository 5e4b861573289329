"""Lint a model repository: hold every model against LINT_RULES; nothing is run, no server asked.

Rules on models of bertender's Python backend, on models that call others, and on the device that
runs a graph stand here; those on any model are in `reading`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertender.core.artifact import Artifact
from bertender.core.card import read_card
from bertender.core.config import Table
from bertender.core.errors import ArtifactError, ConfigError, nearest_hint
from bertender.models.onnx_session import ONNX_NAME
from bertender.models.runtimes import RUNTIMES
from serve import classifier_backend
from serve.backend import model as model_backend
from serve.backend.running import ENCODER_OUTPUT
from serve.config import SERVED_RUNTIMES, BackendParameters, ServeConfig
from serve.repository.config_pbtxt import ANY, GraphSignature, model_config, triton
from serve.repository.reading import (
    Fault,
    Finding,
    LintRule,
    ReadModel,
    ReadRepository,
    Severity,
    backends,
    batch_dimension,
    graphs,
    instance_groups,
    model_files,
    names,
    parameters,
    read_repository,
    tensor_names,
    tensor_shapes,
    tensor_types,
    unused_outputs,
    versions,
    warm_up,
    weight_files,
)
from serve.wire import TRUNCATED

BACKEND_MODULES = (model_backend.__name__, classifier_backend.__name__)
"""What a model.py imports, and that of an earlier version."""
LOGITS = "LOGITS"


def own_parameters(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield parameters that the backend does not know, or whose values it refuses."""
    if not _is_ours(model):
        return
    try:
        BackendParameters.model_validate(_strings(model))
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(map(str, problem["loc"]))
            unknown = problem["type"] == "extra_forbidden"
            known = f"a known name: {', '.join(BackendParameters.model_fields)}."
            hint = nearest_hint(name, BackendParameters.model_fields)
            yield Fault(
                model.config_file,
                f'parameters["{name}"]',
                "unknown" if unknown else repr(_strings(model).get(name, "missing")),
                known + hint if unknown else problem["msg"],
            )
    except ConfigError as error:  # no row of a table
        yield Fault(model.config_file, "parameters", str(error), "a row of that table")


def artifacts(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield artifacts whose files are missing, or differ from their digests."""
    parameters = backend_parameters(model)
    for folder in _folders(model):
        try:
            Artifact.load(folder, checked_at=parameters.stamp if parameters else None)
        except ArtifactError as error:
            yield Fault(folder, "", str(error), "the files that artifact.json names")


def own_tensors(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield tensors that are not those which the backend reads and sends, or are of other types
    and dimensions, and a model without batches: a request has a row for each text."""
    assert model.config is not None
    if backend_parameters(model) is None:
        return
    if model.config.max_batch_size < 1:
        value = str(model.config.max_batch_size)
        yield Fault(model.config_file, "max_batch_size", value, "1 or more")
    for artifact in _cards(model):
        own = model_config(artifact.card, ServeConfig())
        for side in ("input", "output"):
            yield from _differences(model, side, getattr(own, side))


def _differences(model: ReadModel, side: str, own: Sequence[Any]) -> Iterator[Fault]:
    declared = {each.name: (place, each) for place, each in enumerate(getattr(model.config, side))}
    wanted = {each.name: each for each in own}
    for name, (place, tensor) in declared.items():
        field = f"{side}[{place}]"
        if name not in wanted:
            allowed = f"one of {', '.join(wanted)}"
            yield Fault(model.config_file, f"{field}.name", repr(name), allowed)
            continue
        types = [triton.DataType.Name(each.data_type) for each in (tensor, wanted[name])]
        if types[0] != types[1]:
            yield Fault(model.config_file, f"{field}.data_type", *types)
        dims = [list(each.dims) for each in (tensor, wanted[name])]
        same = slice(-1 if name == LOGITS else None)  # the number of labels has its own rule
        if len(dims[0]) != len(dims[1]) or dims[0][same] != dims[1][same]:
            yield Fault(model.config_file, f"{field}.dims", str(dims[0]), str(dims[1]))
    for name in wanted:
        if name not in declared and name != TRUNCATED:  # which earlier versions did not write
            yield Fault(model.config_file, side, f"{name!r} is missing", ", ".join(wanted))


def labels(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield numbers of labels that are not the artifact's."""
    assert model.config is not None
    logits = [
        (model.config_file, f"output[{place}].dims", output.dims)
        for place, output in enumerate(model.config.output)
        if output.name == LOGITS
    ]
    logits += [
        (file, tensor.name, tensor.dims)
        for file, signature in own_graphs(model)
        for tensor in signature.outputs
        if tensor.name == ENCODER_OUTPUT
    ]
    for artifact in _cards(model):
        count = len(artifact.card.task.labels)
        for file, field, dims in logits:
            if dims and dims[-1] not in (ANY, count):
                allowed = f"{count} at the end, the labels of the artifact"
                yield Fault(file, field, str(list(dims)), allowed)


def own_graphs(model: ReadModel) -> Iterator[tuple[Path, GraphSignature]]:
    """Yield the graphs of a model of ours, as far as they can be read."""
    for folder in _folders(model):
        graph = model.read(folder / ONNX_NAME)
        if graph.signature is not None:  # else the rule on artifacts reports it
            yield graph.file, graph.signature


def backend_parameters(model: ReadModel) -> BackendParameters | None:
    """Return the parameters of a model of ours; None for other models, and where they are wrong."""
    if not _is_ours(model):
        return None
    try:
        return BackendParameters.parse(_strings(model))
    except ConfigError:
        return None


def _is_ours(model: ReadModel) -> bool:
    return model.backend == "python" and any(
        module in file.read_text(encoding="utf-8", errors="replace")
        for file in model.files("model.py")
        if file.is_file()
        for module in BACKEND_MODULES
    )


def _strings(model: ReadModel) -> Mapping[str, str]:
    assert model.config is not None
    return {name: value.string_value for name, value in model.config.parameters.items()}


def _folders(model: ReadModel) -> Iterator[Path]:
    """Yield where the artifact of each version is."""
    parameters = backend_parameters(model)
    if parameters is not None:
        # without links followed, so that a place is named as it is in the repository
        places = (os.path.normpath(each / parameters.artifact) for each in model.versions)
        yield from map(Path, places)


def _cards(model: ReadModel) -> Iterator[Artifact]:
    for folder in _folders(model):
        try:
            yield Artifact(folder, read_card(folder))
        except ArtifactError:  # which the rule on artifacts reports
            continue


@dataclass(frozen=True)
class _Call:
    """What a model asks of another."""

    field: str
    model: str
    inputs: frozenset[str]
    outputs: frozenset[str]


def called_models(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield calls of models that are not in the repository."""
    for call in _calls(model):
        if call.model not in repository.models:
            allowed = f"a model of the repository: {', '.join(repository.models)}"
            yield Fault(model.config_file, call.field, repr(call.model), allowed)


def called_tensors(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield calls whose tensors are not those of the model that is called."""
    for call in _calls(model):
        target = repository.models.get(call.model)
        if target is None or target.config is None:
            continue
        inputs = frozenset(each.name for each in target.config.input if not each.optional)
        takes = frozenset(each.name for each in target.config.input)
        gives = frozenset(each.name for each in target.config.output)
        if not inputs <= call.inputs <= takes:
            yield Fault(
                model.config_file,
                call.field,
                f"gives {call.model} the inputs {_listed(call.inputs)}",
                f"its inputs: {_listed(takes)}",
            )
        if not call.outputs <= gives:
            yield Fault(
                model.config_file,
                call.field,
                f"asks {call.model} for {_listed(call.outputs)}",
                f"its outputs: {_listed(gives)}",
            )


def _calls(model: ReadModel) -> Iterator[_Call]:
    assert model.config is not None
    for place, step in enumerate(model.config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{place}]"
        yield _Call(field, step.model_name, frozenset(step.input_map), frozenset(step.output_map))
    parameters = backend_parameters(model)
    if parameters is not None and parameters.encoder is not None:
        yield _Call(
            'parameters["encoder"]',
            parameters.encoder,
            frozenset(parameters.encoder_inputs),
            frozenset({ENCODER_OUTPUT}),
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


ON_CUDA = "QuantizeLinear, DequantizeLinear and MatMulInteger"
"""The 8-bit operators of ONNX Runtime's CUDA provider, by
https://github.com/microsoft/onnxruntime/blob/main/docs/FAQ.md"""

INTEGER_OPERATORS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"),
        *("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
        *("QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearSoftmax", "QGemm", "QAttention"),
    }
)


@dataclass(frozen=True)
class Device:
    """The device of a model's graphs, and the field of the configuration that sets it."""

    field: str
    value: str
    is_gpu: bool
    other: str
    """The value for the other kind of device."""
    is_ours: bool = False
    """Whether our backend runs them in its own process."""


def integers_on_gpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of 8-bit operators on a GPU, where most of them have no kernel."""
    yield from (fault for device, fault in _of_integers(model) if not device.is_ours)


def unsuited_runtime(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of 8-bit operators in a runtime of GPUs, which our backend refuses to load."""
    yield from (fault for device, fault in _of_integers(model) if device.is_ours)


def _of_integers(model: ReadModel) -> Iterator[tuple[Device, Fault]]:
    for device, signature in _placed(model):
        operators = sorted(signature.operators & INTEGER_OPERATORS)
        if device.is_gpu and operators:
            fault = Fault(
                model.config_file,
                device.field,
                f"{device.value}, for a graph with {', '.join(operators)}",
                f"{device.other}, or a graph of float32 or float16: the CUDA provider has "
                f"{ON_CUDA}, and other 8-bit operators run on the CPU",
            )
            yield device, fault


def float16_on_cpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of float16 on the CPU, which has float16 kernels for few operators."""
    for device, signature in _placed(model):
        if not device.is_gpu and "TYPE_FP16" in signature.weight_types:
            yield Fault(
                model.config_file,
                device.field,
                f"{device.value}, for a graph of float16",
                f"{device.other}, or a graph of float32 or 8 bits: the CPU computes most of "
                "float16 in float32, with conversions between them",
            )


def _placed(model: ReadModel) -> Iterator[tuple[Device, GraphSignature]]:
    """Yield the graphs that a model runs itself, each with every device that runs it."""
    devices = [*_devices(model)]
    yield from ((device, signature) for _, signature in _graphs(model) for device in devices)


def _devices(model: ReadModel) -> Iterator[Device]:
    parameters = backend_parameters(model)
    name = parameters and SERVED_RUNTIMES[parameters.runtime].in_process
    if name:  # in the process of our backend, whatever Triton's device of that is
        is_gpu = RUNTIMES[name].needs_gpu
        others = (other for other, row in RUNTIMES.items() if row.needs_gpu != is_gpu)
        yield Device('parameters["runtime"]', name, is_gpu, " or ".join(others), is_ours=True)
        return
    for kind, other in (("KIND_GPU", "KIND_CPU"), ("KIND_CPU", "KIND_GPU")):
        if kind in model.kinds:
            yield Device("instance_group", kind, kind == "KIND_GPU", other)


def _graphs(model: ReadModel) -> Iterator[tuple[Path, GraphSignature]]:
    """Yield the graphs that a model runs itself."""
    yield from ((each.file, each.signature) for each in model.graphs if each.signature is not None)
    parameters = backend_parameters(model)
    if parameters is not None and parameters.encoder is None:
        yield from own_graphs(model)


LINT_RULES = Table(
    "rule",
    {
        "name": LintRule("the name in config.pbtxt is the folder's", names),
        "versions": LintRule("the versions are there", versions),
        "model-file": LintRule("each version has the file of its backend", model_files),
        "backend": LintRule("Triton has the backend", backends, "warning"),
        "instance-group": LintRule("Triton takes the instance groups", instance_groups),
        "graph": LintRule("the graph can be read", graphs),
        "weight-file": LintRule("files with weights are next to the graph", weight_files),
        "tensor-name": LintRule(
            "each tensor is one of the graph's, and no input is missing", tensor_names
        ),
        "unused-output": LintRule(
            "each output of the graph can be asked for", unused_outputs, "warning"
        ),
        "tensor-type": LintRule("data types are the graph's", tensor_types),
        "tensor-shape": LintRule("ranks and fixed dimensions are the graph's", tensor_shapes),
        "batch-dimension": LintRule(
            "with a max_batch_size, first dimensions are dynamic", batch_dimension
        ),
        "warm-up": LintRule("samples of the warm-up are the inputs", warm_up),
        "backend-parameter": LintRule(
            "parameters are documented ones of the backend onnxruntime",
            parameters,
            "warning",
        ),
        "called-model": LintRule("models that others call are there", called_models),
        "called-tensor": LintRule("they have the tensors of the call", called_tensors),
        "parameter": LintRule("bertender's backend reads the parameters", own_parameters),
        "artifact": LintRule("the artifact's files have their digests", artifacts),
        "own-tensor": LintRule(
            "tensors of bertender's backend have the types and dimensions that it reads",
            own_tensors,
        ),
        "labels": LintRule("logits are as many as the artifact's labels", labels),
        "unsuited-runtime": LintRule("no 8-bit graph in a runtime of GPUs", unsuited_runtime),
        "integers-on-gpu": LintRule("no 8-bit graph on a GPU", integers_on_gpu, "warning"),
        "float16-on-cpu": LintRule("no float16 graph on the CPU", float16_on_cpu, "warning"),
    },
)


logger = logging.getLogger(__name__)

SYNTAX, NO_CONFIG = "syntax", "no-config"
"""What is found before any rule applies."""


UNREADABLE = (OSError, ValueError, RecursionError)
"""What rules raise for names, numbers of enumerations and files that no sound model has."""


def lint_repository(directory: Path) -> tuple[Finding, ...]:
    """Return what is wrong with a model repository; nothing is run, and no server is asked.

    Raises:
        ArtifactError: `directory` holds no model.
    """
    repository = read_repository(directory)
    return tuple(
        finding for model in repository.models.values() for finding in _findings(model, repository)
    )


def check_repository(directory: Path) -> None:
    """Raise ArtifactError for the errors of a repository; its warnings are logged."""
    findings = lint_repository(directory)
    for finding in findings:
        if finding.severity == "warning":
            logger.warning("%s", finding.line)
    errors = [each for each in findings if each.severity == "error"]
    if errors:
        raise ArtifactError(
            "Triton would not load this repository, so it is not written. "
            + "; ".join(each.line for each in errors)
        )


def _findings(model: ReadModel, repository: ReadRepository) -> Iterator[Finding]:
    if model.config is None:
        yield _unread(model, repository)
        return
    for name, rule in LINT_RULES.items():
        try:
            faults = [*rule.look(model, repository)]
        except UNREADABLE as error:  # one hostile or odd model must not hide the others
            faults = [Fault(model.config_file, "", str(error), "what can be read")]
        for fault in faults:
            yield _reported(fault, name, rule.severity, repository.directory)


def _unread(model: ReadModel, repository: ReadRepository) -> Finding:
    """Return the finding on a model without a configuration that can be read."""
    if not model.problem:
        allowed = "one that is written: without it, Triton completes what it can from the model"
        fault = Fault(model.config_file, "", "missing", allowed)
        return _reported(fault, NO_CONFIG, "warning", repository.directory)
    field = f"line {model.line}" if model.line else ""
    fault = Fault(model.config_file, field, model.problem, "text of Triton's model_config.proto")
    return _reported(fault, SYNTAX, "error", repository.directory)


def _reported(fault: Fault, rule: str, severity: Severity, directory: Path) -> Finding:
    return Finding(
        severity=severity,
        rule=rule,
        file=os.path.relpath(fault.file, directory),
        field=fault.field,
        value=fault.value,
        allowed=fault.allowed,
    )
