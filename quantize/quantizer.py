"""Quantizing: an artifact to a smaller, faster one, behind the gates of parity and accuracy."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertender.comparison.accuracy import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.comparison.runtimes import check_installed
from bertender.core.artifact import GOLDEN_NAME, Artifact, check_writable
from bertender.core.build_once import work_directory
from bertender.core.errors import AccuracyError, ConfigError, GateError, ModelError, ParityError
from bertender.core.findings import Findings, QuantizationFindings, ScoreFindings, TriedScheme
from bertender.gate.artifacts import GraphWriter, Proof, write_proven
from bertender.models.classifier import load_torch_classifier, onnx_file
from bertender.models.onnx_session import LEFT_OUT, ONNX_DATA_NAME, ONNX_NAME, SESSION_CONFIG
from bertender.models.own_models import expected_on_disk
from bertender.tasks.task import Task
from quantize.attention import check_attention, in_plain_form
from quantize.context import QuantizationContext, Written
from quantize.graph_check import check_attentions, check_rest, compare_attentions, compare_rest
from quantize.integers import check_exact, runs_here, target_of
from quantize.kernels import KERNELS, check_kernels, operators, probe
from quantize.product_check import (
    check_products,
    find_twins,
    judge_products,
    sample_rows,
    summary_of,
)
from quantize.quantize_config import QuantizeConfig
from quantize.schemes import AUTO_SCHEME, SCHEMES, Scheme, candidates, next_command

# --- from quantize.proof
# Checks of a quantized graph other than parity: kernels, sums, products, the rest, the score.

PROBED_TEXTS = 64
"""Training texts on whose activations each product is checked."""


def proven(
    context: QuantizationContext,
    graph: Path,
    written: Written,
    target: str,
    tried: Sequence[TriedScheme] = (),
) -> Findings:
    """Return the findings of a graph for its artifact; raise what is wrong with it.

    Kernels and saturation are checked only where this machine computes as the target does.

    Args:
        context: the quantization.
        graph: as the scheme wrote it.
        written: the scheme's report on it.
        target: the row of TARGETS that will serve it.
        tried: schemes that were refused or skipped before.
    """
    runtime = context.config.runtime
    here, kernels = runs_here(target, runtime), operators(graph, runtime)
    count = len(written.quantized)
    running = check_kernels(kernels, count, runtime) if here else None
    quantization = QuantizationFindings(
        target=target,
        runtime=runtime,
        products=count,
        running_in_integers=running,
        float_nodes=written.float_nodes,
        operators=kernels,
        products_of_4_bits=written.products_of_4_bits,
        weight_bits=written.weight_bits,
        tables_of_4_bits=written.tables_of_4_bits,
        fused_attentions=written.fused_attentions,
        ranges=written.ranges,
        sensitivity=written.sensitivity,
        tried=tried,
        **_parts(context, graph, written, here),
    )
    scores = _scores(context, graph, written.score)
    if scores and written.training:
        _check_learned(context, scores)
    return Findings(
        training=written.training,
        scores=scores,
        quantization=quantization,
        left_out_optimizers=LEFT_OUT,
        session_config=SESSION_CONFIG,
    )


def _check_learned(context: QuantizationContext, scores: ScoreFindings) -> None:
    """Raise ConstantError where a model that was trained has learned nothing but one label."""
    config = context.config
    settings = ("scheme", *SETTINGS_OF_RUN)
    advice = f"{another_rate(config)}, more epochs, or a scheme that does not train"
    check_varied(scores, context.task, config, settings, advice)


def _parts(
    context: QuantizationContext, graph: Path, written: Written, here: bool
) -> dict[str, Any]:
    """Return how each part computes, alone; raise GateError where one computes something else.

    Where this CPU's sums are wrong, it is a ModelError: no other scheme adds otherwise. A fused
    attention that computes something else is one, too.
    """
    floats = written.float_graph or context.graph
    plain = in_plain_form(floats, graph, context.folder)
    twins = find_twins(floats, plain)
    samples = sample_rows(plain, twins, context.texts(PROBED_TEXTS, "check products"))
    saturation = probe(twins, samples, KERNELS[context.config.runtime].run) if here else None
    findings = judge_products(twins, samples, written.ranges)
    check_products(findings)
    rest = compare_rest(floats, plain, context.texts(PROBED_TEXTS, "check the rest"))
    check_rest(rest)
    texts = context.texts(PROBED_TEXTS, "check attention")
    check_attentions(compare_attentions(plain, graph, texts))
    return {
        "saturation": saturation,
        "product_check": summary_of(findings),
        "largest_difference_between_products": max(each.difference for each in rest),
    }


def _scores(context: QuantizationContext, graph: Path, known: float | None) -> ScoreFindings | None:
    """Return the scores before and after, where something was trained or a drop is bounded.

    Raises:
        AccuracyError: the score fell by more than `max_drop`.
    """
    allowed = context.config.max_drop
    if allowed is None and context.source.card.kind == "onnx":
        return None
    after = context.score(graph) if known is None else known
    if allowed is not None and context.drop(after) > allowed:
        raise AccuracyError(
            f"the quantized model lost {context.drop(after):.4g} points of {context.task.metric} "
            f"on {len(context.task.choices)} texts of {context.task.chosen_on} "
            f"({context.score_before:.4f} to {after:.4f}), and max_drop={allowed:g} allows no "
            "more. Schemes that lose less: mixed returns parts to float until it holds, qat "
            "trains; a trained model may need more epochs."
        )
    return context.held_out_scores(graph, after)


# --- from quantize.quantizer
# Quantizing: an artifact to a smaller, faster one, behind the gates of parity and accuracy.

logger = logging.getLogger(__name__)

WriteOnnx = Callable[[Artifact, Path], object]
REFUSALS = (AccuracyError, GateError, ParityError)
"""Errors of a gate, which another scheme may pass. Any other error meets every scheme alike."""


def quantize(
    source: Artifact,
    task: Task,
    config: QuantizeConfig,
    out: Path,
    *,
    write_onnx: WriteOnnx | None = None,
) -> Artifact:
    """Write an 8-bit model of `source`, and prove that it stays within the tolerance of int8.

    Without a scheme, the first of CANDIDATES that passes is written; its card has what was tried.

    Args:
        source: a float32 onnx artifact; a torch one for schemes that train.
        task: that of the source; its training texts calibrate, its selection chooses
            and proves, its held-out texts score.
        config: see QuantizeConfig.
        out: directory of the artifact.
        write_onnx: writes a torch artifact's graph into a directory; schemes that train need it.

    Raises:
        ConfigError: a setting that the scheme does not read, or a task with other labels.
        ModelError: the source is of another kind, or quantized already; the target runs
            no 8-bit models faster; the sums of this machine saturate; or, with
            `fused_attention`, no attention can be one operator, or one computes something else.
        RuntimeMissingError: the runtime is not installed.
        GateError: the graph runs in float on this machine, or a part of it is wrong.
        AccuracyError: the score fell by more than `max_drop`.
        ParityError: the outputs moved too far. Nothing is written then, nor in the cases above.
    """
    config.check_rules()
    if config.scheme == AUTO_SCHEME:
        return _first_that_passes(source, task, config, out, write_onnx)
    _check(source, task, config, out, write_onnx)
    try:
        return _quantized(source, task, config, out, write_onnx)
    except REFUSALS as error:
        step = next_command(config.scheme, config, source, task, out)
        raise type(error)(f"{error} {step}") from error


def _first_that_passes(
    source: Artifact, task: Task, config: QuantizeConfig, out: Path, write_onnx: WriteOnnx | None
) -> Artifact:
    """Write the first of the default candidates that passes every gate."""
    tried: list[TriedScheme] = []
    for candidate in candidates(config):
        chosen = QuantizeConfig.model_validate(candidate.config.model_dump(exclude_unset=True))
        if candidate.skipped:
            logger.info("scheme %s is skipped: %s", candidate.scheme, candidate.skipped)
            tried.append(TriedScheme(scheme=candidate.scheme, skipped=candidate.skipped))
            continue
        _check(source, task, chosen, out, write_onnx)
        try:
            return _quantized(source, task, chosen, out, write_onnx, tried)
        except REFUSALS as error:
            logger.warning("scheme %s is refused: %s", candidate.scheme, error)
            tried.append(TriedScheme(scheme=candidate.scheme, refused=str(error)))
    reasons = " ".join(_reason(each) for each in tried)
    step = next_command(chosen.scheme, chosen, source, task, out)
    raise GateError(f"no scheme that is tried by default passes. {reasons} {step}")


def _reason(tried: TriedScheme) -> str:
    return f"skipped {tried.skipped}" if tried.refused is None else f"refused {tried.refused}"


def _check(
    source: Artifact, task: Task, config: QuantizeConfig, out: Path, write_onnx: WriteOnnx | None
) -> None:
    """Raise what is wrong with a quantization's settings, before any work."""
    scheme = SCHEMES[config.scheme]
    config.check_rules()
    check_installed(config.runtime)
    target, _ = target_of(config.target)
    if scheme.is_static(config):
        check_exact(target, config.runtime)
    check_quantizable(source, scheme)
    check_same_task(source, task)
    if config.fused_attention and (expected := expected_on_disk(source.path)):
        check_attention(expected.model)
    if scheme.source == "torch":
        task.require_training(f"scheme {config.scheme!r}")
        scheme.check(load_torch_classifier(source))
    check_writable(out, source)
    if scheme.source == "torch" and write_onnx is None:
        raise ConfigError(f"scheme {config.scheme!r} needs `write_onnx`, which writes a graph.")


