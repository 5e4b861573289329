"""Stage: the implementation behind a command, a recipe step and a Python function.

A recipe is checked by its stages before the first step runs: a `Product` describes a step's future
output, a `Want` a later step's requirement, a `NamedFile` a file in the settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from bertender.core.artifact import Artifact, check_not_finished, sha256_of
from bertender.core.card import CARD_NAME, TIMING_NAME, Kind
from bertender.core.config import Config, Record
from bertender.core.errors import BertenderError, ConfigError, DataError
from bertender.core.files import save_result
from bertender.core.machine import environment, processor_name

if TYPE_CHECKING:  # `bertender --help` does not need these
    from transformers import PreTrainedModel

    from bertender.models.own_models import ExpectedModel
    from bertender.tasks.task import Task
    from bertender.text.batch import Example

AnyConfig = TypeVar("AnyConfig", bound=Config)


class NamedFile(Protocol):
    """Files named by a setting."""

    @property
    def path(self) -> Path | None:
        """The path of the files, if the name can be one."""

    def check(self) -> None:
        """Raise a BertenderError if the files are missing."""

    def digest(self) -> str:
        """Return a digest of the contents; empty if they are not on this machine."""


@dataclass(frozen=True)
class ArtifactFolder:
    """An artifact."""

    path: Path

    def check(self) -> None:
        from bertender.models.importing import located

        if (self.path / CARD_NAME).is_file():
            Artifact.load(self.path, verify=False)
        else:
            located(str(self.path))

    def digest(self) -> str:
        return folder_digest(self.path)


@dataclass(frozen=True)
class DataFile:
    """A file of texts, or of a teacher, which may be a folder of parts."""

    setting: str
    path: Path
    may_be_folder: bool = False

    def check(self) -> None:
        if not (self.path.exists() if self.may_be_folder else self.path.is_file()):
            raise DataError(
                f"{self.setting}={str(self.path)!r}: there is no such file. Give a path from here, "
                "or an absolute one."
            )

    def digest(self) -> str:
        if self.path.is_dir():
            return folder_digest(self.path)
        return sha256_of(self.path) if self.path.is_file() else ""


@dataclass(frozen=True)
class TaskData:
    """The data of a task, by its name.

    Loading them takes a while, and the recipe's own task may be incompatible, so the stage loads
    them in its check.
    """

    task: str
    path: None = None

    def check(self) -> None:
        """Do nothing, as the settings have checked the name."""

    def digest(self) -> str:
        from bertender.tasks.loading import load_task
        from bertender.tasks.task import TaskConfig

        return load_task(TaskConfig(task=self.task)).fingerprint()


def folder_digest(folder: Path) -> str:
    """Return a digest of a folder's files except the timing; empty without files."""
    digest = hashlib.sha256()
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != TIMING_NAME)
    files = sorted(paths)
    for path in files:
        digest.update(f"{path.relative_to(folder)} {sha256_of(path)}".encode())
    return digest.hexdigest() if files else ""


class Source(NamedTuple):
    """An earlier step that a step starts from, and the path of its artifact."""

    name: str
    path: Path


@dataclass(frozen=True)
class Product:
    """An artifact, as far as the settings of its step define it."""

    stage: str
    kind: Kind
    classifies: bool = True
    predicts_words: bool = False
    """Whether it has a masked-language head."""
    precision: str = "float32"
    settings: Config | None = None
    """Settings of its step, which a later step may have to match."""
    model: ExpectedModel | None = None
    """Its architecture, and its shape if that follows from the settings; None if unknown, as for a
    hub name that is not cached."""

    def __str__(self) -> str:
        model = "classifier" if self.classifies else "encoder without a classification head"
        return f"a {self.precision} {self.kind} {model} of stage {self.stage!r}"


@dataclass(frozen=True)
class Want:
    """A requirement on the artifact that a step starts from."""

    name: str
    next_step: str
    fields: Mapping[str, object]
    """Field of a `Product` -> the value that it must have."""

    def check(self, source: str, product: Product) -> None:
        """Raise ConfigError if an earlier step will not make what is required."""
        if any(getattr(product, name) != value for name, value in self.fields.items()):
            raise ConfigError(
                f"it starts from {source!r}, which will be {product}, and needs {self.name}. "
                f"{self.next_step}"
            )


