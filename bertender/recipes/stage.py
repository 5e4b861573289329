"""Stage: what a command, a recipe step and a Python function are made from."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from bertender.core.artifact import Artifact, check_not_finished, sha256_of
from bertender.core.card import CARD_NAME, TIMING_NAME, Kind
from bertender.core.config import Config, Record
from bertender.core.errors import BertenderError, ConfigError, DataError
from bertender.core.files import save_result
from bertender.models.finished_model import located
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.text.batch import Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertender.models.own_models import ExpectedModel

# --- from bertender.pipeline.source_files
# The project's source files that a module runs: found by reading imports, nothing is imported.

PACKAGES = ("bertender", "distill", "export", "quantize", "serve")
PROJECT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages."""
COUNTED_OTHERWISE: Mapping[str, str] = {
    "bertender.recipes.stage": "the settings and sources that it hands on count by themselves",
    "bertender.core.errors": "an error ends a step, and no output depends on it",
    "bertender.core.progress": "it shows how far the work is, and no output depends on it",
    "bertender.models.own_models": "a plan asks it, and what a step then runs does not",
    "bertender.tasks.loading": "a task counts by the fingerprint of its data, however it is read",
}
"""Modules that are not a part of what a step runs, though it imports them, and why."""
PLACE = re.compile(r"([\w.]+):\w+")


def source_files(modules: Iterable[str], project: Path = PROJECT) -> dict[str, Path]:
    """Return the files, by module, that some modules and all that they import are read from.

    Imports inside of functions count too, and so do the places (`module:NAME`) that a table of a
    stage package names in it. Those that only a type checker reads do not, nor do other packages
    than the project's own, nor what is COUNTED_OTHERWISE unless it is asked for.
    """
    files: dict[str, Path] = {}
    waiting = list(modules)
    seen = set(COUNTED_OTHERWISE.keys() - waiting)
    while waiting:
        module = waiting.pop()
        path = None if module in seen else _path(module, project)
        seen.add(module)
        if path is not None:
            files[module] = path
            source = path.read_bytes()
            waiting += _imported(source)
            waiting += [name for name in _places(source) if _is_counted(name, module)]
            waiting += [module.rpartition(".")[0]]  # a package runs before its modules
    return files


def source_digest(modules: Iterable[str], project: Path = PROJECT) -> str:
    """Return a digest of the source code of `source_files`."""
    digest = hashlib.sha256()
    for module, path in sorted(source_files(modules, project).items()):
        source = path.read_bytes()
        digest.update(f"{module} {len(source)} ".encode() + source)
    return digest.hexdigest()


def _path(module: str, project: Path) -> Path | None:
    """Return the file of a module; None for a name in a module, and for other packages."""
    first, *_ = parts = module.split(".")
    if first not in PACKAGES:
        return None
    stem = project.joinpath(*parts)
    candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imported(source: bytes) -> tuple[str, ...]:
    """Return all names that a module imports; whether one is a module shows by its file."""
    return tuple(name for node in _run(ast.parse(source)) for name in _names(node))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all within it, except what only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _run(child)


