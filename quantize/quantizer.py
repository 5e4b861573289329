"""Quantizing: from an artifact to a smaller, faster one, behind the gates of parity and
accuracy."""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertender.comparison.accuracy import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.comparison.calibration import warn_of_training
from bertender.core.artifact import Artifact, check_writable, copy_companions
from bertender.core.build_once import work_directory
from bertender.core.card import read_card
from bertender.core.config import Config, Rule
from bertender.core.errors import (
    AccuracyError,
    ConfigError,
    GateError,
    ModelError,
    ParityError,
)
from bertender.core.files import scratch_folder
from bertender.core.findings import Findings, QuantizationFindings, ScoreFindings, TriedScheme
from bertender.gate.artifacts import new_graph, open_source, require_agreement
from bertender.models.classifier import load_torch_classifier, onnx_file, open_classifier
from bertender.models.graphs import FUSED
from bertender.models.onnx_session import LEFT_OUT, ONNX_NAME, SESSION_CONFIG
from bertender.models.own_models import expected_on_disk
from bertender.models.runtimes import check_installed
from bertender.tasks.task import Task
from quantize.attention import check_attention, in_plain_form
from quantize.config import AUTO_SCHEME, SCHEMES, SHARED, QuantizeConfig, Settings, candidates
from quantize.context import QuantizationContext, Writer, Written
from quantize.four_bit import FourBit, FourBitEmbeddings
from quantize.graph_check import (
    KERNELS,
    PROBED_TEXTS,
    check_attentions,
    check_float_nodes,
    check_kernels,
    compare_attentions,
    compare_float_nodes,
    operators,
)
from quantize.integers import Integers8, check_exact, runs_here, target_of
from quantize.post_training import Dynamic, Static
from quantize.product_check import (
    check_products,
    check_sums,
    compare_products,
    find_parts,
    sample_rows,
)
from quantize.q_bert import QBert
from quantize.qat import Qat
from quantize.rounding import round_weights
from quantize.sensitivity import Mixed
from quantize.smoothing import Smoothing, choose_smoothing, smoothed

logger = logging.getLogger(__name__)

WriteOnnx = Callable[[Artifact, Path], object]
REFUSALS = (AccuracyError, GateError, ParityError)
"""Errors of the gates, which another scheme may pass; other errors affect all schemes."""
WRITERS: dict[str, Writer] = {
    "dynamic": Dynamic(),
    "static": Static(),
    "mixed": Mixed(),
    "four-bit-embeddings": FourBitEmbeddings(),
    "four-bit": FourBit(),
    "qat": Qat(),
    "q-bert": QBert(),
}
"""Row of SCHEMES -> writer of its graph."""


def quantize(
    source: Artifact,
    task: Task,
    config: QuantizeConfig,
    out: Path,
    *,
    write_onnx: WriteOnnx | None = None,
) -> Artifact:
    """Quantize `source`, and check that its outputs stay within tolerance.

    Without a scheme, the first of CANDIDATES that passes is written; its card lists those tried.

    Args:
        source: a float32 onnx artifact, or a torch artifact for schemes that train.
        task: task of the source; training texts calibrate, validation texts choose and check,
            held-out texts score.
        config: settings of `quantize`.
        out: directory of the artifact.
        write_onnx: writes a torch artifact's graph into a directory; schemes that train need it.

    Raises:
        ConfigError: the scheme does not read a setting, or the task has other labels.
        ModelError: the source is of another kind, or already quantized; 8-bit models are slower on
            the target; sums saturate on this machine; or, with `fused_attention`, no attention can
            be fused, or a fused one is wrong.
        RuntimeMissingError: the runtime is not installed.
        GateError: the graph runs in float on this machine, or a part of it is wrong.
        AccuracyError: the score fell by more than `max_drop`.
        ParityError: the outputs moved too far. After any error, nothing is written.
    """
    config.check_rules()
    check_installed(config.runtime)
    if config.scheme != AUTO_SCHEME:
        try:
            return _quantized(source, task, config, out, write_onnx, Fit())
        except REFUSALS as error:
            step = next_command(config, source, task, out)
            raise type(error)(f"{error} {step}") from error
    tried, fit = list[TriedScheme](), Fit()
    for candidate in candidates(config):
        scheme = candidate.scheme
        if candidate.skipped:
            logger.info("scheme %s is skipped: %s", scheme, candidate.skipped)
            tried.append(TriedScheme(scheme=scheme, skipped=candidate.skipped))
            continue
        settings = candidate.config
        if settings.max_drop and not config.is_explicit("max_drop"):
            whole = in_whole_texts(settings.max_drop, len(task.choices))
            settings = settings.changed({"max_drop": whole})
        try:
            return _quantized(source, task, settings, out, write_onnx, fit, tried)
        except REFUSALS as error:
            logger.warning("scheme %s is refused: %s", scheme, error)
            tried.append(TriedScheme(scheme=scheme, refused=str(error)))
    reasons = " ".join(
        f"skipped {each.skipped}" if each.refused is None else f"refused {each.refused}"
        for each in tried
    )
    step = next_command(candidate.config, source, task, out)
    raise GateError(f"none of the default schemes passes. {reasons} {step}")