def write_graph(source: Artifact, task: Task, settings: Mapping[str, Any], path: Path) -> None:
    """Write the quantized graph of an onnx artifact, to weigh and to time it, not to use it.

    Its kernels are checked, for what runs in integers does not depend on what a model has learned.
    Nothing else is proven.

    Args:
        source: a float32 onnx artifact.
        task: its training texts calibrate.
        settings: of QuantizeConfig; with a scheme.
        path: of the file.

    Raises:
        ConfigError, ModelError: as `quantize`, before any work.
        GateError: the runtime does not run all products in integers.
    """
    config = QuantizeConfig.parse(settings)
    _check(source, task, config, path.parent / "graph", None)
    with TemporaryDirectory() as folder:
        name, target = target_of(config.target)
        shared = (onnx_file(source), path.parent, task, config, target, Path(folder), None)
        written = SCHEMES[config.scheme].write(QuantizationContext(source, *shared), path)
    if runs_here(name, config.runtime):
        running = operators(path, config.runtime)
        check_kernels(running, len(written.quantized), config.runtime)


def _quantized(
    source: Artifact,
    task: Task,
    config: QuantizeConfig,
    out: Path,
    write_onnx: WriteOnnx | None,
    tried: Sequence[TriedScheme] = (),
) -> Artifact:
    """Write an artifact by the scheme of the config; `tried` has what was refused before it."""
    scheme = SCHEMES[config.scheme]
    target_name, target = target_of(config.target)
    with _checkpoints(source, task, config, out) as work, TemporaryDirectory() as folder:
        shared = (onnx_file(source), work, task, config, target, Path(folder), write_onnx)
        context = QuantizationContext(source, *shared)

        def write(directory: Path) -> Proof:
            copy_companions(source, directory)
            written = scheme.write(context, directory / ONNX_NAME)
            findings = proven(context, directory / ONNX_NAME, written, target_name, tried)
            return Proof(written.reference, written.tolerance, findings)

        writer = GraphWriter("quantize", scheme.precision(config), write, config.runtime)
        return write_proven(source, task, config, out, writer)


