"""A model repository as it is read, and the rules that hold for any model in it.

Each configuration and each graph is read once. A rule yields the faults of a model whose
configuration could be read; `lint` has the table of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format  # type: ignore[import-untyped]
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import ArtifactError, ModelError, nearest_hint
from serve.repository.config_pbtxt import (
    ANY,
    CONFIG_NAME,
    GraphSignature,
    ModelConfig,
    TensorSignature,
    read_model_config,
    read_signature,
    triton,
)

PLATFORMS: Mapping[str, str] = {
    "ensemble": "ensemble",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
"""Earlier name of a backend, in the field `platform`."""


@dataclass(frozen=True)
class Graph:
    """A file of a version of a model, and what is known of it; or why it cannot be read."""

    file: Path
    signature: GraphSignature | None
    problem: str = ""


@dataclass(frozen=True)
class ReadModel:
    """A folder of a repository."""

    folder: Path
    config: ModelConfig | None
    """None where there is none, or it cannot be parsed."""
    problem: str = ""
    """Why it cannot be parsed."""
    line: int = 0
    _graphs: dict[Path, Graph] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config_file(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def backend(self) -> str:
        """Name of its backend; empty where nothing says it."""
        if self.config is None:
            return ""
        return str(self.config.backend or PLATFORMS.get(self.config.platform, ""))

    @cached_property
    def versions(self) -> Sequence[Path]:
        """Folders that Triton takes for versions: named by a positive number."""
        folders = [path for path in self.folder.iterdir() if path.is_dir()]
        return sorted(path for path in folders if path.name.isdecimal() and int(path.name) > 0)

    def files(self, default: str) -> Iterator[Path]:
        """Yield the file of each version that its backend reads.

        Args:
            default: its name where the configuration has no other.
        """
        name = self.config.default_model_filename if self.config is not None else ""
        yield from (version / (name or default) for version in self.versions)

    @property
    def graphs(self) -> Sequence[Graph]:
        """The graphs of a model of the backend onnxruntime, one for each version."""
        if self.backend != "onnxruntime":
            return ()
        return [self.read(path) for path in self.files("model.onnx") if path.exists()]

    def read(self, path: Path) -> Graph:
        """Return a graph, which is read once."""
        if path not in self._graphs:
            self._graphs[path] = _read_graph(path)
        return self._graphs[path]

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of its instance groups that are explicit, such as KIND_GPU."""
        groups = self.config.instance_group if self.config is not None else ()
        return frozenset(triton.ModelInstanceGroup.Kind.Name(group.kind) for group in groups)


@dataclass(frozen=True)
class ReadRepository:
    """The folders of a repository, by name."""

    directory: Path
    models: Mapping[str, ReadModel]


def read_repository(directory: Path) -> ReadRepository:
    """Read a model repository.

    Raises:
        ArtifactError: `directory` holds no model.
    """
    entries = directory.iterdir() if directory.is_dir() else ()
    folders = sorted(path for path in entries if _is_model(path))
    if not folders:
        raise ArtifactError(
            f"{directory} is no model repository: none of its folders has a {CONFIG_NAME} or a "
            "version, such as classifier/1. Name the folder that holds those of the models, as "
            "`bertender serve ARTIFACT --repository-only DIRECTORY` writes it."
        )
    return ReadRepository(directory, {folder.name: _read_model(folder) for folder in folders})


def _is_model(folder: Path) -> bool:
    try:
        return folder.is_dir() and (
            (folder / CONFIG_NAME).is_file()
            or any(each.is_dir() and each.name.isdecimal() for each in folder.iterdir())
        )
    except PermissionError:  # such as lost+found
        return False


def _read_model(folder: Path) -> ReadModel:
    if not (folder / CONFIG_NAME).is_file():
        return ReadModel(folder, None)
    try:
        return ReadModel(folder, read_model_config(folder / CONFIG_NAME))
    except text_format.ParseError as error:
        return ReadModel(folder, None, str(error), error.GetLine() or 0)
    except (OSError, UnicodeDecodeError) as error:
        return ReadModel(folder, None, str(error))


