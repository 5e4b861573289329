"""Exporting: from a torch artifact to an onnx artifact, behind the parity gate.

PyTorch's tracer writes the graph of any architecture; the gate finds its errors by running other
texts and lengths than the traced ones.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.jit import TracerWarning  # type: ignore[attr-defined]
from transformers import PreTrainedModel, masking_utils

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.files import scratch_folder
from bertender.core.findings import Findings, GraphFindings
from bertender.gate.artifacts import new_graph, open_source, require_agreement
from bertender.gate.judge import parity_sample
from bertender.models.classifier import input_names, load_torch_classifier, problem_of
from bertender.models.embedders import Embedder
from bertender.models.families import FAMILIES, family_name, padding_embedding
from bertender.models.family import BEFORE_5
from bertender.models.graphs import LOGITS, STATES, nodes_of, save_graph
from bertender.models.onnx_session import LEFT_OUT, ONNX_NAME, RUNTIME_DOMAIN, SESSION_CONFIG
from bertender.models.own_models import TABLE_MODELS
from bertender.models.steps import STEPS
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer, save_tokenizer
from export.config import ExportConfig
from export.precision import OPTIMIZATIONS, PRECISIONS, fit_half_range

LSTM_WARNING = "Exporting a model to ONNX with a batch_size other than 1"
TRACED = 2, 9
"""Texts, and tokens per text, to trace a graph."""


def export(source: Artifact, task: Task, config: ExportConfig, out: Path) -> Artifact:
    """Write `source` as an ONNX artifact with dynamic batch and length, and check that its outputs
    agree with those of its source.

    Optimum's ORTModelForSequenceClassification opens the directory, unless its architecture is one
    of OWN_MODELS, which Optimum reports as unknown.

    Raises:
        ConfigError: a setting would have no effect.
        ModelError: the source is not a torch classifier, has an architecture without an export, or
            is a MobileBERT that reads its padding; no attention of it can be fused as requested; or
            float16 may overflow.
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
            f"{source.place} is of kind {source.card.kind!r} (stage {source.card.stage!r}); only "
            "torch classifiers can be exported. Give the artifact of `finetune` or `distill`."
        )


def write_onnx(source: Artifact, task: Task, config: ExportConfig, directory: Path) -> Findings:
    """Write model.onnx, config.json and the tokenizer into `directory`.

    Returns:
        Findings on the graph for the artifact's card, and on its numbers if they were examined.
    """
    path, precision = directory / ONNX_NAME, PRECISIONS[config.precision]
    optimization = OPTIMIZATIONS[config.optimize]
    # graph fusions recognise the pattern of eager attention
    model = load_torch_classifier(source, attn_implementation="eager")
    _check_padding_unread(source, model)
    check_architecture(model, config)
    tokenizer = load_tokenizer(source.path)
    names = [name for name in input_names(model) if name in tokenizer.model_input_names]
    save_tokenizer(tokenizer, directory)
    encode = problem_of(source).encoder(load_tokenizer(directory))
    examples = parity_sample(task.dev.examples, config.parity_texts, config.seed)
    write_traced(model, names, path, config.opset)
    model.config.save_pretrained(directory)
    if isinstance(model, Embedder):
        model.write_sentence_files(directory)
    numbers = precision.examine(path, encode, examples, allow=config.overflow == "allow")
    if optimization.prepare(model):  # fused operators hide numbers
        write_traced(model, names, path, config.opset)
    traced = onnx.load(path)
    drop_aliases(traced)
    drop_unread(traced)
    count_heads(traced)
    fit_half_range(traced)
    add_column_outputs(traced, problem_of(source).column_outputs)
    save_graph(traced, path, config.external_above_mb)
    graph = precision.convert(optimization.run(path))
    fused = Counter(node.op_type for node in graph.graph.node if node.domain == RUNTIME_DOMAIN)
    found = GraphFindings(
        opset=next(entry.version for entry in graph.opset_import if not entry.domain),
        optimize=config.optimize,
        nodes=len(graph.graph.node),
        fused=dict(sorted(fused.items())),
        layers=model.config.num_hidden_layers,
    )
    optimization.check(model, found)
    save_graph(graph, path, config.external_above_mb)
    return Findings(
        graph=found, numbers=numbers, left_out_optimizers=LEFT_OUT, session_config=SESSION_CONFIG
    )