@cache
def _places(source: bytes) -> tuple[str, ...]:
    """Return the modules of all strings that read as the place of a row."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    matches = (PLACE.fullmatch(value) for value in strings if isinstance(value, str))
    return tuple(match[1] for match in matches if match)


def _is_counted(place: str, module: str) -> bool:
    """Return whether a module runs what its table names: that of the same stage package.

    The tables of `bertender` name other steps, what prints, and data, which count by themselves.
    """
    package = module.partition(".")[0]
    return package != "bertender" and place.partition(".")[0] == package


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


# --- from bertender.pipeline.named_files
# Files that settings name: whether they exist, and a digest of their contents.


class NamedFile(Protocol):
    """Files that a setting names."""

    @property
    def path(self) -> Path | None:
        """Its path, if the name can be one."""

    def check(self) -> None:
        """Raise a BertenderError where it is not there."""

    def digest(self) -> str:
        """Return a digest of its contents; empty for what is not on this machine."""


@dataclass(frozen=True)
class ArtifactFolder:
    """An artifact."""

    path: Path

    def check(self) -> None:
        if (self.path / CARD_NAME).is_file():
            Artifact.load(self.path, verify=False)
        else:
            located(str(self.path))

    def digest(self) -> str:
        return folder_digest(self.path)


@dataclass(frozen=True)
class TextFile:
    """A file of texts."""

    setting: str
    path: Path

    def check(self) -> None:
        if not self.path.is_file():
            raise DataError(
                f"{self.setting}={str(self.path)!r}: there is no such file. Give a path from here, "
                "or an absolute one."
            )

    def digest(self) -> str:
        return sha256_of(self.path) if self.path.is_file() else ""


@dataclass(frozen=True)
class TaskData:
    """The data of a task by its name.

    Loading them takes a while, and the recipe's own task may rule them out: so the stage that reads
    them loads them in its check.
    """

    task: str
    path: None = None

    def check(self) -> None:
        """Do nothing: the settings have checked the name."""

    def digest(self) -> str:
        return load_task(TaskConfig(task=self.task)).fingerprint()


def folder_digest(folder: Path) -> str:
    """Return a digest of a folder's files; empty where there are none.

    How long it took to make an artifact is not a part of it.
    """
    digest = hashlib.sha256()
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != TIMING_NAME
    )
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}".encode())
    return digest.hexdigest() if files else ""


# --- from bertender.pipeline.products
# Products of steps that are not made yet: what a step will write, what a later one wants.


class Source(NamedTuple):
    """An earlier step that a step starts from, and where its artifact lies."""

    name: str
    path: Path


@dataclass(frozen=True)
class Product:
    """An artifact as far as the settings of its step define it."""

    stage: str
    kind: Kind
    classifies: bool = True
    predicts_words: bool = False
    """It has a masked-language head."""
    precision: str = "float32"
    fused: bool = False
    settings: Config | None = None
    """Those of its step, where a later step must agree with some."""
    model: ExpectedModel | None = None
    """Its architecture, and its shape where that follows from the settings; None where unknown,
    as of a hub name that is not cached."""

    def __str__(self) -> str:
        model = "classifier" if self.classifies else "encoder without a classification head"
        fused = ", its operators fused" if self.fused else ""
        return f"a {self.precision} {self.kind} {model} of stage {self.stage!r}{fused}"


@dataclass(frozen=True)
class Want:
    """A requirement on the artifact that a step starts from."""

    name: str
    suits: Callable[[Product], bool]
    next_step: str
    class_checks: tuple[Callable[[PreTrainedModel], None], ...] = ()
    """Checks of a model's architecture, which the step itself makes too."""
    shape_checks: tuple[Callable[[PreTrainedModel], None], ...] = ()
    """Checks of its layers and widths besides, likewise."""

    def check(self, source: str, product: Product) -> None:
        """Raise ConfigError where an earlier step will not make what is required.

        Raises:
            ModelError: what a check raises of the model that it will make.
        """
        if not self.suits(product):
            raise ConfigError(
                f"it starts from {source!r}, which will be {product}, and needs {self.name}. "
                f"{self.next_step}"
            )
        if product.model is not None:
            self._check_model(source, product.model)

    def _check_model(self, source: str, expected: ExpectedModel) -> None:
        shape_checks = self.shape_checks if expected.shape_known else ()
        try:
            for check in (*self.class_checks, *shape_checks):
                check(expected.model)
        except BertenderError as error:
            error.args = (f"it starts from {source!r}: {error}",)
            raise


