"""Quantizing: an artifact to a smaller, faster one, behind the gates of parity and accuracy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from bertender.core.artifact import Artifact, refuse_unwritable
from bertender.core.config import Rule
from bertender.core.errors import AccuracyError, ConfigError, ModelError
from bertender.core.onnx_predictor import ONNX_DATA_NAME, ONNX_NAME
from bertender.core.predictor import onnx_file, refuse_taggers
from bertender.core.work import work_directory
from bertender.measure.gate import Proof, write_proven
from bertender.tasks.task import Task
from quantize.config import SchemeConfig
from quantize.job import Job, Written
from quantize.kernels import operators, refuse_float_kernels
from quantize.saturation import probe
from quantize.schemes import RULES, Scheme, scheme_named
from quantize.targets import runs_here, target_named

__all__ = [
    "QuantizeConfig",
    "copy_companions",
    "quantize",
    "refuse_other_task",
    "refuse_unquantizable",
]


def _known(name: str) -> str:
    scheme_named(name)
    return name


class QuantizeConfig(SchemeConfig):
    """How to quantize."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    scheme: Annotated[str, AfterValidator(_known)] = Field(
        "dynamic", description="how to choose scales: a row of `bertender schemes`"
    )


def quantize(
    source: Artifact,
    task: Task,
    config: QuantizeConfig,
    out: Path,
    *,
    write_onnx: Callable[[Artifact, Path], object] | None = None,
) -> Artifact:
    """Write an 8-bit model of `source`, and prove that it stays within the tolerance of int8.

    Args:
        source: a float32 onnx artifact; a torch one for schemes that train.
        task: what the source answers; its training texts calibrate, its held-out texts prove.
        config: see QuantizeConfig.
        out: directory of the artifact.
        write_onnx: writes a torch artifact's graph into a directory; schemes that train need it.

    Raises:
        ConfigError: a setting that the scheme does not read, or a task with other labels.
        ModelError: the source is of another kind, quantized already, or a tagger; the target runs
            no 8-bit models faster; or the graph saturates or runs in float on this machine.
        AccuracyError: the score fell by more than `max_drop`.
        ParityError: the answers moved too far. Nothing is written then, nor in the cases above.
    """
    scheme = scheme_named(config.scheme)
    config.check_rules()
    refuse_unquantizable(source, scheme)
    refuse_other_task(source, task)
    scheme.refuse(source)
    refuse_unwritable(out, source)
    if scheme.source == "torch" and write_onnx is None:
        raise ConfigError(f"scheme {config.scheme!r} wants `write_onnx`, the way to a graph.")
    target_name, target = target_named(config.target)
    with _checkpoints(source, task, config, out) as work, TemporaryDirectory() as folder:
        given = (onnx_file(source), work, task, config, target, Path(folder), write_onnx)
        job = Job(source, *given)

        def write(directory: Path) -> Proof:
            copy_companions(source, directory)
            written = scheme.write(job, directory / ONNX_NAME)
            found = _proven(job, directory / ONNX_NAME, written, runs_here(target_name))
            metrics = {"quantization": {"target": target_name, **found}}
            return Proof(written.reference, written.tolerance, metrics)

        return write_proven(
            source, task, config, out, stage="quantize", precision=scheme.precision, write=write
        )


@contextmanager
def _checkpoints(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Iterator[Path]:
    """Give the directory of a training's checkpoints, which stays where a gate refuses."""
    if scheme_named(config.scheme).source == "onnx":  # nothing is trained
        yield out
        return
    settings = config.model_dump(mode="json", exclude={"max_drop", "parity_texts"})
    with work_directory(out, "quantize", settings, task.fingerprint(), source.digest) as work:
        yield work


def _proven(job: Job, graph: Path, written: Written, here: bool) -> dict[str, Any]:
    """Return what the artifact says of its graph; raise what speaks against it.

    What runs, and how exactly, is asked only where this machine is such a one as will serve.
    """
    found = operators(graph)
    count = len(written.quantized)
    return {
        "products": count,
        "running_in_integers": refuse_float_kernels(found, count) if here else None,
        "float_nodes": dict(written.float_nodes),
        "operators": found,
        "saturation": probe(job, graph) if here else None,
        **_scores(job, graph, written.score),
        **written.found,
    }


def _scores(job: Job, graph: Path, known: float | None) -> dict[str, Any]:
    """Return the scores before and after, where something was trained or a drop is bounded.

    Raises:
        AccuracyError: the score fell by more than `max_drop`.
    """
    allowed = job.config.max_drop
    if allowed is None and job.source.card.kind == "onnx":
        return {}
    after = job.score(graph) if known is None else known
    if allowed is not None and job.drop(after) > allowed:
        raise AccuracyError(
            f"the quantized model lost {job.drop(after):.4g} points of {job.task.metric} "
            f"({job.score_before:.4f} to {after:.4f}), and max_drop={allowed:g} allows no more. "
            "Schemes that lose less: mixed returns parts to float until it holds, qat trains; a "
            "trained model may want more epochs."
        )
    return {"score_before": job.score_before, "score": after}


def refuse_unquantizable(source: Artifact, scheme: Scheme) -> None:
    """Raise ModelError unless `source` is what the scheme starts from."""
    refuse_taggers(source)
    kind, precision = source.card.kind, source.card.precision
    if precision != "float32":
        raise ModelError(f"{source.path} is {precision} already; give the float32 one it is from.")
    if source.card.config.get("optimize") == "fused":
        raise ModelError(
            f"{source.path} is of fused operators, whose weights are not quantized one by one. "
            "Export it again without --optimize fused."
        )
    if kind != scheme.source:
        next_step = (
            "Export it first: bertender export."
            if scheme.source == "onnx"
            else "Give the artifact that it was exported from."
        )
        raise ModelError(
            f"{source.path} is of kind {kind!r}; only {scheme.source} artifacts are quantized by "
            f"this scheme. {next_step}"
        )


def refuse_other_task(source: Artifact, task: Task) -> None:
    """Raise ConfigError where the texts are of a task that the source does not answer."""
    labels, columns = source.card.task.labels, source.card.task.text_columns
    if labels != task.labels or len(columns) != len(task.text_columns):
        raise ConfigError(
            f"task {task.name!r} has the labels {', '.join(task.labels)} and "
            f"{len(task.text_columns)} text column(s); {source.path} answers {', '.join(labels)} "
            f"from {len(columns)}. Texts of another task calibrate and prove nothing: give its own."
        )


def copy_companions(source: Artifact, directory: Path) -> None:
    """Copy everything but the model and the card: config.json and the tokenizer."""
    for name in source.card.files:
        if name not in (ONNX_NAME, ONNX_DATA_NAME, "model.safetensors"):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / name, target)