def in_whole_texts(points: float, texts: int) -> float:
    """Return a bound on lost points of score, rounded up to whole texts.

    Of 150 texts, one has 0.67 points: below that, chance alone would refuse a sound scheme.
    """
    return round(100 * math.ceil(points / 100 * texts - 1e-9) / texts, 6)


class Fit:
    """Smoothing and rounding fitted to training texts, once for all schemes tried on a source."""

    def __init__(self) -> None:
        self.smoothing: Smoothing | None = None
        self.integer_weights: Mapping[str, Integers8] | None = None

    def applied(self, context: QuantizationContext) -> QuantizationContext:
        """Return a context with a smoothed float graph, and with integers for its weights."""
        if self.smoothing is None:
            self.smoothing = choose_smoothing(context)
        context = smoothed(context, self.smoothing)
        if self.integer_weights is None:
            self.integer_weights = round_weights(context)
        return replace(context, integer_weights=self.integer_weights)


def _quantized(
    source: Artifact,
    task: Task,
    config: QuantizeConfig,
    out: Path,
    write_onnx: WriteOnnx | None,
    fit: Fit,
    tried: Sequence[TriedScheme] = (),
) -> Artifact:
    """Write an artifact by the scheme of the config; `tried` are earlier refusals."""
    target_name, target = target_of(config.target)
    check_source(source, task, config)
    check_writable(out, source)
    if config.trains and write_onnx is None:
        raise ConfigError(f"scheme {config.scheme!r} needs `write_onnx`, which writes a graph.")
    opened, precision = open_source(source, task), config.graph_precision
    with (
        _checkpoints(source, task, config, out) as work,
        scratch_folder() as folder,
        new_graph(source, "quantize", config, out, precision) as draft,
    ):
        copy_companions(source, draft.directory)
        graph = draft.directory / ONNX_NAME
        paths = (onnx_file(source), work, folder)
        context = QuantizationContext(source, task, config, target, *paths, opened, write_onnx)
        if SCHEMES[config.scheme].fitted:
            context = fit.applied(context)
        written = WRITERS[config.scheme].write(context, graph)
        if written.fitted is not None:  # the model was trained
            context = replace(context, fitted=written.fitted)
            own = {"fitted": dict(written.fitted), "calibration": None}
            draft.task = draft.task.model_copy(update=own)
            warn_of_training(source, out)
        quantization = check_graph(context, graph, written, target_name)
        draft.findings = Findings(
            training=written.training,
            scores=check_scores(context, graph, written),
            quantization=quantization.model_copy(update={"tried": tuple(tried)}),
            left_out_optimizers=LEFT_OUT,
            session_config=SESSION_CONFIG,
        )
        require_agreement(
            draft,
            source,
            opened,
            task,
            config,
            name=out.name,
            precision=precision,
            runtime=config.runtime,
            reference=written.reference,
            tolerance=written.tolerance,
        )
    return Artifact.load(out)


def check_source(source: Artifact, task: Task, config: QuantizeConfig) -> None:
    """Raise an error for a source or task that the scheme does not support, before any work."""
    if config.is_static:
        check_exact(target_of(config.target)[0], config.runtime)
    check_quantizable(source, SCHEMES[config.scheme].source)
    check_same_task(source, task)
    if config.fused_attention and (expected := expected_on_disk(source.path)):
        check_attention(expected.model)
    if config.trains:
        task.require_training(f"scheme {config.scheme!r}")
        WRITERS[config.scheme].check(load_torch_classifier(source))