CLASSIFIER = Want(
    "a classifier", lambda made: made.classifies, "Fine-tune the encoder first: stage finetune."
)
TORCH_MODEL = Want(
    "a torch model", lambda made: made.kind == "torch", "Give the step that it was made from."
)
TORCH_CLASSIFIER = Want(
    "a torch classifier",
    lambda made: made.kind == "torch" and made.classifies,
    "Give a step of stage finetune, distill or prune.",
)
PRETRAINED = Want(
    "an encoder of stage 'pretrain'",
    lambda made: made.stage == "pretrain",
    "Give a step of stage pretrain.",
)
ONNX_CLASSIFIER = Want(
    "an onnx classifier", lambda made: made.kind == "onnx", "Export it first: stage export."
)
GRAPH_TO_QUANTIZE = Want(
    "a float32 onnx classifier of operators that are not fused",
    lambda made: made.kind == "onnx" and made.precision == "float32" and not made.fused,
    "Give a step of stage export without precision and without optimize=fused.",
)


@dataclass(frozen=True)
class Earlier:
    """Models that a step of a recipe may start from, before any is made."""

    sources: Sequence[ExpectedModel | None] = ()
    """Those of the earlier steps that it starts from."""
    by_path: Mapping[Path, ExpectedModel | None] = field(default_factory=dict)
    """Those of all earlier steps, by where they will lie."""

    def model_at(self, name: str | Path) -> ExpectedModel | None:
        """Return the model that a setting names, as it will be when the step runs."""
        path = Path(name).resolve()
        if path in self.by_path:  # another one may lie there from a run before
            return self.by_path[path]
        from bertender.models.own_models import expected_on_disk

        return expected_on_disk(name)


# --- from bertender.pipeline.stage
# Stage: one row, from which the command, the recipe step and the Python function are made.
#
# A recipe is checked by these rows before its first step runs.

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True)
class Inputs:
    """Sources that a stage starts from."""

    sources: tuple[Artifact, ...]
    loaded_task: Task | None
    provided: Mapping[str, Callable[..., Any]]
    """By the names in `uses`: what other stages provide."""

    @property
    def task(self) -> Task:
        """The task, of a stage that needs one."""
        assert self.loaded_task is not None
        return self.loaded_task


