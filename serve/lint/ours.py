"""Rules on a model of bertender's Python backend: its parameters and its artifact."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertender.core.artifact import Artifact
from bertender.core.card import read_card
from bertender.core.errors import ArtifactError, ConfigError, nearest_hint
from bertender.models.onnx_session import ONNX_NAME
from serve.backend.running import ENCODER_OUTPUT
from serve.config import BackendParameters, ServeConfig
from serve.lint.findings import Fault
from serve.lint.reading import ReadModel, ReadRepository
from serve.repository.config_pbtxt import (  # type: ignore[attr-defined]
    ANY,
    GraphSignature,
    model_config,
    triton,
)
from serve.wire import TRUNCATED

BACKEND_MODULES = ("serve.backend.model", "serve.classifier_backend")
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
            Artifact.load(folder, checked_at=parameters and parameters.stamp)
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
    for artifact in _cards(model):
        count = len(artifact.card.task.labels)
        for file, field, dims in (*_declared_logits(model), *_logits_of_graphs(model)):
            if dims and dims[-1] not in (ANY, count):
                allowed = f"{count} at the end, the labels of the artifact"
                yield Fault(file, field, str(list(dims)), allowed)


def _declared_logits(model: ReadModel) -> Iterator[tuple[Path, str, Sequence[int]]]:
    assert model.config is not None
    for place, output in enumerate(model.config.output):
        if output.name == LOGITS:
            yield model.config_file, f"output[{place}].dims", output.dims


def _logits_of_graphs(model: ReadModel) -> Iterator[tuple[Path, str, Sequence[int]]]:
    for file, signature in own_graphs(model):
        for tensor in signature.outputs:
            if tensor.name == ENCODER_OUTPUT and tensor.dims:
                yield file, tensor.name, tensor.dims


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