CLASSIFIER = Want(
    "a classifier", "Fine-tune the encoder first: stage finetune.", {"classifies": True}
)
TORCH_MODEL = Want("a torch model", "Give the step that it was made from.", {"kind": "torch"})
TORCH_CLASSIFIER = Want(
    "a torch classifier",
    "Give a step of stage finetune, distill or prune.",
    {"kind": "torch", "classifies": True},
)
ONNX_CLASSIFIER = Want("an onnx classifier", "Export it first: stage export.", {"kind": "onnx"})
GRAPH_TO_QUANTIZE = Want(
    "a float32 onnx classifier",
    "Give a step of stage export without precision.",
    {"kind": "onnx", "precision": "float32"},
)


@dataclass(frozen=True)
class Earlier:
    """Models that a step of a recipe may start from, before they are made."""

    sources: Sequence[ExpectedModel | None] = ()
    """Models of the earlier steps that it starts from."""
    by_path: Mapping[Path, ExpectedModel | None] = field(default_factory=dict)
    """Models of all earlier steps, by their future folders."""

    def model_at(self, name: str | Path) -> ExpectedModel | None:
        """Return the model that a setting names, as it will be when the step runs."""
        path = Path(name).resolve()
        if path in self.by_path:  # an earlier run may have left another one there
            return self.by_path[path]
        from bertender.models.own_models import expected_on_disk

        return expected_on_disk(name)


