"""The steps of a candidate, as a recipe would name them, and building them.

Each candidate is what the commands make: a student, pruned, exported, quantized. Steps that are
built already are not built again, so that a compression that was killed continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.compression.candidates import Candidate
from bertender.compression.config import CompressConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.saving import save_text
from bertender.pipeline.named_files import NamedFile
from bertender.pipeline.products import GRAPH_TO_QUANTIZE
from bertender.pipeline.recipe import Step
from bertender.pipeline.runner import StepOutcome, run_step
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task

__all__ = ["Built", "build", "check_settings", "graph_steps", "probe_steps", "student_steps"]

TEACHER = "teacher"
ROOM = 2
"""Times the entries that always stay is a vocabulary's default size at least."""
HARDLY_TRAINED = {"epochs": 1, "learning_rate": 1e-5}
"""Of a probe: what it weighs and takes does not depend on what it has learned."""
TO_BE_JUDGED = {"allow_constant": True}
"""One candidate of many that learned nothing ends no search: its round is marked instead."""

OF_A_RECOVERY = frozenset({"epochs", "batch_size", "no_dropout"})
"""Settings of pruning that one which trains nothing refuses."""


@dataclass(frozen=True)
class Built:
    """Artifacts of a candidate's steps."""

    artifacts: Mapping[str, Artifact]
    """By the names of the steps, the teacher's included."""
    seconds: float
    """That they took, whether this run has built them or an earlier one."""

    @property
    def last(self) -> Artifact:
        """The artifact of the last step."""
        return [*self.artifacts.values()][-1]


def student_steps(candidate: Candidate, config: CompressConfig, unlabelled: int) -> list[Step]:
    """Return the steps that train a candidate: distilling and pruning, or those that it has.

    Args:
        candidate: what to train.
        config: how long, and on which texts.
        unlabelled: unlabelled texts to learn from, at most.
    """
    steps = []
    if candidate.is_distilled:
        settings = {**_student(candidate, config, unlabelled), **TO_BE_JUDGED}
        steps.append(_step("student", "distill", (TEACHER,), settings))
    if candidate.is_pruned:
        # a student's recovery learns from the teacher, which knows more than the student does
        sources = (steps[-1].name, TEACHER) if steps else (TEACHER,)
        settings = {**_cuts(candidate, config), **_texts(config, unlabelled)}
        settings |= {"epochs": config.recovery_epochs, "batch_size": config.batch_size}
        settings |= {"no_dropout": config.no_dropout, "seed": config.seed, **TO_BE_JUDGED}
        steps.append(_step("pruned", "prune", sources, settings))
    return steps


def probe_steps(candidate: Candidate, config: CompressConfig) -> tuple[list[Step], list[Step]]:
    """Return the steps of a probe: those on a few texts, and those that read all to be cut."""
    trained = student_steps(candidate, config, 0)
    students = [_changed(step, HARDLY_TRAINED) for step in trained if step.stage == "distill"]
    cuts = [_only_cut(step, config) for step in trained if step.stage == "prune"]
    return students, cuts


def graph_steps(candidate: Candidate, source: str, **settings: Any) -> list[Step]:
    """Return the steps that export and quantize what a step has made; `settings` are for both."""
    return [
        _step("onnx", "export", (source,), settings),
        _step("int8", "quantize", ("onnx",), {**candidate.settings, **settings}),
    ]


def build(
    steps: Sequence[Step], artifacts: Mapping[str, Artifact], task: Task, folder: Path
) -> Built:
    """Build steps in a folder; those that are built already are taken as they are.

    Args:
        steps: each from earlier ones or from `artifacts`.
        artifacts: what is there already, by name.
        task: whose texts they learn from.
        folder: gets an artifact a step.
    """
    done, seconds = dict(artifacts), 0.0
    for step in steps:
        config = STAGES[step.stage].config.parse(step.settings)
        outcome = run_step(step, config, task, done, folder)
        done[step.name] = Artifact.load(outcome.output, verify=False)
        seconds += _seconds(outcome, folder / f"{step.name}.seconds")
    return Built(done, seconds)