def check_architecture(model: PreTrainedModel, config: ExportConfig) -> None:
    """Raise ModelError if a model's architecture has no export, or no optimized one.

    Args:
        model: a real model, or a planned one without weights. If its architecture is not a row of
            FAMILIES, a layer of the planned model is tried.
        config: settings of the export.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise _not_exported(model, "it has a decoder beside its encoder")
    if obstacle := STEPS["export"](family_name(model.config)):
        raise _not_exported(model, obstacle)
    known = family_name(model.config) in {*FAMILIES, *TABLE_MODELS}
    if not known and model.device.type == "meta":
        settings = copy.copy(model.config)
        settings.num_hidden_layers = 1
        with scratch_folder() as folder:
            path = folder / ONNX_NAME
            write_traced(type(model)(settings), input_names(model), path, config.opset)
    OPTIMIZATIONS[config.optimize].accepts(model)


def _not_exported(model: PreTrainedModel, cause: str) -> ModelError:
    return ModelError(
        f"a {model.config.model_type!r} model cannot be exported: {cause}. "
        "Start from an encoder with an export: bert, roberta, electra, mpnet, distilbert; or "
        "distill this one into a student that starts from such an encoder (--student)."
    )


def _check_padding_unread(source: Artifact, model: PreTrainedModel) -> None:
    """Raise ModelError if a text's logits would depend on its padding, in any graph."""
    padding = padding_embedding(model)
    if padding is not None and padding.any():
        raise ModelError(
            f"{source.place}: the embedding of padding (token {model.config.pad_token_id}) has "
            f"numbers up to {float(padding.abs().max()):.3g}, allowed is 0: in a "
            f"{source.card.family!r} model each token reads its neighbours, so that a text would "
            "have other logits in a batch than alone. Train it once more from there, which "
            f"sets it to 0: bertender finetune --teacher {source.place}."
        )


