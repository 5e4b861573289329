"""Stage: one row, from which the command, the recipe step and the Python function are made.

A recipe is checked by these rows before its first step runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertender.core.artifact import Artifact, check_not_finished
from bertender.core.config import Config, Record
from bertender.core.errors import ConfigError
from bertender.core.saving import save_result
from bertender.pipeline.named_files import NamedFile
from bertender.pipeline.products import CLASSIFIER, Earlier, Product, Source, Want
from bertender.pipeline.source_files import PROJECT, source_digest
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task
from bertender.text.example import Example

if TYPE_CHECKING:  # they load PyTorch
    from bertender.models.expected import ExpectedModel

__all__ = [
    "Inputs",
    "Stage",
    "provided_by",
]

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