@contextmanager
def _checkpoints(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Iterator[Path]:
    """Give the directory of a training's checkpoints, which stays where a gate refuses."""
    if SCHEMES[config.scheme].source == "onnx":  # nothing is trained
        yield out
        return
    identity = (task.fingerprint(), source.digest)
    with work_directory(out, "quantize", config.shaping(), *identity) as work:
        yield work


def check_quantizable(source: Artifact, scheme: Scheme) -> None:
    """Raise ModelError unless `source` is what the scheme starts from."""
    kind, precision = source.card.kind, source.card.precision
    if precision != "float32":
        raise ModelError(f"{source.place} is {precision} already; give the float32 one it is from.")
    if source.card.config.get("optimize") == "fused":
        raise ModelError(
            f"{source.place} is of fused operators, whose weights are not quantized one by one. "
            "Export it again without --optimize fused."
        )
    if kind != scheme.source:
        next_step = (
            f"Export it first: `bertender export {source.place} --out FOLDER`."
            if scheme.source == "onnx"
            else "Give the artifact that it was exported from."
        )
        raise ModelError(
            f"{source.place} is of kind {kind!r}; only {scheme.source} artifacts are quantized by "
            f"this scheme. {next_step}"
        )


def check_same_task(source: Artifact, task: Task) -> None:
    """Raise ConfigError where the texts are of another task than the source's."""
    labels, columns = source.card.task.labels, source.card.task.text_columns
    if (
        labels != task.labels
        or len(columns) != len(task.text_columns)
        or source.card.task.problem_type != task.problem_type
    ):
        raise ConfigError(
            f"task {task.name!r} has the labels {', '.join(task.labels)} and "
            f"{len(task.text_columns)} text column(s); {source.path} predicts {', '.join(labels)} "
            f"from {len(columns)}. Texts of another task calibrate and prove nothing: give its own."
        )


def copy_companions(source: Artifact, directory: Path) -> None:
    """Copy config.json and the tokenizer: everything but the card, the model and its outputs."""
    for name in source.card.files:
        if name not in (ONNX_NAME, ONNX_DATA_NAME, "model.safetensors", GOLDEN_NAME):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / name, target)