def _read_graph(path: Path) -> Graph:
    """Read a graph; Triton takes a folder with the graph in it for a graph, too."""
    file = path / "model.onnx" if path.is_dir() else path
    try:
        return Graph(file, read_signature(file))
    except ModelError as error:
        return Graph(file, None, str(error))


Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Fault:
    """A place of a repository that breaks a rule."""

    file: Path
    field: str
    value: str
    allowed: str


class Finding(Record):
    """A fault as it is reported."""

    severity: Severity
    rule: str = Field(description="a row of LINT_RULES")
    file: str = Field(description="relative to the repository")
    field: str = Field(description="of config.pbtxt, as in `input[0].dims`; empty for a whole file")
    value: str = Field(description="what is there")
    allowed: str

    @property
    def line(self) -> str:
        place = f"{self.file}, {self.field}" if self.field else self.file
        return f"{place}: {self.value}; allowed: {self.allowed} ({self.rule})"


@dataclass(frozen=True)
class LintRule:
    """A row of LINT_RULES."""

    summary: str
    look: Callable[[ReadModel, ReadRepository], Iterable[Fault]]
    """Yields the faults of a model whose configuration could be read."""
    severity: Severity = "error"
    """An error where Triton does not load the model, or what it serves is wrong; else a warning."""


FILES: Mapping[str, str | None] = {
    "dali": "model.dali",
    "ensemble": None,
    "fil": None,
    "identity": None,
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "python": "model.py",
    "pytorch": "model.pt",
    "repeat": None,
    "square": None,
    "tensorflow": None,
    "tensorrt": "model.plan",
    "tensorrtllm": None,
    "vllm": "model.json",
}
"""Backend of Triton -> the file that a version has by default; None where that depends."""

ONNXRUNTIME_PARAMETERS = frozenset(
    {
        *("intra_op_thread_count", "inter_op_thread_count", "execution_mode"),
        *("enable_mem_arena", "enable_mem_pattern", "memory.enable_memory_arena_shrinkage"),
        "session.use_device_allocator_for_initializers",
        *("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy"),
        *("do_copy_in_default_stream", "share_session_between_instances"),
    }
)
"""https://github.com/triton-inference-server/onnxruntime_backend#other-optimization-options-with-onnx-runtime"""


