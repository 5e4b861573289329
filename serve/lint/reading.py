"""A model repository as it is read for LINT_RULES: each configuration and each graph once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from google.protobuf import text_format  # type: ignore[import-untyped]

from bertender.core.errors import ArtifactError, ModelError
from serve.repository.config_pbtxt import (  # type: ignore[attr-defined]
    CONFIG_NAME,
    GraphSignature,
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
    config: triton.ModelConfig | None
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
    folders = sorted(path for path in _entries(directory) if _is_model(path))
    if not folders:
        raise ArtifactError(
            f"{directory} is no model repository: none of its folders has a {CONFIG_NAME} or a "
            "version, such as classifier/1. Name the folder that holds those of the models, as "
            "`bertender serve ARTIFACT --repository-only DIRECTORY` writes it."
        )
    return ReadRepository(directory, {folder.name: _read_model(folder) for folder in folders})


def _entries(directory: Path) -> Iterator[Path]:
    return directory.iterdir() if directory.is_dir() else iter(())


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
