"""Exporting: a torch artifact to an onnx artifact, behind the parity gate."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
from optimum.exporters.tasks import TasksManager
from torch.jit import TracerWarning  # type: ignore[attr-defined]
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.measure.gate import GraphWriter, Proof, write_proven
from bertender.measure.parity import parity_sample
from bertender.models.families import padding_embedding
from bertender.models.graph_file import save_graph
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.onnx_session import LEFT_OUT, SESSION_CONFIG
from bertender.models.opening import load_torch_classifier
from bertender.models.predictor import input_names
from bertender.models.recorded_problem import problem_of
from bertender.problems import PROBLEMS
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer
from export.aliases import drop_aliases
from export.config import ExportConfig
from export.graph_report import report_graph
from export.half_range import fit_half_range
from export.optimization import OPTIMIZATIONS
from export.optimum_export import write_by_optimum
from export.own_export import OWN_WRITERS
from export.precisions import PRECISIONS

__all__ = [
    "ExportConfig",
    "check_architecture",
    "check_exportable",
    "export",
    "write_onnx",
]

ONNX_EXPORTER_LOG = "optimum.exporters.onnx"
LSTM_WARNING = "Exporting a model to ONNX with a batch_size other than 1"


def export(source: Artifact, task: Task, config: ExportConfig, out: Path) -> Artifact:
    """Write `source` as an ONNX artifact of dynamic batch and length, and prove that its outputs
    agree with those of its source.

    The directory opens with Optimum's ORTModelForSequenceClassification as it is, unless its
    architecture is one of OWN_MODELS: Optimum then reports that it does not know it.

    Raises:
        ConfigError: a setting would change nothing.
        ModelError: the source is not a torch classifier, of an architecture without an export, or
            a MobileBERT that reads its padding; no attention of it can be fused as asked; or
            float16 may not hold what it computes.
        ParityError: the graph's outputs differ; nothing is written then.
    """
    config.check_rules()
    check_exportable(source)

    def write(directory: Path) -> Proof:
        return Proof(findings=write_onnx(source, task, config, directory))

    return write_proven(source, task, config, out, GraphWriter("export", config.precision, write))


def check_exportable(source: Artifact) -> None:
    """Raise ModelError unless `source` is a torch classifier."""
    if source.card.kind != "torch" or not source.card.task.labels:
        raise ModelError(
            f"{source.path} is of kind {source.card.kind!r} (stage {source.card.stage!r}); only "
            "torch classifiers can be exported. Give the artifact of `finetune` or `distill`."
        )


def write_onnx(source: Artifact, task: Task, config: ExportConfig, directory: Path) -> Findings:
    """Write model.onnx, config.json and the tokenizer into `directory`.

    Returns:
        The findings of the graph for the artifact's card, and of its numbers where they were read.
    """
    path, precision = directory / ONNX_NAME, PRECISIONS[config.precision]
    optimization = OPTIMIZATIONS[config.optimize]
    # eager attention is the pattern that graph fusions know
    model = load_torch_classifier(source, attn_implementation="eager")
    _check_padding_unread(source, model)
    check_architecture(model, config)
    optimization.prepare(model)
    _trace(source, model, config, directory)
    encode = problem_of(source).encoder(load_tokenizer(directory), None)
    examples = parity_sample(task.dev.examples, config.parity_texts, config.seed)
    numbers = precision.examine(path, encode, examples, config.overflow == "allow")
    _tidy(path, config)
    graph = optimization.run(path)
    report = report_graph(graph, config.optimize, model.config.num_hidden_layers)
    optimization.check(model, report)
    save_graph(precision.convert(graph), path, config.external_above_mb)
    return Findings(
        graph=report, numbers=numbers, left_out_optimizers=LEFT_OUT, session_config=SESSION_CONFIG
    )


def _trace(source: Artifact, model: PreTrainedModel, config: ExportConfig, directory: Path) -> None:
    """Write the files of `write_onnx`, the graph as it is traced: in float32."""
    write = OWN_WRITERS.get(source.card.family, _write_with_optimum)
    tokenizer = load_tokenizer(source.path)
    names = [name for name in input_names(model) if name in tokenizer.model_input_names]
    with _quiet_exporter():
        write(problem_of(source).onnx_task, model, directory, config.opset, names)
    tokenizer.save_pretrained(directory)


def _tidy(path: Path, config: ExportConfig) -> None:
    """Bring the masks of the graph at `path` into the range of float16, and drop second names."""
    graph = onnx.load(path)
    drop_aliases(graph)
    fit_half_range(graph)
    save_graph(graph, path, config.external_above_mb)


def _write_with_optimum(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    try:
        write_by_optimum(onnx_task, model, directory, opset, names)
    except ValueError as error:
        raise _not_exported(model, str(error).split(". ")[0]) from None


def check_architecture(model: PreTrainedModel, config: ExportConfig) -> None:
    """Raise ModelError where a model's architecture has no export, or not the optimized one."""
    model_type = model.config.model_type
    if model_type not in OWN_WRITERS and not _is_exported(model_type):
        raise _not_exported(model, "Optimum has no ONNX classifier of this architecture")
    OPTIMIZATIONS[config.optimize].accepts(model)


def _is_exported(model_type: str) -> bool:
    """Return whether the exporter has an architecture for the tasks of some problem type."""
    exported = TasksManager.get_supported_model_type_for_task
    return any(model_type in exported(row.onnx_task, "onnx") for row in PROBLEMS.values())


def _not_exported(model: PreTrainedModel, cause: str) -> ModelError:
    return ModelError(
        f"a {model.config.model_type!r} model cannot be exported: {cause}. "
        "Start from an encoder with an export: bert, roberta, electra, mpnet, distilbert; or "
        "distill this one into a student that starts from such an encoder (--student)."
    )


def _check_padding_unread(source: Artifact, model: PreTrainedModel) -> None:
    """Raise ModelError where a text's logits would change with its padding, whatever the graph."""
    padding = padding_embedding(model)
    if padding is not None and padding.any():
        raise ModelError(
            f"{source.path}: the embedding of padding (token {model.config.pad_token_id}) has "
            f"numbers up to {float(padding.abs().max()):.3g}, allowed is 0: in a "
            f"{source.card.family!r} model each token reads its neighbours, so that a text would "
            "have other logits in a batch than alone. Train it once more from there, which "
            f"sets it to 0: bertender finetune --teacher {source.path}."
        )


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's advice and the tracer's warnings from the user.

    Tracing warns of every shape that becomes a constant. The parity gate, which runs other shapes
    than the traced one, is the check that counts.
    """
    exporter = logging.getLogger(ONNX_EXPORTER_LOG)
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=TracerWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message=LSTM_WARNING)
            yield
    finally:
        exporter.setLevel(level)