def check_graph(
    context: QuantizationContext, graph: Path, written: Written, target: str
) -> QuantizationFindings:
    """Return the findings on a graph: kernels, sums, products, float nodes and fused attention.

    Kernels and sums are checked only on a machine that computes like the target.

    Args:
        context: context of the quantization.
        graph: graph of the scheme.
        written: the scheme's report on it.
        target: row of TARGETS for serving.

    Raises:
        GateError: the graph runs in float on this machine, or a part is wrong.
        ModelError: this CPU's sums are wrong with any scheme; or a fused attention is wrong.
    """
    runtime = context.config.runtime
    here, kernels = runs_here(target, runtime), operators(graph, runtime)
    count = len(written.quantized)
    running = check_kernels(kernels, count, runtime) if here else None
    floats = written.float_graph or context.graph
    plain = in_plain_form(floats, graph, context.folder)
    groups = find_parts(floats, plain)
    samples = sample_rows(plain, groups, context.texts(PROBED_TEXTS, "check products"))
    sums = check_sums(groups, samples, KERNELS[runtime].run) if here else None
    products = check_products(compare_products(groups, samples, written.ranges))
    between = compare_float_nodes(floats, plain, context.texts(PROBED_TEXTS, "check float nodes"))
    check_float_nodes(between)
    texts = context.texts(PROBED_TEXTS, "check attention")
    check_attentions(compare_attentions(plain, graph, texts))
    return QuantizationFindings(
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
        smoothing_db=context.smoothing_db,
        saturation=sums,
        product_check=products,
        largest_difference_between_products=max(each.difference for each in between),
        ranges=written.ranges,
        sensitivity=written.sensitivity,
    )


def check_scores(
    context: QuantizationContext, graph: Path, written: Written
) -> ScoreFindings | None:
    """Return the scores before and after, for trained models and with `max_drop`.

    Raises:
        AccuracyError: the score fell by more than `max_drop`.
        ConstantError: a trained model has learned nothing but one label.
    """
    config, task = context.config, context.task
    if config.max_drop is None and context.source.card.kind == "onnx":
        return None
    after = context.score(graph) if written.score is None else written.score
    if config.max_drop is not None and context.drop(after) > config.max_drop:
        raise AccuracyError(
            f"the quantized model lost {context.drop(after):.4g} points of {task.metric} "
            f"on {len(task.choices)} texts of {task.chosen_on} "
            f"({context.score_before:.4f} to {after:.4f}), and max_drop={config.max_drop:g} allows "
            "no more. Schemes that lose less: mixed returns parts to float until it holds, qat "
            "trains; a trained model may need more epochs."
        )
    own = {"thresholds": written.thresholds, "fitted": written.fitted or None}
    scores = context.held_out_scores(graph, after, **own)
    if written.training:
        settings = ("scheme", *SETTINGS_OF_RUN)
        advice = f"{another_rate(config)}, more epochs, or a scheme that does not train"
        check_varied(scores, task, config, settings, advice)
    return scores


def write_graph(source: Artifact, task: Task, settings: Mapping[str, Any], path: Path) -> None:
    """Write the quantized graph of an onnx artifact only to measure its size and latency.

    Only its kernels are checked, which do not depend on the weights.

    Args:
        source: a float32 onnx artifact.
        task: task whose training texts calibrate.
        settings: settings of QuantizeConfig, including a scheme.
        path: path of the file.

    Raises:
        ConfigError, ModelError: as for `quantize`, before any work.
        GateError: the runtime does not run all products in integers.
    """
    config = QuantizeConfig.parse(settings)
    name, target = target_of(config.target)
    check_source(source, task, config)
    with scratch_folder() as folder:
        paths = (onnx_file(source), path.parent, folder)
        opened = open_classifier(source)
        context = QuantizationContext(source, task, config, target, *paths, opened)
        if SCHEMES[config.scheme].fitted:  # rounding affects neither size nor latency
            context = smoothed(context, choose_smoothing(context))
        written = WRITERS[config.scheme].write(context, path)
    if runs_here(name, config.runtime):
        running = operators(path, config.runtime)
        check_kernels(running, len(written.quantized), config.runtime)