def add_column_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Add an output (batch, seq) for each column of a graph's logits, in place.

    Optimum and transformers.js read outputs for start and end. Requests for the logits alone do not
    compute these.
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
    """Let every node of a graph read its constants by their original names, in place.

    The exporter writes equal tensors once (for example, all zero biases) and adds an Identity node
    for each other name. Code that looks for a product's weight or bias would find a computed
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
        else:
            remaining.append(node)
    del graph.node[:]
    graph.node.extend(remaining)
    for node in nodes_of(graph):
        node.input[:] = [origin.get(name, name) for name in node.input]


def drop_unread(model: onnx.ModelProto) -> None:
    """Remove the inputs that no node reads, in branches neither, from a graph, in place.

    Tokenizers also return token types for models without any.
    """
    read = {name for node in nodes_of(model.graph) for name in node.input}
    remaining = [entry for entry in model.graph.input if entry.name in read]
    del model.graph.input[:]
    model.graph.input.extend(remaining)


def count_heads(model: onnx.ModelProto) -> None:
    """Write the number of heads into the shapes of queries, keys and values, in place.

    transformers 5 leaves it open, (batch, seq, -1, head_dim), but fusions need it.
    """
    writers = {name: node for node in model.graph.node for name in node.output}
    vectors = {each.name: each.dims[0] for each in model.graph.initializer if len(each.dims) == 1}
    for node in model.graph.node:
        source, shape = (writers.get(name) for name in (*node.input, "", "")[:2])
        if node.op_type != "Reshape" or source is None or source.op_type != "Add":
            continue
        width = next((vectors[name] for name in source.input if name in vectors), 0)
        if not width or shape is None or shape.op_type != "Concat" or len(shape.input) != 4:
            continue
        open_size, size = (_number(writers.get(name)) for name in shape.input[2:])
        if open_size == -1 and size and width % size == 0:
            heads = numpy_helper.from_array(np.array([width // size]), f"{node.name}/heads")
            model.graph.initializer.append(heads)
            shape.input[2] = heads.name


def _number(node: onnx.NodeProto | None) -> int | None:
    """Return the value of a constant with one number; None for other nodes."""
    if node is None or node.op_type != "Constant":
        return None
    value = numpy_helper.to_array(node.attribute[0].t)
    return int(value.reshape(-1)[0]) if value.size == 1 else None


def write_traced(model: PreTrainedModel, names: Sequence[str], path: Path, opset: int) -> None:
    """Trace a run of a model into a graph with dynamic batch and length.

    The graph of an embedder also has the output `last_hidden_state` (batch, seq, hidden), which
    sentence-transformers, Optimum and transformers.js read, and pool themselves. Requests for the
    logits alone compute it anyway.

    Args:
        model: model to run; its control flow must not depend on the tokens' values.
        names: its token inputs; the graph may leave some out.
        path: path of the graph.
        opset: version of the operators.

    Raises:
        ModelError: the model cannot be traced.
    """
    # without a module around the model, whose name would prefix those of all nodes and weights:
    # schemes that train find the model's parts by these names
    traced, whole = copy.copy(model.eval()), type(model).forward
    # the cache of a decoder is not a tensor, so it cannot be traced
    settings = {"use_cache": False} if "use_cache" in signature(whole).parameters else {}

    def forward(*columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, columns, strict=True))
        found = whole(traced, **given, **settings)
        return tuple(found[name] for name in (LOGITS, STATES) if name in found)

    traced.forward = forward
    tokens = tuple(torch.ones(TRACED, dtype=torch.long) for _ in names)
    axes = {0: "batch", 1: "seq"}
    with _tracing(), torch.no_grad():
        try:
            shown = dict(zip((LOGITS, STATES), forward(*tokens), strict=False))
            outputs = {
                name: axes if each.dim() == 3 else {0: "batch"} for name, each in shown.items()
            }
            torch.onnx.export(
                traced,
                tokens,
                str(path),
                input_names=list(names),
                output_names=list(outputs),
                dynamic_axes={**dict.fromkeys(names, axes), **outputs},
                opset_version=opset,
                dynamo=False,  # its graphs have the patterns that fusions recognise
            )
        except OSError:  # a full disk says nothing about the architecture
            raise
        except Exception as error:  # an unknown architecture may raise any error
            raise _not_exported(model, str(error).strip().split("\n")[0]) from error


@contextmanager
def _tracing() -> Iterator[None]:
    """Make all computations of a model traceable, and hide the tracer's warnings.

    It warns of every shape that becomes a constant. transformers before 5 builds the masks of
    decoders with a vmap, which cannot be traced; the same function of whole tensors can.
    """
    with warnings.catch_warnings(), ExitStack() as changes:
        warnings.filterwarnings("ignore", category=TracerWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=LSTM_WARNING)
        warnings.filterwarnings("ignore", message="Constant folding")
        if BEFORE_5:
            changes.enter_context(patch.object(masking_utils, "_vmap_for_bhqkv", _of_whole))
            changes.enter_context(
                patch.object(masking_utils, "TransformGetItemToIndex", nullcontext)
            )
        else:
            masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
            changes.enter_context(patch.dict(masks._global_mapping, eager=_mask_of_tokens))
        yield


def _of_whole(
    masked: Callable[..., torch.Tensor], bh_indices: bool = True
) -> Callable[..., torch.Tensor]:
    """Return a mask (batch, heads, queries, keys), by a function of all indices at once."""

    def mask(batch: Any, heads: Any, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        whole = batch[:, None, None, None], heads[:, None, None], queries[:, None], keys
        return masked(*whole)

    return mask


def _mask_of_tokens(**settings: Any) -> torch.Tensor:
    """Return the mask to add to scores, (batch, 1, queries, keys).

    If all queries see the same keys, it has the form of transformers before 5, which fusions
    recognise.
    """
    masks: Any = masking_utils
    padding, dtype = settings["attention_mask"], settings.get("dtype", torch.float32)
    if settings["mask_function"] is masks.bidirectional_mask_function and padding is not None:
        queries = padding[:, None, None, :].expand(-1, 1, padding.shape[1], -1)
        hidden: torch.Tensor = 1.0 - queries.to(dtype)
        return hidden.masked_fill(hidden.bool(), torch.finfo(dtype).min)
    mask: torch.Tensor = masks.eager_mask(**settings)
    return mask
