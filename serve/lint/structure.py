"""Rules on the layout of a repository: names, versions, files, backends, instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bertender.core.errors import nearest_hint
from serve.lint.findings import Fault
from serve.lint.reading import ReadModel, ReadRepository
from serve.repository.config_pbtxt import triton  # type: ignore[attr-defined]

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
