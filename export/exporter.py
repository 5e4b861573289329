"""Exporting: a torch artifact to an onnx artifact, behind the parity gate.

Optimum writes the graphs of the architectures that it knows. Those of OWN_MODELS are traced here,
or written as Optimum writes those of their origin.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from optimum.exporters.onnx import onnx_export_from_model
from optimum.exporters.tasks import TasksManager
from torch.jit import TracerWarning  # type: ignore[attr-defined]
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.findings import Findings, GraphFindings
from bertender.gate.artifacts import new_graph, open_source, require_agreement
from bertender.gate.judge import parity_sample
from bertender.models.classifier import input_names, load_torch_classifier, problem_of
from bertender.models.families import family_name, padding_embedding
from bertender.models.graphs import LOGITS, RUNTIME_DOMAIN, save_graph
from bertender.models.onnx_session import LEFT_OUT, ONNX_NAME, SESSION_CONFIG
from bertender.models.own_models import PRUNABLE, TABLE_MODELS
from bertender.problems import PROBLEMS
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from export.config import ExportConfig
from export.precision import OPTIMIZATIONS, PRECISIONS, fit_half_range

ONNX_EXPORTER_LOG = "optimum.exporters.onnx"
LSTM_WARNING = "Exporting a model to ONNX with a batch_size other than 1"
SEGMENTS = "token_type_ids"
LOWEST_OPSET = 14
TRACED_TOKENS = 9

GraphWriter = Callable[[str, PreTrainedModel, Path, int | None, Sequence[str]], None]
"""(the exporter's name of the task, model, directory, opset, token columns that the graph reads)
writes model.onnx and config.json; without an opset the lowest."""


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
    opened, precision = open_source(source, task), config.precision
    with new_graph(source, "export", config, out, precision) as draft:
        draft.findings = write_onnx(source, task, config, draft.directory)
        require_agreement(draft, source, opened, task, config, name=out.name, precision=precision)
    return Artifact.load(out)


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
    tokenizer = load_tokenizer(source.path)
    names = [name for name in input_names(model) if name in tokenizer.model_input_names]
    write = OWN_WRITERS.get(source.card.family, write_by_optimum)
    with _quiet_exporter():
        write(problem_of(source).onnx_task, model, directory, config.opset, names)
    tokenizer.save_pretrained(directory)
    encode = problem_of(source).encoder(load_tokenizer(directory))
    examples = parity_sample(task.dev.examples, config.parity_texts, config.seed)
    numbers = precision.examine(path, encode, examples, allow=config.overflow == "allow")
    traced = onnx.load(path)
    drop_aliases(traced)
    fit_half_range(traced)
    add_column_outputs(traced, problem_of(source).column_outputs)
    save_graph(traced, path, config.external_above_mb)
    graph = optimization.run(path)
    fused = Counter(node.op_type for node in graph.graph.node if node.domain == RUNTIME_DOMAIN)
    found = GraphFindings(
        opset=next(entry.version for entry in graph.opset_import if not entry.domain),
        optimize=config.optimize,
        nodes=len(graph.graph.node),
        fused=dict(sorted(fused.items())),
        layers=model.config.num_hidden_layers,
    )
    optimization.check(model, found)
    save_graph(precision.convert(graph), path, config.external_above_mb)
    return Findings(
        graph=found, numbers=numbers, left_out_optimizers=LEFT_OUT, session_config=SESSION_CONFIG
    )


def check_architecture(model: PreTrainedModel, config: ExportConfig) -> None:
    """Raise ModelError where a model's architecture has no export, or not the optimized one."""
    model_type = model.config.model_type
    exported = TasksManager.get_supported_model_type_for_task
    known = (model_type in exported(row.onnx_task, "onnx") for row in PROBLEMS.values())
    if model_type not in OWN_WRITERS and not any(known):
        raise _not_exported(model, "Optimum has no ONNX classifier of this architecture")
    OPTIMIZATIONS[config.optimize].accepts(model)


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


def add_column_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Give a graph an output (batch, seq) for each column of its logits, in place.

    Optimum and transformers.js read a start and an end. Who asks for the logits alone computes no
    more than these.
    """
    if not names:
        return
    columns = [f"{name}/column" for name in names]
    sizes, last = "column_outputs/sizes", "column_outputs/last"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(len(names), np.int64), sizes))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), last))
    model.graph.node.append(helper.make_node("Split", [LOGITS, sizes], columns, LOGITS, axis=-1))
    for name, column in zip(names, columns, strict=True):
        model.graph.node.append(helper.make_node("Squeeze", [column, last], [name], name))
        model.graph.output.append(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "seq"])
        )


def drop_aliases(model: onnx.ModelProto) -> None:
    """Let every node of a graph read its constants by their own names, in place.

    The exporter writes tensors of equal numbers once (all biases that are 0, say) and an Identity
    node for each other name. Whoever looks for a product's weight or bias would find a computed
    tensor.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    outputs = {output.name for output in graph.output}
    origin: dict[str, str] = {}
    remaining = []
    for node in graph.node:
        source = origin.get(node.input[0], node.input[0]) if node.input else ""
        if node.op_type == "Identity" and source in constants and node.output[0] not in outputs:
            origin[node.output[0]] = source
            continue
        for place, name in enumerate(node.input):
            node.input[place] = origin.get(name, name)
        remaining.append(node)
    del graph.node[:]
    graph.node.extend(remaining)


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


def write_by_optimum(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write model.onnx and config.json of a model whose architecture Optimum knows.

    Optimum goes by the architecture: a BERT's graph reads token types, and a RoBERTa's does not.
    But a model may know one alone, whose tokenizer may give none (an MPNet's student is a BERT),
    and some RoBERTas have two.

    Args:
        onnx_task: Optimum's name of the task.
        model: what to trace; `export_model_type` in its config stands for its type.
        directory: where to write.
        opset: None for the lowest.
        names: the token columns that the graph reads.

    Raises:
        ModelError: Optimum does not know the architecture, or not for this task.
    """
    model_type = getattr(model.config, "export_model_type", None) or model.config.model_type
    try:
        constructor = TasksManager.get_exporter_config_constructor(
            "onnx", task=onnx_task, model_type=model_type, library_name="transformers"
        )
        usual, settings = constructor(model.config, task=onnx_task), None
        if (SEGMENTS in names) is not (SEGMENTS in usual.inputs):
            read = {name: axes for name, axes in usual.inputs.items() if name != SEGMENTS}
            read |= {SEGMENTS: read["input_ids"]} if SEGMENTS in names else {}
            kind = type("OfTheModel", (type(usual),), {"inputs": property(lambda _: read)})
            settings = {"model": kind(model.config, task=onnx_task)}
        onnx_export_from_model(
            model,
            directory,
            task=onnx_task,
            do_validation=False,
            opset=opset,
            custom_onnx_configs=settings,
        )
    except ValueError as error:
        raise _not_exported(model, str(error).split(". ")[0]) from None


def write_traced(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write the graph of one run over a text, with batch and length left open.

    The model must do the same whatever the values of its tokens are; the parity gate, which runs
    other texts than the traced one, is the check that counts.
    """
    # no module around the model, whose name would stand before those of all nodes and weights:
    # schemes that train find the model's parts by them
    traced, whole = copy.copy(model.eval()), type(model).forward

    def forward(*columns: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = whole(traced, **dict(zip(names, columns, strict=True))).logits
        return logits

    traced.forward = forward
    tokens = {0: "batch", 1: "seq"}
    torch.onnx.export(
        traced,
        tuple(torch.ones(1, TRACED_TOKENS, dtype=torch.long) for _ in names),
        str(directory / ONNX_NAME),
        input_names=names,
        output_names=["logits"],
        dynamic_axes={**dict.fromkeys(names, tokens), "logits": {0: "batch"}},
        opset_version=opset or LOWEST_OPSET,
        dynamo=False,  # the exporter that Optimum takes for all other models
    )
    model.config.save_pretrained(directory)


def write_as_its_origin(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write the graph of a pruned model as Optimum writes those of its origin."""
    row = PRUNABLE[family_name(model.config)]
    plain, plain.config = copy.copy(model), copy.copy(model.config)
    # Optimum asks a model's class which library it is of
    plain.__class__, _ = row.classes_of(model)
    plain.config.export_model_type = model.config.pruned_from
    write_by_optimum(onnx_task, plain, directory, opset, names)
    model.config.save_pretrained(directory)


OWN_WRITERS: Mapping[str, GraphWriter] = {
    **dict.fromkeys(TABLE_MODELS, write_traced),
    **{row.config.model_type: write_as_its_origin for row in PRUNABLE.values()},
}
"""model_type of a row of OWN_MODELS -> what writes its graph."""