class Stage:
    """A row of STAGES. Methods with `config` get it with the settings from its sources filled in.

    A subclass imports its implementation inside its methods: a command loads only its stage, and
    settings are read without PyTorch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str | None] = None
    """The command's argument for the stage's source: `teacher` or `artifact`."""
    sources: ClassVar[Sequence[int]] = (1,)
    """Possible numbers of earlier steps in a recipe to start from."""
    fills: ClassVar[str | None] = None
    """The setting that is filled by an additional earlier step."""
    wanted: ClassVar[Want] = CLASSIFIER
    """Requirement on earlier steps, whatever the settings."""
    file_setting: ClassVar[str | None] = None
    """The setting that a data file fills, if one may be given instead of an artifact."""
    needs_task: ClassVar[bool] = True
    problem_types: ClassVar[Collection[str] | None] = None
    """Supported problem types (rows of PROBLEMS); None for all."""
    suffix: ClassVar[str] = ""
    """`.json` if the output is a report; an artifact's directory has none."""
    cacheable: ClassVar[bool] = True
    """False for a step that must be repeated, such as a check that a server starts."""

    @property
    def config(self) -> type[Config]:
        """The class of the stage's settings."""
        raise NotImplementedError

    def work(
        self, sources: Sequence[Artifact], task: Any, config: Any, out: Path
    ) -> Artifact | Record:
        """Make the artifact at `out`, or return a report, which `run` saves there."""
        raise NotImplementedError

    def requires(self) -> None:
        """Raise an error if this machine lacks something that the stage needs."""

    def counts(self, config: Any) -> Sequence[int]:
        """Return the possible numbers of earlier steps to start from, with these settings."""
        return self.sources

    def brings_labels(self, config: Any) -> bool:
        """Return whether the stage has its own training texts, so that a held-out file is
        enough."""
        return False

    def wants(self, config: Any, position: int) -> Want:
        """Return the requirement on the earlier step at a position."""
        return self.wanted

    def check_model(self, config: Any, position: int, model: PreTrainedModel) -> None:
        """Raise an error if the stage cannot start from a model of this architecture."""

    def check_shape(self, config: Any, position: int, model: PreTrainedModel) -> None:
        """Raise an error if the stage cannot start from a model with these layers and widths."""

    def makes(self, config: Any) -> Product:
        """Return the artifact that the stage will write."""
        return Product(self.name, "torch")

    def makes_of(self, config: Any, sources: Sequence[Product]) -> Product:
        """Return the artifact that the stage will write, given those that it starts from."""
        return self.makes(config)

    def model(self, config: Any, earlier: Earlier) -> ExpectedModel | None:
        """Return the model that the stage will make, as far as it is known; raise an error if these
        settings allow none."""
        return None

    def files(self, config: Any) -> Iterable[NamedFile]:
        """Return the files that the settings name."""
        return ()

    def texts(self, config: Any, task: Task) -> Sequence[Example]:
        """Return the texts that the stage reads besides the splits of the task."""
        return ()

    def check(self, config: Any, task: Task) -> None:
        """Raise an error if settings and task conflict, before the first step of a recipe."""

    def also_writes(self, config: Any, out: Path) -> Sequence[Path]:
        """Return the artifacts that the stage writes next to `out`."""
        return ()

    def parse(self, settings: Mapping[str, Any]) -> Config:
        """Return the settings; they are read first, because a task may take long to load.

        Raises:
            BertenderError: the settings are wrong, or name a missing file.
        """
        config = self.config.parse(settings)
        for file in self.files(config):
            file.check()
        return config

    def run(
        self, sources: Sequence[Artifact], task: Task | None, config: Config, out: Path
    ) -> Artifact | Record:
        """Do the work, with the settings filled by `sources`; a report is saved at `out`.

        Everything that `check` refuses is refused by the work too, before it loads a model.
        """
        filled = self.filled(config, [Source(each.name, each.path) for each in sources])
        if task is not None:
            from bertender.tasks.task import in_labels_of

            self.accepts(task)
            if self.counts(config)[0]:  # else the source is a start, which gets the task's labels
                # a loaded task has its labels in an order of its own
                task = in_labels_of(task, sources[0])
            sources = [each.of_task(task.record()) for each in sources]
        made = self.work(sources, task, filled, out)
        if not isinstance(made, Artifact):
            save_result(made, out)
        return made

    def make(
        self, sources: Sequence[Artifact], task: Task | None, config: Config, out: Path
    ) -> Artifact:
        """Do the work of a stage that writes an artifact."""
        made = self.run(sources, task, config, out)
        assert isinstance(made, Artifact)
        return made

    def filled(self, config: AnyConfig, sources: Sequence[Source]) -> AnyConfig:
        """Return the config with the settings filled by earlier steps.

        Raises:
            ConfigError: such a setting is also explicit, or conflicts with another one.
        """
        necessary = self.counts(config)[0]
        if self.fills is None or len(sources) <= necessary:
            return config
        source, value = sources[necessary], getattr(config, self.fills)
        if value is not None and config.is_explicit(self.fills):
            raise ConfigError(
                f"{self.fills}={str(value)!r} and the earlier step {source.name!r} are both to "
                "start from. Drop one of them."
            )
        filled = config.changed({self.fills: str(source.path)})
        filled.check_rules()
        return filled

    def takes(self, task: Task) -> bool:
        """Return whether the stage supports a task's problem type; with several heads, all of
        theirs."""
        kinds = {each.name for each in task.problem.heads.values()} or {task.problem_type}
        return self.problem_types is None or kinds.issubset(self.problem_types)

    def accepts(self, task: Task) -> None:
        """Raise ConfigError for a task whose problem type the stage does not support."""
        if not self.takes(task):
            raise ConfigError(
                f"stage {self.name!r} takes tasks of "
                f"{', '.join(map(repr, self.problem_types or ()))}, "
                f"and task {task.name!r} is one of {task.problem_type!r}. Leave this stage out, or "
                "give another task."
            )

    def check_source(self, config: Any, position: int, source: str, product: Product) -> None:
        """Raise a BertenderError if an earlier step will not meet this stage's requirement."""
        self.wants(config, position).check(source, product)
        if product.model is None:
            return
        try:
            self.check_model(config, position, product.model.model)
            if product.model.shape_known:
                self.check_shape(config, position, product.model.model)
        except BertenderError as error:
            error.args = (f"it starts from {source!r}: {error}",)
            raise

    def check_out(self, config: Config, out: Path, force: bool) -> None:
        """Raise ArtifactError if a finished artifact would be replaced without `force`."""
        for place in (out, *self.also_writes(config, out)):
            check_not_finished(place, force)

    def files_digest(self, config: Config) -> str:
        """Return a digest of the files that the settings name."""
        return " ".join(each.digest() for each in self.files(config))

    def machine(self, config: Any) -> str:
        """Return what the output depends on of this machine; empty if it does not."""
        return ""

    def texts_digest(self, config: Config, task: Task) -> str:
        """Return a digest of the texts that the stage reads besides the splits of the task."""
        texts = self.texts(config, task)
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else ""

    def result(self, output: Path) -> dict[str, Any]:
        """Return the stage's output as plain values."""
        if self.suffix:
            return dict(json.loads(output.read_text(encoding="utf-8")))
        plain = Artifact.load(output, verify=False).card.model_dump(mode="json")
        shown = {name: plain[name] for name in ("stage", "kind", "precision", "findings")}
        return {**shown, "left_out": plain["task"]["left_out"]}


class Report(Stage):
    """A stage whose output is a JSON file of what it measured, not an artifact."""

    suffix = ".json"

    def machine(self, config: Any) -> str:
        here = environment()
        return f"{processor_name(here)}, {here.cores} cores"