def _seconds(outcome: StepOutcome, place: Path) -> float:
    """Return how long a step took, also where an earlier run has built it."""
    if not outcome.reused:
        save_text(f"{outcome.seconds}\n", place)
    try:
        return float(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a run was killed before it noted the time
        return 0.0


def check_settings(candidates: Sequence[Candidate], config: CompressConfig, task: Task) -> None:
    """Raise where a step of a candidate could not be run on the task, or a file is missing.

    Raises:
        BertenderError: what is wrong, before any work.
    """
    unlabelled = int(config.unlabelled is not None or config.unlabelled_texts > 0)
    steps = {
        step.model_dump_json(): step  # many candidates have a step in common
        for candidate in candidates
        for step in (
            *student_steps(candidate, config, unlabelled),
            *graph_steps(candidate, TEACHER),
        )
    }
    files = [file for step in steps.values() for file in _checked_files(step, task)]
    for file in dict.fromkeys(files):  # a packaged encoder's check reads all of it
        file.check()


def _checked_files(step: Step, task: Task) -> Iterable[NamedFile]:
    """Return the files that a step names, whose settings are right for the task."""
    stage = STAGES[step.stage]
    config = stage.config.parse(step.settings)
    if step.stage == "quantize" and stage.wants(config, 0).name != GRAPH_TO_QUANTIZE.name:
        raise ConfigError(
            f"schemes={step.settings['scheme']}: it trains, and a candidate is quantized as it is. "
            "Give schemes that start from a graph, as dynamic or static."
        )
    stage.accepts(task)
    stage.check(config, task)
    return stage.files(config)


def _step(name: str, stage: str, sources: tuple[str, ...], settings: Mapping[str, Any]) -> Step:
    return Step.model_validate(
        {"name": name, "stage": stage, "from": sources, "with": dict(settings)}
    )


def _changed(step: Step, settings: Mapping[str, Any]) -> Step:
    return step.model_copy(update={"settings": {**step.settings, **settings}})


def _only_cut(step: Step, config: CompressConfig) -> Step:
    """Return a step of pruning that trains nothing, and so has no teacher.

    It reads all unlabelled texts where it counts tokens, as the winner's does.
    """
    rest = {name: value for name, value in step.settings.items() if name not in OF_A_RECOVERY}
    counted = _all_texts(config) if "vocab" in rest else {}
    return step.model_copy(
        update={"settings": {**rest, **counted, "recover": False}, "sources": step.sources[:1]}
    )


def _all_texts(config: CompressConfig) -> dict[str, Any]:
    if config.unlabelled is None:
        return _texts(config, config.unlabelled_texts)
    return {"unlabelled": str(config.unlabelled)}


def _student(candidate: Candidate, config: CompressConfig, unlabelled: int) -> dict[str, Any]:
    # whether its vocabulary is cut is the candidate's choice, and a step of pruning
    learning = {**_texts(config, unlabelled), "seed": config.seed, "vocab_size": "all"}
    own = {} if candidate.start.method is None else {"method": candidate.start.method}
    if not candidate.start.layers:  # its passes, its rate and its batches are its own
        return {**own, **learning}
    encoder = candidate.start.encoder
    method = {"method": "pd", "student": encoder} if encoder is not None else own
    shape = {"layers": candidate.layers}
    passes = {"epochs": config.epochs, "learning_rate": config.learning_rate}
    passes |= {"batch_size": config.batch_size, "no_dropout": config.no_dropout}
    return {**method, **shape, **passes, **learning}


def _texts(config: CompressConfig, unlabelled: int) -> dict[str, Any]:
    """Return the settings of so many unlabelled texts."""
    if not unlabelled:
        return {}
    if config.unlabelled is None:
        return {"unlabelled_texts": unlabelled}
    return {"unlabelled": str(config.unlabelled), "max_unlabelled": unlabelled}


def _cuts(candidate: Candidate, config: CompressConfig) -> dict[str, Any]:
    shares = {"heads": candidate.heads, "ffn": candidate.ffn}
    cut = {name: share for name, share in shares.items() if share}
    if not candidate.vocab:
        return cut
    size = _vocabulary_size(candidate, config)
    return {**cut, "vocab": "task", "vocab_floor": config.vocab_floor, "vocab_size": size}


def _vocabulary_size(candidate: Candidate, config: CompressConfig) -> int:
    """Return the most entries of a candidate's vocabulary.

    The default leaves room beside single characters where these are many, as in Chinese.
    """
    if config.is_explicit("vocab_size"):
        return config.vocab_size
    return max(config.vocab_size, ROOM * candidate.start.least_entries)