def names(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield a name in config.pbtxt that is not the folder's."""
    assert model.config is not None
    if model.config.name not in ("", model.name):
        yield Fault(model.config_file, "name", repr(model.config.name), repr(model.name))


def versions(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield a model without versions, and versions that the policy names and nobody wrote."""
    assert model.config is not None
    if not model.versions:
        folders = sorted(each.name for each in model.folder.iterdir() if each.is_dir())
        yield Fault(
            model.folder, "", f"folders {folders}", "a folder named by its version, such as 1"
        )
        return
    there = {int(version.name) for version in model.versions}
    for version in model.config.version_policy.specific.versions:
        if version not in there:
            field = "version_policy.specific.versions"
            yield Fault(model.config_file, field, str(version), f"one of {sorted(there)}")


def model_files(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield the file of a version that its backend would read and does not find."""
    for file in model.files(FILES.get(model.backend) or ""):
        if not file.exists():
            yield Fault(file, "", "missing", f"what the backend {model.backend!r} reads")


def backends(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield a backend that no release of Triton has."""
    assert model.config is not None
    if model.backend not in FILES:
        field = "backend" if model.config.backend else "platform"
        value = model.config.backend or model.config.platform
        known = f"{', '.join(FILES)}, or one that you install.{nearest_hint(value, FILES)}"
        yield Fault(model.config_file, field, repr(value), known)


def instance_groups(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield instance groups that Triton refuses."""
    assert model.config is not None
    kinds = triton.ModelInstanceGroup
    if model.backend == "ensemble" and model.config.instance_group:
        count = f"{len(model.config.instance_group)} of an ensemble"
        yield Fault(model.config_file, "instance_group", count, "none: its steps have their own")
    for place, group in enumerate(model.config.instance_group):
        if group.count < 0:
            field = f"instance_group[{place}].count"
            yield Fault(model.config_file, field, str(group.count), "1 or more; 0 for the default")
        if group.gpus and group.kind in (kinds.KIND_CPU, kinds.KIND_MODEL):
            field = f"instance_group[{place}].gpus"
            allowed = f"none with {kinds.Kind.Name(group.kind)}; KIND_GPU runs on them"
            yield Fault(model.config_file, field, str(list(group.gpus)), allowed)


def parameters(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield parameters that the ONNX Runtime backend does not document, and so may not read."""
    assert model.config is not None
    if model.backend != "onnxruntime":
        return
    for name in sorted(set(model.config.parameters) - ONNXRUNTIME_PARAMETERS):
        known = f"{', '.join(sorted(ONNXRUNTIME_PARAMETERS))}."
        yield Fault(
            model.config_file,
            f'parameters["{name}"]',
            "unknown to the backend onnxruntime",
            known + nearest_hint(name, ONNXRUNTIME_PARAMETERS),
        )


SIDES = ("input", "output")


@dataclass(frozen=True)
class _Pair:
    """A tensor of config.pbtxt and the one of the graph that has its name."""

    field: str
    declared: Any
    own: TensorSignature


def graphs(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs that cannot be read."""
    for graph in model.graphs:
        if graph.signature is None:
            yield Fault(graph.file, "", graph.problem, "a graph of ONNX")


def weight_files(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield files with weights that a graph names and that are not next to it."""
    for graph, signature in _read_graphs(model):
        for name in sorted(signature.weight_files):
            if not (graph.file.parent / name).is_file():
                yield Fault(graph.file, "external_data", f"{name} is missing", "next to the graph")


def tensor_names(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield tensors that the graph does not have, and inputs that nobody would give it."""
    for graph, signature in _read_graphs(model):
        for side in SIDES:
            yield from _unknown_tensors(model, graph, side, _side_of(signature, side))
        yield from _missing_inputs(model, signature)


def _unknown_tensors(
    model: ReadModel, graph: Graph, side: str, own: Sequence[TensorSignature]
) -> Iterator[Fault]:
    names = [tensor.name for tensor in own]
    for place, tensor in enumerate(_declared(model, side)):
        if tensor.name not in names:
            allowed = f"an {side} of {graph.file.name}: {', '.join(names)}"
            yield Fault(model.config_file, f"{side}[{place}].name", repr(tensor.name), allowed)


def _missing_inputs(model: ReadModel, signature: GraphSignature) -> Iterator[Fault]:
    declared = [tensor.name for tensor in _declared(model, "input")]
    for tensor in signature.inputs if declared else ():  # without any, Triton completes them
        if tensor.name not in declared:
            value = f"{tensor.name!r} is missing"
            yield Fault(model.config_file, "input", value, "every input of the graph")


def unused_outputs(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield outputs of a graph that no request gets."""
    declared = [tensor.name for tensor in _declared(model, "output")]
    for _, signature in _read_graphs(model):
        for tensor in signature.outputs:
            if declared and tensor.name not in declared:
                value = f"{tensor.name!r} of the graph is missing"
                yield Fault(model.config_file, "output", value, "any; no request gets this one")


def tensor_types(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield data types that differ from the graph's."""
    for pair in _pairs(model):
        declared = triton.DataType.Name(pair.declared.data_type)
        if declared != pair.own.data_type:
            field = f"{pair.field}.data_type"
            yield Fault(model.config_file, field, declared, pair.own.data_type)


def tensor_shapes(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield ranks and fixed dimensions that differ from the graph's."""
    for pair in _pairs(model):
        own = pair.own.dims
        # the graph does not say, or has a scalar, or rows of several requests in one tensor
        if not own or getattr(pair.declared, "allow_ragged_batch", False):
            continue
        own, declared = own[1:] if _batches(model) else own, _dims(pair.declared)
        if not _fits(declared, own, exactly=pair.field.startswith("output")):
            yield Fault(model.config_file, f"{pair.field}.dims", str(declared), str(list(own)))


def batch_dimension(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield a batching model with a tensor whose first dimension is fixed, or is not there."""
    assert model.config is not None
    if model.config.max_batch_size < 0:
        value = str(model.config.max_batch_size)
        yield Fault(model.config_file, "max_batch_size", value, "0 or more")
    shapes = {pair.own.name: pair.own.dims for pair in _pairs(model)}
    fixed = [f"{name} is {list(dims)}" for name, dims in shapes.items() if dims and dims[0] != ANY]
    if fixed and _batches(model):
        value = f"{model.config.max_batch_size}, and in the graph {', '.join(fixed)}"
        allowed = "0, or a graph whose first dimensions are dynamic"
        yield Fault(model.config_file, "max_batch_size", value, allowed)


def warm_up(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield samples of the warm-up that are not the model's inputs."""
    assert model.config is not None
    inputs = {tensor.name: tensor for tensor in model.config.input}
    needed = {name for name, tensor in inputs.items() if not tensor.optional}
    for place, sample in enumerate(model.config.model_warmup):
        field = f"model_warmup[{place}]"
        if not needed <= set(sample.inputs) <= set(inputs):
            value = f"inputs {', '.join(sorted(sample.inputs)) or 'of no name'}"
            yield Fault(model.config_file, field, value, f"those of the model: {', '.join(inputs)}")
        for name in sorted(set(sample.inputs) & set(inputs)):
            if not _is_sample(sample.inputs[name], inputs[name]):
                value, allowed = _type_and_dims(sample.inputs[name]), _type_and_dims(inputs[name])
                yield Fault(model.config_file, f'{field}.inputs["{name}"]', value, allowed)


def _type_and_dims(tensor: Any) -> str:
    return f"{triton.DataType.Name(tensor.data_type)} {list(tensor.dims)}"


def _is_sample(sample_input: Any, tensor: Any) -> bool:
    fits = len(sample_input.dims) == len(tensor.dims) and all(
        wanted in (ANY, dim) for dim, wanted in zip(sample_input.dims, tensor.dims, strict=True)
    )
    return bool(sample_input.data_type == tensor.data_type and fits)


def _read_graphs(model: ReadModel) -> Iterator[tuple[Graph, GraphSignature]]:
    for graph in model.graphs:
        if graph.signature is not None:
            yield graph, graph.signature


def _side_of(signature: GraphSignature, side: str) -> Sequence[TensorSignature]:
    return signature.inputs if side == "input" else signature.outputs


def _declared(model: ReadModel, side: str) -> Sequence[Any]:
    declared: Sequence[Any] = getattr(model.config, side)
    return declared


def _pairs(model: ReadModel) -> Iterator[_Pair]:
    for _, signature in _read_graphs(model):
        for side in SIDES:
            own = {tensor.name: tensor for tensor in _side_of(signature, side)}
            for place, tensor in enumerate(_declared(model, side)):
                if tensor.name in own:
                    yield _Pair(f"{side}[{place}]", tensor, own[tensor.name])


def _batches(model: ReadModel) -> bool:
    assert model.config is not None
    return bool(model.config.max_batch_size > 0)


def _dims(tensor: Any) -> list[int]:
    """Return the dimensions that reach the model, the batch's left out."""
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _fits(declared: Sequence[int], own: Sequence[int], *, exactly: bool) -> bool:
    """Return whether Triton's backend takes declared dimensions.

    Where the graph has a number, it wants that number. Where the graph takes any, an input may have
    a number, and an output may not (`CompareDimsSupported` of the backend).
    """
    return len(declared) == len(own) and all(
        wanted == dim or (wanted == ANY and not exactly)
        for dim, wanted in zip(declared, own, strict=True)
    )