def _unused(*_: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A row of STAGES."""

    name: str
    config: type[Config]
    function: Callable[[Inputs, Any, Path], Artifact | Record]
    """(inputs, config, out) -> the artifact at `out`, or a report, which `run` saves there"""
    source: str | None = None
    """The argument of the command that names what it starts from: `teacher` or `artifact`."""
    sources: Sequence[int] = (1,)
    """From how many earlier steps of a recipe it can start."""
    wants: Callable[[Any, int], Want] = lambda config, position: CLASSIFIER
    """(config, position) -> what the earlier step at that position must make"""
    makes: Callable[[Any], Product] | None = None
    """config -> the artifact; None for what makes a report."""
    model: Callable[[Any, Earlier], ExpectedModel | None] = lambda config, earlier: None
    """(config with its sources, models of earlier steps) -> the model that it will make, as far as
    it is known; raises where it can make none of these settings."""
    fills: Mapping[int, str] = field(default_factory=dict)
    """The setting that an earlier step stands for, by the step's position."""
    files: Callable[[Any], Iterable[NamedFile]] = _unused
    """config -> the files that its settings name"""
    texts: Callable[[Any, Task], Sequence[Example]] = _unused
    """(config, task) -> texts that it reads besides the splits of the task"""
    check: Callable[[Any, Task], None] = lambda config, task: None
    """(config with its sources, task) raises what is wrong with the settings, before any work."""
    uses: tuple[str, ...] = ()
    """Parts of other stages that it needs, as `export.write`: stages never import each other."""
    provides: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Parts of it that others may use, such as the writer of a graph, by name."""
    also_writes: Callable[[Any, Path], Sequence[Path]] = _unused
    """(config, out) -> the artifacts that it writes next to `out`"""
    shown_by: str = "bertender.cli.output:show_artifact"
    """`module:function` that prints its result; imported only to print."""
    needs_task: bool = True
    problem_types: Collection[str] | None = None
    """The rows of PROBLEMS whose tasks it takes; None for all."""
    requires: Callable[[], str] = str
    """Returns what the stage needs of this machine; raises where it is not there."""
    cacheable: bool = True
    """False for a step that is a check of the moment, such as a server that must start."""

    @property
    def suffix(self) -> str:
        """`.json` where the output is a report; an artifact's directory has none."""
        return ".json" if self.makes is None else ""

    def run(
        self, sources: Sequence[Artifact], task: Task | None, config: Config, out: Path
    ) -> Artifact | Record:
        """Do the work, with the settings that `sources` stand for; a report is saved at `out`."""
        filled = self.filled(config, [Source(each.name, each.path) for each in sources])
        if task is not None:
            self.accepts(task)
            self.check(filled, task)
            sources = [each.of_task(task.record()) for each in sources]
        provided = {name: provided_by(name) for name in self.uses}
        made = self.function(Inputs(tuple(sources), task, provided), filled, out)
        if not isinstance(made, Artifact):
            save_result(made, out)
        return made

    def parse(self, settings: Mapping[str, Any]) -> Config:
        """Return the settings: the first of what is read, because a task may take long to load.

        Raises:
            BertenderError: they are wrong, or a file that one of them names is not there.
        """
        config = self.config.parse(settings)
        for file in self.files(config):
            file.check()
        return config

    def accepts(self, task: Task) -> None:
        """Raise ConfigError for a task of a problem type that the stage does not take."""
        if self.problem_types is not None and task.problem_type not in self.problem_types:
            raise ConfigError(
                f"stage {self.name!r} takes tasks of {', '.join(map(repr, self.problem_types))}, "
                f"and task {task.name!r} is one of {task.problem_type!r}. Leave this stage out, or "
                "give another task."
            )

    def make(
        self, sources: Sequence[Artifact], task: Task | None, config: Config, out: Path
    ) -> Artifact:
        """Do the work of a stage that writes an artifact."""
        made = self.run(sources, task, config, out)
        assert isinstance(made, Artifact)
        return made

    def check_out(self, config: Config, out: Path, force: bool) -> None:
        """Raise ArtifactError where a finished artifact would be replaced, and not by `force`."""
        for place in (out, *self.also_writes(config, out)):
            check_not_finished(place, force)

    def files_digest(self, config: Config) -> str:
        """Return a digest of the files that the settings name."""
        return " ".join(each.digest() for each in self.files(config))

    def texts_digest(self, config: Config, task: Task) -> str:
        """Return a digest of the texts that it reads besides the splits of the task."""
        texts = self.texts(config, task)
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose code, with all that they import, shapes the output."""
        return (self.function.__module__, *(provided_by(name).__module__ for name in self.uses))

    def code_version(self, project: Path = PROJECT) -> str:
        """Return a digest of the source code that the stage runs."""
        return source_digest(self.modules, project)

    def result(self, output: Path) -> dict[str, Any]:
        """Return what the stage has made, as plain values."""
        if self.suffix:
            return dict(json.loads(output.read_text(encoding="utf-8")))
        card = Artifact.load(output, verify=False).card
        plain = card.model_dump(mode="json")
        shown = {name: plain[name] for name in ("stage", "kind", "precision", "findings")}
        return {**shown, "left_out": plain["task"]["left_out"]}

    def filled(self, config: AnyConfig, sources: Sequence[Source]) -> AnyConfig:
        """Return the config with the settings that earlier steps stand for.

        Raises:
            ConfigError: such a setting is explicit as well.
        """
        changes: dict[str, str] = {}
        for position, setting in self.fills.items():
            if position < len(sources):
                _check_not_both(config, setting, sources[position])
                changes[setting] = str(sources[position].path)
        return config.changed(changes)


def provided_by(name: str) -> Callable[..., Any]:
    """Return what a stage provides for others, by the stage's name and the part's: `export.write`.

    Raises:
        UnknownNameError: no such stage.
        KeyError: the stage provides no such part.
    """
    stage, _, part = name.rpartition(".")
    return STAGES[stage].provides[part]


def _check_not_both(config: Config, setting: str, source: Source) -> None:
    value = getattr(config, setting)
    if value is not None and config.is_explicit(setting):
        raise ConfigError(
            f"{setting}={str(value)!r} and the earlier step {source.name!r} are both to start "
            "from. Drop one of them."
        )