@contextmanager
def _checkpoints(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Iterator[Path]:
    """Give the directory of a training's checkpoints, which stays if a gate refuses."""
    if not config.trains:
        yield out
        return
    identity = (task.fingerprint(), source.digest)
    with work_directory(out, "quantize", config.shaping(), *identity) as work:
        yield work


def check_quantizable(source: Artifact, kind: str) -> None:
    """Raise ModelError unless `source` is a float artifact of the scheme's kind."""
    precision = source.card.precision
    if precision != "float32":
        raise ModelError(
            f"{source.place} is {precision} already. Give the float32 artifact that it was made "
            "from."
        )
    graph = source.card.findings.graph
    holding = FUSED if graph is None else FUSED & graph.fused.keys()
    if source.card.config.get("optimize") == "fused" and holding:
        raise ModelError(
            f"{source.place} has fused operators ({', '.join(sorted(holding))}), whose weights are "
            "not quantized one by one. Export it again without --optimize fused."
        )
    if source.card.kind != kind:
        next_step = (
            f"Export it first: `bertender export {source.place} --out FOLDER`."
            if kind == "onnx"
            else "Give the artifact that it was exported from."
        )
        raise ModelError(
            f"{source.place} is of kind {source.card.kind!r}; this scheme quantizes {kind} "
            f"artifacts only. {next_step}"
        )


def check_same_task(source: Artifact, task: Task) -> None:
    """Raise ConfigError if the texts are for another task than the source's."""
    labels, columns = source.card.task.labels, source.card.task.text_columns
    if (
        labels != task.labels
        or len(columns) != len(task.text_columns)
        or source.card.task.problem_type != task.problem_type
    ):
        raise ConfigError(
            f"task {task.name!r} has the labels {', '.join(task.labels)} and "
            f"{len(task.text_columns)} text column(s); {source.place} predicts {', '.join(labels)} "
            f"from {len(columns)}. Texts of another task calibrate and prove nothing: give its own."
        )


def next_command(config: QuantizeConfig, source: Artifact, task: Task, out: Path) -> str:
    """Return the next step after a scheme's refusal: a command, if one is left."""
    for row in SCHEMES[config.scheme].then:
        path = _source_of(row["scheme"], source)
        if path is None or _was_tried(row, config):
            continue
        # the card of the artifact there may name the task
        recorded = read_card(path).task.source
        of_task = {} if task.source == recorded else task.source
        flags = (*_flags(of_task), *_flags(_settings(row, config), config))
        place = Artifact.load(path, verify=False).place
        words = ["bertender", "quantize", place, *flags, "--out", str(out)]
        return f"Try next: {shlex.join(words)}"
    return "Keep the float model: no other scheme is likely to pass."


def _source_of(scheme: str, source: Artifact) -> Path | None:
    """Return the artifact that a scheme starts from: this one, or its export's source."""
    if SCHEMES[scheme].source == source.card.kind:
        return source.path
    parent = source.card.parent
    path = None if parent is None else Path(os.path.normpath(source.path / parent.path))
    return path if path and path.is_dir() else None


def _was_tried(row: Settings, config: QuantizeConfig) -> bool:
    """Return whether the settings of a row were already tried."""
    for name, wanted in row.items():
        tried = getattr(config, name)
        if name == "max_drop":
            covered = tried is not None
        elif name in ("epochs", "weight_bits"):
            covered = tried >= wanted
        else:
            covered = tried == wanted
        if not covered:
            return False
    return True


def _settings(row: Settings, config: QuantizeConfig) -> Settings:
    """Return a row with the explicit settings that its scheme reads and no rule refuses."""
    read = SHARED | SCHEMES[row["scheme"]].reads
    carried = {
        name: value
        for name in sorted(config.model_fields_set - {"scheme"})
        if name in read and (value := getattr(config, name)) is not None
    }
    fixed = {**row, **{name: carried[name] for name in ("max_drop",) if name in carried}}
    for rule in config.rules.values():
        if _breaks(rule, type(config).model_validate({**carried, **fixed})):
            carried = {name: carried[name] for name in carried if name not in rule.settings}
    return {**carried, **fixed}


def _breaks(rule: Rule[Any], config: QuantizeConfig) -> bool:
    try:
        rule.check(config)
    except ConfigError:
        return True
    return False


def _flags(settings: Settings, config: Config | None = None) -> Iterator[str]:
    """Yield settings as options; as `--no-` for a setting that is off."""
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is False:
            if config and type(config).model_fields[name].default is True:
                yield f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            if value is not True:
                yield str(value)
